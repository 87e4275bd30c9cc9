//! Texts from files and pipes.

use std::fs::File;
use std::io::{BufRead, IsTerminal, Read, stdin};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::error::CliError;

/// Maximum bytes of a file or a pipe; more than fits any context.
const INPUT_LIMIT: u64 = 64 << 20;

/// The text of a file.
pub(crate) fn read_file(path: &Path) -> Result<String, CliError> {
    let name = path.display().to_string();
    read_text(File::open(path).map_err(CliError::io(&name))?, &name)
}

/// The text of anything.
pub(crate) fn read_text(from: impl Read, name: &str) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    from.take(INPUT_LIMIT + 1).read_to_end(&mut bytes).map_err(CliError::io(name))?;
    if bytes.len() as u64 > INPUT_LIMIT {
        return Err(CliError::Usage(format!(
            "{name} has more than {INPUT_LIMIT} bytes; shorten it"
        )));
    }
    String::from_utf8(bytes).map_err(|_| CliError::Usage(format!("{name} is not UTF-8 text")))
}

/// The text of stdin, however long it takes to come.
pub(crate) fn read_stdin() -> Result<String, CliError> {
    read_text(stdin().lock(), "stdin")
}

/// What stdin holds if nobody asked for it.
pub(crate) enum Piped {
    /// A terminal, or no text.
    Nothing,
    Text(String),
    /// Neither a byte nor an end came in time. Nobody may be writing.
    Silent,
}

/// Reads stdin if it is not a terminal. Waits for the first byte or the end only as long as
/// `patience`; after the first byte, until the end.
pub(crate) fn piped(patience: Duration) -> Result<Piped, CliError> {
    if stdin().is_terminal() {
        return Ok(Piped::Nothing);
    }
    let (begun, has_begun) = mpsc::channel();
    // If the pipe stays silent, this thread ends with the process.
    let reader = thread::spawn(move || {
        let mut input = stdin().lock();
        // An error comes again in the next line, where it is returned.
        let _ = input.fill_buf();
        let _ = begun.send(());
        read_text(input, "stdin")
    });
    if has_begun.recv_timeout(patience).is_err() {
        return Ok(Piped::Silent);
    }
    let text = reader.join().expect("reading does not panic")?;
    Ok(if text.trim().is_empty() { Piped::Nothing } else { Piped::Text(text) })
}
