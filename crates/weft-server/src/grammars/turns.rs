//! Turns at compiling: a few rules at once, a bounded queue before them, and a bound on the wait.
//!
//! A compilation cannot be interrupted, so the bounds see to it that none takes long. A client that
//! leaves before its turn takes none.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;
use weft_core::sampling::Constraint;

use super::Rule;
use crate::api_error::ApiError;
use crate::model_info::ModelInfo;

/// Rules that are compiled at once.
const AT_ONCE: usize = 2;
/// Rules that are compiled or wait for it.
const PLACES: usize = 32;
/// How long a client waits for its rule.
const PATIENCE: Duration = Duration::from_secs(10);

/// Turns at one model's grammars.
pub(crate) struct Turns {
    turns: Arc<Semaphore>,
    places: Semaphore,
}

impl Default for Turns {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(AT_ONCE)), places: Semaphore::new(PLACES) }
    }
}

/// Compiles a rule when it is its turn. A refusal names `param`, the field that the rule comes
/// from.
pub(crate) async fn compile(
    model: Arc<ModelInfo>,
    rule: Rule,
    param: &'static str,
) -> Result<Box<dyn Constraint>, ApiError> {
    // A large rule does not wait: the queue would hold gigabytes.
    rule.check().map_err(|error| error.param(param))?;
    let busy = "too many schemas, expressions and tools are being compiled; try again in a second";
    let busy = || ApiError::unavailable(busy);
    let Turns { turns, places } = &model.turns;
    let _place = places.try_acquire().map_err(|_| busy())?;
    let compiled = timeout(PATIENCE, async {
        let turn = Arc::clone(turns).acquire_owned().await;
        // The turn lasts as long as the work, even if the client has left.
        let model = Arc::clone(&model);
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            model.constraint(&rule, param)
        })
        .await
    });
    let compiled = compiled.await.map_err(|_| busy())?;
    compiled.unwrap_or_else(|_| Err(ApiError::fault("the rule for the answer was not compiled")))
}
