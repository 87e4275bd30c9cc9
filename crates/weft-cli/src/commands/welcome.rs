//! `weft` alone: what it is and three commands to go on with.

use std::process::ExitCode;

use crate::answer::print;
use crate::error::CliError;

const TEXT: &str = "\
weft: LLM inference for one user on one machine

  weft pull Qwen/Qwen3-0.6B                    download a model into the hub cache
  weft run Qwen/Qwen3-0.6B \"Why is the sky blue?\"   answer one prompt
  weft chat Qwen/Qwen3-0.6B                    talk with it

A folder with config.json, tokenizer.json and safetensors works in place of a name.
All commands: weft --help
";

pub(crate) fn run() -> Result<ExitCode, CliError> {
    print(TEXT)?;
    Ok(ExitCode::SUCCESS)
}
