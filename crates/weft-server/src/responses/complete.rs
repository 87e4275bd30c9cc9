//! A response that is sent when it is complete.

use serde_json::Value;

use super::{Recorder, ResponseWriter};
use crate::api_error::ApiError;
use crate::worker::{ChoiceEvent, JobError, JobEvent, JobHandle};

/// Waits until all choices have ended. The first one that fails cancels the others.
pub(crate) async fn complete(
    mut handle: JobHandle,
    mut writer: impl ResponseWriter,
    mut recorder: Recorder,
) -> Result<Value, ApiError> {
    let mut left = handle.n_jobs();
    while left > 0 {
        // The channel closes early only if the engine has failed.
        let ChoiceEvent { choice, event } = handle.events.recv().await.ok_or(JobError::Fault)?;
        match event {
            JobEvent::Token { token, is_drafted } => {
                recorder.record(choice, token.id);
                writer.token(choice, token, is_drafted);
                if writer.is_over(choice) {
                    handle.cancel(choice);
                }
            }
            JobEvent::Done(finished) => {
                writer.end(choice, *finished);
                left -= 1;
            }
            JobEvent::Cancelled(finished) if writer.is_over(choice) => {
                writer.end(choice, *finished);
                left -= 1;
            }
            JobEvent::Cancelled(_) => return Err(JobError::Ended.into()),
            JobEvent::Failed(error) => return Err(error.into()),
            JobEvent::Prompt(tokens) => writer.prompt(choice, tokens),
            JobEvent::Admitted | JobEvent::Progress(_) | JobEvent::Rows(_) | JobEvent::Read(_) => {}
        }
    }
    recorder.keep();
    Ok(writer.into_response())
}
