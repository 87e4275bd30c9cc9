//! Writes random weights into a model folder that has only a config.json, so that real shapes can
//! be loaded without a download:
//!
//!     cargo run --release -p weft-core --example random_model -- FOLDER
//!
//! The weights are bf16 or f32, as the config says, in one model.safetensors.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;

use half::bf16;
use safetensors::{Dtype as FileDtype, tensor::TensorView};
use weft_core::config::Config;
use weft_core::dtype::Dtype;
use weft_core::weights::{RandomWeights, Weights, tensors};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: random_model FOLDER")?;
    let folder = Path::new(&folder);
    let config = Config::from_file(&folder.join("config.json"))?;
    write(&config, &folder.join("model.safetensors"))
}

fn write(config: &Config, file: &Path) -> Result<(), Box<dyn Error>> {
    let weights = RandomWeights::new(config, 1);
    let format = match config.dtype {
        Dtype::F32 => FileDtype::F32,
        Dtype::Bf16 => FileDtype::BF16,
    };
    let mut all = Vec::new();
    for shape in tensors(config) {
        let mut bytes = Vec::with_capacity(shape.elements() * config.dtype.bytes());
        weights.read(shape.tensor, &mut |_, row| match config.dtype {
            Dtype::F32 => bytes.extend(row.iter().flat_map(|v| v.to_le_bytes())),
            Dtype::Bf16 => bytes.extend(row.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes())),
        })?;
        all.push((shape.tensor.name(), shape.shape, bytes));
    }
    let views: HashMap<&str, TensorView<'_>> = all
        .iter()
        .map(|(name, shape, bytes)| {
            Ok((name.as_str(), TensorView::new(format, shape.clone(), bytes)?))
        })
        .collect::<Result<_, safetensors::SafeTensorError>>()?;
    safetensors::serialize_to_file(views, None, file)?;
    Ok(())
}
