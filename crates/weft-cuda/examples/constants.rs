//! Writes the headers that a model's kernels are compiled with into a folder, as `generated/*.cuh`.
//!
//!     cargo run -p weft-cuda --example constants -- '{"model_type": "qwen3", ...}' 132 folder
//!
//! The model is a named shape, or the text of a config.json; the number that of multiprocessors, of
//! which each has as much shared memory as an H100's.

use std::path::Path;

use weft_core::config::Config;
use weft_core::shapes;
use weft_cuda::{Chip, program};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, n_sms, folder] = arguments.as_slice() else {
        return Err("a model, a number of multiprocessors and a folder are wanted".into());
    };
    let config = match shapes::config(model) {
        Some(config) => config,
        None => Config::from_json(model.as_bytes())?,
    };
    let chip = Chip { n_sms: n_sms.parse()?, ..Chip::HOPPER };
    let generated = |(name, _): &(String, String)| name.starts_with("generated/");
    std::fs::create_dir_all(Path::new(folder).join("generated"))?;
    for (name, text) in program(&config, chip, true)?.files.into_iter().filter(generated) {
        std::fs::write(Path::new(folder).join(name), text)?;
    }
    Ok(())
}
