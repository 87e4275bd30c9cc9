//! `weft pull MODEL`

use std::process::ExitCode;

use weft_core::hub::{HubEnv, ModelRef};

use crate::answer::print;
use crate::args::PullArgs;
use crate::error::CliError;
use crate::models;
use crate::progress::Bars;

pub(crate) fn run(args: &PullArgs) -> Result<ExitCode, CliError> {
    let reference = ModelRef::parse(&models::resolve(&args.name, args.quiet))?;
    let folder = weft::pull::pull(&reference, &HubEnv::from_env()?, &Bars::new(args.quiet))?;
    print(&format!("{}\n", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
