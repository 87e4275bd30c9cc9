//! What a pull tells while it runs, and the bar that shows it.
//!
//! Owns the events and their display on a terminal or, line by line, in a log. The download knows
//! only the trait; it neither prints nor asks whether there is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

const TEMPLATE: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// One step of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// The file is already in the cache.
    Cached {
        /// The file.
        file: &'a str,
    },
    /// A download begins, or goes on where an earlier one ended.
    Started {
        /// The file.
        file: &'a str,
        /// Its whole size.
        size_bytes: u64,
        /// What is already on disk.
        have_bytes: u64,
    },
    /// Bytes arrived.
    Received {
        /// How much of the file is on disk now.
        have_bytes: u64,
    },
    /// An attempt failed; another follows.
    Retrying {
        /// The file, or the list of files.
        what: &'a str,
        /// Why.
        reason: &'a str,
        /// The pause before the next attempt.
        wait: Duration,
    },
    /// Another process fetches the same file.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// All bytes are there; their hash is computed.
    Verifying {
        /// The file.
        file: &'a str,
    },
    /// The file is in the cache, checked.
    Finished {
        /// The file.
        file: &'a str,
        /// Its size.
        size_bytes: u64,
    },
}

/// Takes the events of a pull.
pub(crate) trait Progress {
    /// Called for each event, in order, by the thread that pulls.
    fn report(&self, event: Event<'_>);
}

/// Shows nothing, for `--quiet`.
pub(crate) struct Silent;

impl Progress for Silent {
    fn report(&self, _event: Event<'_>) {}
}

/// A bar on standard error; where that is no terminal, one line per file.
pub(crate) struct Bar {
    bar: ProgressBar,
    is_terminal: bool,
}

impl Bar {
    /// A bar that shows nothing before the first event.
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::hidden();
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        Bar { bar, is_terminal: std::io::stderr().is_terminal() }
    }

    /// A line that stays.
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
        // So that the speed is that of this download, not of the bytes that were there before.
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

impl Progress for Bar {
    fn report(&self, event: Event<'_>) {
        match event {
            Event::Cached { .. } => {}
            Event::Started { file, size_bytes, have_bytes } => {
                self.start(file, size_bytes, have_bytes);
            }
            Event::Received { have_bytes } => self.bar.set_position(have_bytes),
            Event::Retrying { what, reason, wait } => {
                let wait_s = wait.as_secs_f32();
                self.line(&format!("{what}: {reason}; trying again in {wait_s:.1} s"));
            }
            Event::Waiting { file } => {
                self.line(&format!("waiting for another process that fetches {file}"));
            }
            Event::Verifying { file } => self.bar.set_message(format!("checking {file}")),
            Event::Finished { file, size_bytes } => {
                self.bar.finish_and_clear();
                if self.is_terminal {
                    eprintln!("fetched {file} ({})", HumanBytes(size_bytes));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_follows_the_events() {
        let bar = Bar::new();
        bar.report(Event::Started { file: "a", size_bytes: 100, have_bytes: 40 });
        assert_eq!((bar.bar.length(), bar.bar.position()), (Some(100), 40));
        bar.report(Event::Received { have_bytes: 70 });
        let wait = Duration::from_secs(1);
        bar.report(Event::Retrying { what: "a", reason: "broken", wait });
        assert_eq!((bar.bar.position(), bar.bar.message().as_str()), (70, "a"));
        bar.report(Event::Verifying { file: "a" });
        assert_eq!(bar.bar.message(), "checking a");
        bar.report(Event::Finished { file: "a", size_bytes: 100 });
        assert!(bar.bar.is_finished());
        bar.report(Event::Started { file: "b", size_bytes: 5, have_bytes: 0 });
        assert!(!bar.bar.is_finished() && bar.bar.position() == 0);
    }

    #[test]
    fn bar_has_a_valid_template() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
