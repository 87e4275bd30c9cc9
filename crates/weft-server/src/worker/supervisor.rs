//! Loads the engine, has it serve, and loads it once more after a fault.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::watch::Sender;
use weft_core::chunk::Which;
use weft_core::engine::Engine;

use super::Phase;
use super::duty::Duty;
use crate::served::{Load, Served};

/// How often a failed engine is loaded again. What fails twice would fail again.
const RESTARTS: usize = 1;

/// The life of the engine's thread.
pub(super) fn run(
    mut load: Load,
    mut duty: Duty,
    phases: &Sender<Phase>,
    tell: &(dyn Fn(&str) + Send + Sync),
) {
    for _ in 0..=RESTARTS {
        phases.send_replace(Phase::Loading);
        let loaded = match catch_unwind(AssertUnwindSafe(&mut load)) {
            Ok(Ok(loaded)) => loaded,
            Ok(Err(error)) => return give_up(error, &mut duty, phases),
            Err(_) => return give_up("loading the model panicked".into(), &mut duty, phases),
        };
        let served = Arc::new(Served::of(&loaded));
        let mut engine = loaded.engine;
        phases.send_replace(Phase::Ready(Arc::clone(&served)));
        let fault = match catch_unwind(AssertUnwindSafe(|| duty.serve(&mut engine))) {
            Ok(Ok(())) => {
                write_uses(&served, &engine);
                phases.send_replace(Phase::Ended);
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(panic) => reason(&*panic),
        };
        // Refused from here on; then those that wait are told, before anything slow is done.
        phases.send_replace(Phase::Loading);
        duty.fail_all();
        duty.shared.metrics.count_fault();
        tell(&format!("the engine failed: {fault}"));
        // What a panic left behind may panic once more while it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
    }
    phases.send_replace(Phase::Down);
    tell("the engine failed again and stays down; restart the server");
    duty.refuse_until_the_end();
    phases.send_replace(Phase::Ended);
}

/// Chunks are written down when they are registered; how often they were used, at the end.
fn write_uses(served: &Served, engine: &Engine) {
    let Some(shelf) = &served.shelf else { return };
    for chunk in engine.library().list(&Which::default()) {
        if chunk.uses > 0 {
            // A count that is lost is no reason not to end.
            let _ = shelf.keep(chunk);
        }
    }
}

fn give_up(error: crate::served::LoadError, duty: &mut Duty, phases: &Sender<Phase>) {
    phases.send_replace(Phase::Unloadable(Arc::new(error)));
    duty.refuse_until_the_end();
}

fn reason(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}
