//! `weft pull MODEL`

use std::process::ExitCode;

use weft_core::hub::{HubEnv, ModelRef};

use crate::answer::print;
use crate::args::PullArgs;
use crate::error::CliError;
use crate::models;
use crate::progress::Bars;

pub(crate) fn run(args: &PullArgs) -> Result<ExitCode, CliError> {
    let name = models::resolve(&args.name, args.quiet);
    models::check_form(&name)?;
    let reference = ModelRef::parse(&name)?;
    let folder = weft::pull::pull(&reference, &HubEnv::from_env()?, &Bars::new(args.quiet))?;
    print(&format!("{}\n", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
