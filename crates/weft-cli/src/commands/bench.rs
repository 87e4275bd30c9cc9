//! `weft bench`; see [`crate::bench`].

use std::process::ExitCode;

use crate::bench::{self, BenchArgs};
use crate::error::CliError;

pub(crate) fn run(args: BenchArgs) -> Result<ExitCode, CliError> {
    bench::run(args)
}
