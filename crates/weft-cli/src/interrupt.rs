//! Ctrl-C: the first ends the answer, the second ends the program.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_core::engine::Cancel;

use crate::error::INTERRUPTED;

/// The answer that is being generated.
static ANSWER: Mutex<Option<Cancel>> = Mutex::new(None);
/// Whether the running answer was interrupted.
static INTERRUPTED_ONCE: AtomicBool = AtomicBool::new(false);

/// Installs the handler; later calls do nothing.
pub(crate) fn install() {
    // An error means that there is already a handler.
    let _ = ctrlc::set_handler(|| {
        let answer = ANSWER.lock().ok().and_then(|answer| answer.clone());
        match answer {
            Some(answer) if !INTERRUPTED_ONCE.swap(true, Ordering::Relaxed) => answer.cancel(),
            _ => std::process::exit(i32::from(INTERRUPTED)),
        }
    });
}

/// Makes Ctrl-C end this answer until the guard is dropped.
pub(crate) fn ends(answer: &Cancel) -> Guard {
    INTERRUPTED_ONCE.store(false, Ordering::Relaxed);
    set(Some(answer.clone()));
    Guard
}

pub(crate) struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        set(None);
    }
}

fn set(answer: Option<Cancel>) {
    if let Ok(mut current) = ANSWER.lock() {
        *current = answer;
    }
}
