//! Prints what a model's kernels are compiled with for an H100 or H200, `NAME=value` a line.
//!
//!     cargo run -p weft-cuda --example constants -- '{"model_type": "qwen3", ...}'
//!
//! The argument is a named shape, or the text of a config.json.

use weft_core::config::Config;
use weft_core::shapes;
use weft_cuda::{Chip, defines};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).ok_or("no model")?;
    let config = match shapes::config(&model) {
        Some(config) => config,
        None => Config::from_json(model.as_bytes())?,
    };
    for define in defines(&config, Chip::HOPPER, true)? {
        println!("{define}");
    }
    Ok(())
}
