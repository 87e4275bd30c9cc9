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

/// Makes Ctrl-C end this answer until the guard is dropped. The terminal does not write `^C` into
/// the answer.
pub(crate) fn ends(answer: &Cancel) -> Guard {
    INTERRUPTED_ONCE.store(false, Ordering::Relaxed);
    set(Some(answer.clone()));
    Guard { _echo: echo::Hidden::new() }
}

pub(crate) struct Guard {
    _echo: echo::Hidden,
}

impl Drop for Guard {
    fn drop(&mut self) {
        set(None);
    }
}

/// How a terminal echoes control characters.
#[cfg(unix)]
mod echo {
    use std::io::stdin;

    use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

    /// Keeps a terminal from showing Ctrl-C as `^C`. Everything else is still echoed, so a process
    /// that is killed leaves a terminal that works.
    pub(super) struct Hidden(Option<Termios>);

    impl Hidden {
        pub(super) fn new() -> Self {
            let before = tcgetattr(stdin()).ok();
            if let Some(before) = &before {
                let mut hidden = before.clone();
                hidden.local_flags.remove(LocalFlags::ECHOCTL);
                // A terminal that refuses shows `^C`, and nothing else goes wrong.
                let _ = tcsetattr(stdin(), SetArg::TCSANOW, &hidden);
            }
            Self(before)
        }
    }

    impl Drop for Hidden {
        fn drop(&mut self) {
            if let Some(before) = &self.0 {
                let _ = tcsetattr(stdin(), SetArg::TCSANOW, before);
            }
        }
    }
}

#[cfg(not(unix))]
mod echo {
    pub(super) struct Hidden;

    impl Hidden {
        pub(super) fn new() -> Self {
            Self
        }
    }
}

fn set(answer: Option<Cancel>) {
    if let Ok(mut current) = ANSWER.lock() {
        *current = answer;
    }
}
