//! Progress bars for downloading and loading, on standard error.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use weft::{Event, Progress};
use weft_server::{LoadProgress, LoadStage};

use crate::terminal;

const TEMPLATE: &str =
    "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";

/// How often the bar is drawn before it is known how much there is to load.
const TICK: Duration = Duration::from_millis(100);

/// Everything that is shown while a model is opened. Clones show the same.
#[derive(Clone)]
pub(crate) struct Bars(Arc<Shown>);

struct Shown {
    quiet: bool,
    download: Bar,
    loading: Mutex<Option<ProgressBar>>,
    /// Clients of a server see it too.
    clients: LoadProgress,
}

impl Bars {
    /// If `quiet`, they show only what makes answers slow or wrong.
    pub(crate) fn new(quiet: bool) -> Self {
        Self::reporting_to(quiet, LoadProgress::default())
    }

    /// The same, and reports to the clients of a server.
    pub(crate) fn reporting_to(quiet: bool, clients: LoadProgress) -> Self {
        let (download, loading) = (Bar::default(), Mutex::default());
        Self(Arc::new(Shown { quiet, download, loading, clients }))
    }

    /// Shows a bar at once, before anything is known about the model. It goes when the model is
    /// loaded, or when the result is dropped.
    pub(crate) fn begin(&self) -> impl Drop {
        struct End(Bars);
        impl Drop for End {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        self.0.clients.set(LoadStage::Loading, 0.0);
        if !self.0.quiet {
            let bar = terminal::waiting_bar("loading");
            bar.enable_steady_tick(TICK);
            *self.loading() = Some(bar);
        }
        End(self.clone())
    }

    fn loading(&self) -> MutexGuard<'_, Option<ProgressBar>> {
        self.0.loading.lock().expect("no bar panics")
    }

    fn end(&self) {
        if let Some(bar) = self.loading().take() {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Bars {
    fn report(&self, event: Event<'_>) {
        let share = |have: u64, size: u64| have as f64 / size.max(1) as f64;
        match event {
            Event::Loading { have_bytes, size_bytes } => {
                self.0.clients.set(LoadStage::Loading, share(have_bytes, size_bytes));
            }
            Event::Started { size_bytes, have_bytes, .. } => {
                self.0.clients.set(LoadStage::Downloading, share(have_bytes, size_bytes));
            }
            Event::Received { have_bytes } => {
                let size_bytes = self.0.download.bar.length().unwrap_or_default();
                self.0.clients.set(LoadStage::Downloading, share(have_bytes, size_bytes));
            }
            _ => {}
        }
        match event {
            Event::SelfTestFailed { reason } => eprintln!(
                "weft: SELF-TEST FAILED: {reason}; answering slowly, on the reference device"
            ),
            Event::Started { size_bytes, .. } if self.0.quiet => {
                self.0.download.bar.set_length(size_bytes);
            }
            _ if self.0.quiet => {}
            Event::Loading { have_bytes, size_bytes } => {
                let mut bar = self.loading();
                let bar = bar.get_or_insert_with(|| terminal::waiting_bar("loading"));
                if bar.length().is_none() {
                    terminal::show_bytes(bar, size_bytes);
                }
                // Several threads report; the bar must not move backwards.
                bar.set_position(have_bytes.max(bar.position()));
            }
            Event::Loaded => self.end(),
            event => {
                // The bar of a download takes the place of the bar without a length.
                self.end();
                self.0.download.report(&event);
            }
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
            let (have, size) = (DecimalBytes(have_bytes), DecimalBytes(size_bytes));
            self.line(&format!("fetching {file} ({size}, resuming at {have})"));
        } else {
            self.line(&format!("fetching {file} ({})", DecimalBytes(size_bytes)));
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
                    eprintln!("fetched {file} ({})", DecimalBytes(size_bytes));
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
