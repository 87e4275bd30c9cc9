//! `weft bench`: speed, against what the machine could do. All of it lives in [`crate::bench`].

use std::process::ExitCode;

use crate::bench::{self, BenchArgs};
use crate::error::CliError;

pub(crate) fn run(args: BenchArgs) -> Result<ExitCode, CliError> {
    bench::run(args)
}
