//! `weft completions SHELL`

use std::process::ExitCode;

use clap::CommandFactory;

use crate::answer::print;
use crate::args::{Cli, CompletionsArgs};
use crate::error::CliError;

pub(crate) fn run(args: &CompletionsArgs) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "weft", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
