//! An answer told when it is whole.

use serde_json::Value;

use super::{Recorder, Script};
use crate::api_error::ApiError;
use crate::worker::{Failure, Happening, Ticket};

/// Waits until all choices are over. The first one that fails ends them all.
pub(crate) async fn whole(
    mut ticket: Ticket,
    mut script: impl Script,
    choices: usize,
    mut recorder: Recorder,
) -> Result<Value, ApiError> {
    let mut left = choices;
    while left > 0 {
        // A channel that closes before the end is an engine that is gone.
        let told = ticket.events.recv().await.ok_or(Failure::Fault)?;
        match told.what {
            Happening::Token(token) => {
                recorder.hear(told.choice, token.id);
                script.token(told.choice, token);
            }
            Happening::Done(finished) => {
                script.ending(told.choice, *finished);
                left -= 1;
            }
            Happening::Failed(failure) => return Err(failure.into()),
            Happening::Admitted | Happening::Rows(_) => {}
        }
    }
    recorder.keep();
    Ok(script.whole())
}
