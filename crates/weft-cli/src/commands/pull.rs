//! `weft pull MODEL`

use std::process::ExitCode;

use weft::{Progress, Silent};
use weft_core::hub::{HubEnv, ModelRef};

use crate::answer::print;
use crate::args::PullArgs;
use crate::error::CliError;
use crate::progress::Bars;

pub(crate) fn run(args: &PullArgs) -> Result<ExitCode, CliError> {
    let reference = ModelRef::parse(&args.name)?;
    let (bars, env) = (Bars::default(), HubEnv::from_env()?);
    let progress: &dyn Progress = if args.quiet { &Silent } else { &bars };
    let folder = weft::pull::pull(&reference, &env, progress)?;
    print(&format!("{}\n", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
