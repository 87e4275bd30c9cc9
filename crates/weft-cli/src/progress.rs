//! Progress bars for downloading and loading, on standard error.

use std::io::IsTerminal;
use std::sync::Mutex;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use weft::{Event, Progress};

use crate::terminal;

const TEMPLATE: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// Everything that the command line shows while it opens a model.
pub(crate) struct Bars {
    quiet: bool,
    download: Bar,
    loading: Mutex<Option<ProgressBar>>,
}

impl Bars {
    /// If `quiet`, they show only what makes answers slow or wrong.
    pub(crate) fn new(quiet: bool) -> Self {
        Self { quiet, download: Bar::default(), loading: Mutex::default() }
    }
}

impl Progress for Bars {
    fn report(&self, event: Event<'_>) {
        match event {
            Event::SelfTestFailed { reason } => eprintln!(
                "weft: SELF-TEST FAILED: {reason}; answering slowly, on the reference device"
            ),
            _ if self.quiet => {}
            Event::Loading { have_bytes, size_bytes } => {
                let mut bar = self.loading.lock().expect("no bar panics");
                let bar =
                    bar.get_or_insert_with(|| terminal::bar(false, size_bytes, "loading", true));
                // Several threads report; the bar must not move backwards.
                bar.set_position(have_bytes.max(bar.position()));
            }
            Event::Loaded => {
                if let Some(bar) = self.loading.lock().expect("no bar panics").take() {
                    bar.finish_and_clear();
                }
            }
            event => self.download.report(&event),
        }
    }
}

/// A bar on standard error. Without a terminal, it prints one line per file.
struct Bar {
    bar: ProgressBar,
    is_terminal: bool,
}

impl Default for Bar {
    /// A bar that is hidden until the first event.
    fn default() -> Self {
        let bar = ProgressBar::hidden();
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        Self { bar, is_terminal: std::io::stderr().is_terminal() }
    }
}

impl Bar {
    /// Prints a line above the bar.
    fn line(&self, text: &str) {
        if self.is_terminal {
            self.bar.println(text);
        } else {
            eprintln!("{text}");
        }
    }

    fn start(&self, file: &str, size_bytes: u64, have_bytes: u64) {
        self.bar.reset();
        self.bar.set_length(size_bytes);
        self.bar.set_position(have_bytes);
        // Restarts the clock, so that bytes of an earlier download do not count for the speed.
        self.bar.reset_eta();
        self.bar.set_message(file.to_owned());
        if self.is_terminal {
            self.bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        } else if have_bytes > 0 {
            let (have, size) = (HumanBytes(have_bytes), HumanBytes(size_bytes));
            self.line(&format!("fetching {file} ({size}, resuming at {have})"));
        } else {
            self.line(&format!("fetching {file} ({})", HumanBytes(size_bytes)));
        }
    }
}

impl Bar {
    fn report(&self, event: &Event<'_>) {
        match *event {
            Event::Started { file, size_bytes, have_bytes } => {
                self.start(file, size_bytes, have_bytes);
            }
            Event::Received { have_bytes } => self.bar.set_position(have_bytes),
            Event::Retrying { what, reason, wait } => {
                let wait_s = wait.as_secs_f32();
                self.line(&format!("{what}: {reason}; trying again in {wait_s:.1} s"));
            }
            Event::Damaged { file } => {
                self.line(&format!("{file} in the cache is damaged; downloading it again"));
            }
            Event::Waiting { file } => {
                self.line(&format!("waiting for another process that downloads {file}"));
            }
            Event::Verifying { file } => self.bar.set_message(format!("checking {file}")),
            Event::Finished { file, size_bytes } => {
                self.bar.finish_and_clear();
                if self.is_terminal {
                    eprintln!("fetched {file} ({})", HumanBytes(size_bytes));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bar_follows_the_events() {
        let bar = Bar::default();
        bar.report(&Event::Started { file: "a", size_bytes: 100, have_bytes: 40 });
        assert_eq!((bar.bar.length(), bar.bar.position()), (Some(100), 40));
        bar.report(&Event::Received { have_bytes: 70 });
        let wait = Duration::from_secs(1);
        bar.report(&Event::Retrying { what: "a", reason: "broken", wait });
        assert_eq!((bar.bar.position(), bar.bar.message().as_str()), (70, "a"));
        bar.report(&Event::Verifying { file: "a" });
        assert_eq!(bar.bar.message(), "checking a");
        bar.report(&Event::Finished { file: "a", size_bytes: 100 });
        assert!(bar.bar.is_finished());
        bar.report(&Event::Started { file: "b", size_bytes: 5, have_bytes: 0 });
        assert!(!bar.bar.is_finished() && bar.bar.position() == 0);
    }

    #[test]
    fn bar_has_a_valid_template() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
