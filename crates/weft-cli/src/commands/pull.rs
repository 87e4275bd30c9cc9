//! `weft pull MODEL`

use std::process::ExitCode;

use weft_core::hub::{HubEnv, ModelRef};

use crate::answer::print;
use crate::args::PullArgs;
use crate::error::CliError;
use crate::models;
use crate::progress::Bars;
use crate::terminal;

pub(crate) fn run(args: &PullArgs) -> Result<ExitCode, CliError> {
    if models::is_bundled(Some(&args.name)) {
        let text = format!("{:?} is part of the program; there is nothing to download", args.name);
        terminal::note(args.quiet, &text);
        return Ok(ExitCode::SUCCESS);
    }
    let name = models::resolve(&args.name, args.quiet);
    models::check_form(&name)?;
    let reference = ModelRef::parse(&name)?;
    let folder = weft::pull::pull(&reference, &HubEnv::from_env()?, &Bars::new(args.quiet))?;
    print(&format!("{}\n", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
