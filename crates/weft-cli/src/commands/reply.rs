//! Ends a command with its one answer.

use std::process::ExitCode;

use weft_core::engine::Verification;

use super::verify;
use crate::answer::{Answer, print};
use crate::error::{CliError, INTERRUPTED};
use crate::terminal;

/// Ends a command with its one answer, as JSON if requested.
pub(crate) fn finish(
    answer: &Answer,
    as_json: bool,
    verification: Option<&Verification>,
) -> Result<ExitCode, CliError> {
    if as_json {
        let mut json = answer.json();
        if let Some(verification) = verification {
            json["verification"] = verify::facts(verification);
        }
        print(&format!("{json}\n"))?;
    } else if let Some(verification) = verification {
        terminal::note(false, &verify::describe(verification));
    }
    Ok(if answer.was_interrupted() { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}
