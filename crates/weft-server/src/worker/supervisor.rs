//! Loads the engine, runs the scheduler on it, and loads it again after a fault. An engine that
//! fails twice in a short time would fail again, and stays down.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch::Sender;
use weft_core::chunk::Which;
use weft_core::engine::Engine;

use super::scheduler::Scheduler;
use super::{LoadEngine, Phase};
use crate::model_info::ModelInfo;
use crate::registry::LoadFailure;

/// Runs the engine's thread.
pub(super) fn run(mut load: LoadEngine, mut scheduler: Scheduler, phases: &Sender<Phase>) {
    let log = Arc::clone(&scheduler.shared.log);
    let mut last_fault: Option<Instant> = None;
    loop {
        phases.send_replace(Phase::Loading);
        let loaded = match catch_unwind(AssertUnwindSafe(&mut load)) {
            Ok(Ok(loaded)) => loaded,
            Ok(Err(failure)) => return give_up(failure, &mut scheduler, phases),
            Err(_) => {
                let panicked = LoadFailure::hidden("loading the model panicked");
                return give_up(panicked, &mut scheduler, phases);
            }
        };
        let model = Arc::new(ModelInfo::new(&loaded));
        let mut engine = loaded.engine;
        phases.send_replace(Phase::Ready(Arc::clone(&model)));
        let fault = match catch_unwind(AssertUnwindSafe(|| scheduler.run(&mut engine))) {
            Ok(Ok(())) => {
                save_use_counts(&model, &engine);
                phases.send_replace(Phase::Ended);
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic_text(&*panic),
        };
        // New requests are refused from here on; waiting ones fail before anything slow is done.
        phases.send_replace(Phase::Loading);
        scheduler.fail_all();
        scheduler.shared.metrics.count_fault();
        log(&format!("the engine failed: {fault}"));
        // Dropping an engine that panicked may panic again.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
        let window = scheduler.shared.limits.fault_window;
        if last_fault.replace(Instant::now()).is_some_and(|last| last.elapsed() < window) {
            break;
        }
    }
    phases.send_replace(Phase::Down);
    log("the engine failed again and stays down; restart the server");
    scheduler.refuse_until_drained();
    phases.send_replace(Phase::Ended);
}

/// Chunks are saved when they are registered; how often they were used is saved at the end.
fn save_use_counts(model: &ModelInfo, engine: &Engine) {
    let Some(shelf) = &model.shelf else { return };
    for chunk in engine.library().list(&Which::default()) {
        if chunk.uses > 0 {
            // A lost count must not stop the server from shutting down.
            let _ = shelf.keep(chunk);
        }
    }
}

fn give_up(failure: LoadFailure, scheduler: &mut Scheduler, phases: &Sender<Phase>) {
    phases.send_replace(Phase::Unloadable(failure));
    scheduler.refuse_until_drained();
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}
