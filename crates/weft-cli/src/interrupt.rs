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
            _ => {
                echo::restore();
                weft_cuda::leave(i32::from(INTERRUPTED))
            }
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
    use std::sync::Mutex;

    use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

    /// The terminal's settings before an answer.
    static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

    /// Keeps a terminal from showing Ctrl-C as `^C`. Everything else is still echoed, so a process
    /// that is killed leaves a terminal that works.
    pub(super) struct Hidden;

    impl Hidden {
        pub(super) fn new() -> Self {
            if let (Ok(settings), Ok(mut before)) = (tcgetattr(stdin()), BEFORE.lock()) {
                let mut hidden = settings.clone();
                hidden.local_flags.remove(LocalFlags::ECHOCTL);
                // A terminal that refuses shows `^C`, and nothing else goes wrong.
                let _ = tcsetattr(stdin(), SetArg::TCSANOW, &hidden);
                *before = Some(settings);
            }
            Self
        }
    }

    impl Drop for Hidden {
        fn drop(&mut self) {
            restore();
        }
    }

    /// Also called before the program ends without unwinding.
    pub(super) fn restore() {
        if let Some(before) = BEFORE.lock().ok().and_then(|mut before| before.take()) {
            let _ = tcsetattr(stdin(), SetArg::TCSANOW, &before);
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

    pub(super) fn restore() {}
}

fn set(answer: Option<Cancel>) {
    if let Ok(mut current) = ANSWER.lock() {
        *current = answer;
    }
}
