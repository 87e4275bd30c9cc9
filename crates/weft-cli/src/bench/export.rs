//! `weft bench export`: writes a model folder with random weights, so that other programs can run
//! the same model. It writes one row at a time.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use half::bf16;
use serde_json::{Map, Value, json};
use weft_core::dtype::{Dtype, Element};
use weft_core::model::ModelError;
use weft_core::weights::{SINGLE_WEIGHTS_FILE, tensors};

use super::args::ShapeArgs;
use super::subject::Subject;
use crate::error::CliError;

#[derive(Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    shape: ShapeArgs,
    /// The folder to create
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

pub(super) fn run(args: &ExportArgs) -> Result<ExitCode, CliError> {
    let subject = Subject::of_shape(&args.shape)?;
    let failed = |path: &Path| CliError::io(path.display().to_string());
    std::fs::create_dir_all(&args.out).map_err(failed(&args.out))?;
    let config = args.out.join("config.json");
    std::fs::write(&config, args.shape.config_json()?).map_err(failed(&config))?;
    let path = args.out.join(SINGLE_WEIGHTS_FILE);
    let file = File::create(&path).map_err(failed(&path))?;
    write(&subject, BufWriter::with_capacity(1 << 20, file), || failed(&path))?;
    Ok(ExitCode::SUCCESS)
}

/// A safetensors file: the length of the header, the header, all tensors in its order.
fn write<E: FnOnce(std::io::Error) -> CliError>(
    subject: &Subject,
    mut to: impl Write,
    failed: impl Fn() -> E,
) -> Result<(), CliError> {
    let header = header(subject).to_string();
    to.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed())?;
    to.write_all(header.as_bytes()).map_err(failed())?;
    for tensor in tensors(&subject.config) {
        let mut result = Ok(());
        let mut bytes = vec![0; tensor.row() * Dtype::Bf16.bytes()];
        let mut visit = |_: usize, row: &[f32]| {
            let row: Vec<bf16> = row.iter().map(|value| bf16::from_f32(*value)).collect();
            <bf16 as Element>::write_le(&row, &mut bytes);
            if result.is_ok() {
                result = to.write_all(&bytes);
            }
        };
        subject.weights.read(tensor.tensor, &mut visit).map_err(ModelError::from)?;
        result.map_err(failed())?;
    }
    to.flush().map_err(failed())
}

fn header(subject: &Subject) -> Value {
    let mut end = 0;
    // The experts of a tensor follow one another.
    let parts = tensors(&subject.config).into_iter().flat_map(|tensor| tensor.in_files());
    let entries = parts.map(|(name, shape)| {
        let start = end;
        end += shape.iter().product::<usize>() * Dtype::Bf16.bytes();
        (name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}))
    });
    Value::Object(entries.collect::<Map<_, _>>())
}
