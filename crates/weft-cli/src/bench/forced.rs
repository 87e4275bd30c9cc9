//! `weft bench forced`: writes the logits after each of the given tokens, for a comparison with
//! other programs on the same weights.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use weft_core::device::{Inspect, Limits, MAX_LANES, Outputs, Step};
use weft_core::engine::GenerateError;
use weft_core::plan::plan;

use super::args::SubjectArgs;
use super::lanes::Lanes;
use super::subject::Subject;
use crate::error::CliError;

#[derive(Args)]
pub(crate) struct ForcedArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    /// The tokens: a JSON list of ids
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// The file for the logits: little-endian f32, one row of the vocabulary per token
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(super) fn run(args: &ForcedArgs) -> Result<ExitCode, CliError> {
    let subject = Subject::find(&args.subject)?;
    let tokens = read_tokens(&args.tokens, subject.config.vocab)?;
    subject.check_positions(tokens.len())?;
    let step = args.subject.step_tokens().min(tokens.len());
    let limits = Limits {
        step_tokens: step.max(MAX_LANES),
        step_outputs: step.max(MAX_LANES),
        positions: tokens.len(),
        pages: Lanes::pages_for(&[tokens.len()]),
    };
    let mut device = subject.open(&args.subject, limits)?.device;
    let failed = || CliError::io(args.out.display().to_string());
    let mut to = BufWriter::new(File::create(&args.out).map_err(failed())?);
    let (n_tokens, ops) = (tokens.len(), plan(&subject.config));
    let lanes = Lanes::of_tokens(tokens);
    for start in (0..n_tokens).step_by(step) {
        let block = start..(start + step).min(n_tokens);
        let n_outputs = block.len();
        let run = |step: &Step<'_>| device.run(&ops, step);
        lanes.step(0..1, block, Outputs::All, run).map_err(GenerateError::from)?;
        write_logits(&*device, n_outputs, &mut to).map_err(failed())?;
    }
    to.flush().map_err(failed())?;
    Ok(ExitCode::SUCCESS)
}

fn write_logits(
    device: &dyn Inspect,
    n_outputs: usize,
    to: &mut impl Write,
) -> std::io::Result<()> {
    for output in 0..n_outputs {
        let bytes: Vec<u8> = device.logits(output).iter().flat_map(|l| l.to_le_bytes()).collect();
        to.write_all(&bytes)?;
    }
    Ok(())
}

fn read_tokens(path: &Path, vocab: usize) -> Result<Vec<u32>, CliError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(CliError::io(&name))?;
    let tokens: Vec<u32> = serde_json::from_str(&text)
        .map_err(|error| CliError::Usage(format!("{name} is not a list of token ids: {error}")))?;
    match tokens.iter().find(|token| **token as usize >= vocab) {
        Some(token) => Err(CliError::Usage(format!(
            "{name}: token {token} is not below the vocabulary's {vocab}"
        ))),
        None if tokens.is_empty() => {
            Err(CliError::Usage(format!("{name} has no tokens; give at least one")))
        }
        None => Ok(tokens),
    }
}
