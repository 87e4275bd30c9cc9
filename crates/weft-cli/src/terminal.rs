//! Output to terminals: colour only if stderr or stdout is one, and never control characters.

use std::borrow::Cow;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Whether the user asked for details.
static VERBOSE: AtomicBool = AtomicBool::new(false);

pub(crate) fn set_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
}

pub(crate) fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed)
}

/// Dims a text, if stderr is a terminal with colours.
pub(crate) fn dim(text: &str) -> String {
    dim_if(stderr().is_terminal(), text)
}

/// The same for stdout.
pub(crate) fn dim_out(text: &str) -> String {
    dim_if(stdout().is_terminal(), text)
}

fn dim_if(is_terminal: bool, text: &str) -> String {
    if is_terminal && wants_colour() { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
}

/// A note to the user: one dim line on stderr.
pub(crate) fn note(quiet: bool, text: &str) {
    if !quiet {
        say(&dim(&without_controls(text)));
    }
}

/// Whether stderr shows colours.
pub(crate) fn has_colour() -> bool {
    stderr().is_terminal() && wants_colour()
}

fn wants_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// A warning that does not affect the answer.
pub(crate) fn warn(text: &str) {
    say(&format!("weft: warning: {}", without_controls(text)));
}

/// An error, as the program prints it at its end and a chat prints it in the middle.
pub(crate) fn error(text: &str) {
    let head = if has_colour() { "\x1b[1;31mweft: error:\x1b[0m" } else { "weft: error:" };
    say(&format!("{head} {}", without_controls(text)));
}

/// Writes a line to stderr. If nobody reads it any more, a server still goes on.
fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

/// A model's text, safe for printing: on a terminal, escape sequences of a hostile or confused
/// model could move the cursor or worse. A pipe gets the text unchanged.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if stdout().is_terminal() { without_controls(text) } else { Cow::Borrowed(text) }
}

/// Text without control characters other than line feed and tab.
pub(crate) fn without_controls(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(is_unsafe) {
        Cow::Owned(text.chars().filter(|c| !is_unsafe(*c)).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// A bar for tokens on stderr; hidden without a terminal or if `quiet`.
pub(crate) fn bar(quiet: bool, total: u64, what: &'static str) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(total), target).with_message(what);
    bar.with_style(bar_style("{pos}/{len} tokens"))
}

/// A bar on stderr whose length is not known yet; hidden without a terminal.
pub(crate) fn waiting_bar(what: &'static str) -> ProgressBar {
    let target = ProgressDrawTarget::stderr();
    let style = ProgressStyle::with_template("{msg} [{spinner}] {elapsed}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    let style = style.tick_strings(&WAITING);
    ProgressBar::with_draw_target(None, target).with_message(what).with_style(style)
}

/// Gives a waiting bar its length in bytes.
pub(crate) fn show_bytes(bar: &ProgressBar, total: u64) {
    bar.set_style(bar_style("{decimal_bytes}/{decimal_total_bytes}"));
    bar.set_length(total);
    bar.reset_eta();
}

/// A bar that moves to and fro.
const WAITING: [&str; 6] = [
    "==>                           ",
    "        ==>                   ",
    "                ==>           ",
    "                        ==>   ",
    "                ==>           ",
    "        ==>                   ",
];

fn bar_style(counts: &str) -> ProgressStyle {
    ProgressStyle::with_template(&format!("{{msg}} [{{bar:30}}] {counts} {{eta}}"))
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_a_terminal() {
        assert_eq!(without_controls("a\x1b[2Jb\tc\n\u{9b}d\r"), "a[2Jb\tc\nd");
        assert!(matches!(without_controls("plain ünïcode\n"), Cow::Borrowed(_)));
    }
}
