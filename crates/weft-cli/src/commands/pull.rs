//! `weft pull MODEL`

use std::process::ExitCode;

use weft_core::hub::{HubEnv, ModelRef};

use crate::answer::print;
use crate::args::PullArgs;
use crate::error::CliError;
use crate::pull;

pub(crate) fn run(args: &PullArgs) -> Result<ExitCode, CliError> {
    let reference = ModelRef::parse(&args.name)?;
    let folder = pull::pull(&reference, &HubEnv::from_env()?, &*pull::progress(args.quiet))?;
    print(&format!("{}\n", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
