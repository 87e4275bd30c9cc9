//! Texts from files and pipes.

use std::fs::File;
use std::io::{BufRead, ErrorKind, IsTerminal, Read, Seek, stdin};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::error::CliError;

/// Maximum bytes of a file or a pipe; more than fits any context.
const INPUT_LIMIT: u64 = 64 << 20;

/// The text of a file that the user names.
pub(crate) fn read_file(path: &Path) -> Result<String, CliError> {
    let name = path.display().to_string();
    let wrong = |error: std::io::Error| {
        let reason = match error.kind() {
            ErrorKind::NotFound => "there is no such file".to_owned(),
            ErrorKind::IsADirectory => "it is a folder; name a file".to_owned(),
            _ => error.to_string(),
        };
        CliError::Usage(format!("{name}: {reason}"))
    };
    let is_folder = path.is_dir().then(|| ErrorKind::IsADirectory.into());
    let file = is_folder.map_or_else(|| File::open(path), Err).map_err(wrong)?;
    read_text(file, &name)
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
    decode(bytes).map_err(|reason| CliError::Usage(format!("{name} {reason}")))
}

/// The text of a file's bytes: UTF-8, or UTF-16 with a mark at its beginning. Refuses formats that
/// look like text in places but are not.
fn decode(bytes: Vec<u8>) -> Result<String, String> {
    let in_words = |word: fn([u8; 2]) -> u16, bytes: &[u8]| {
        let words: Vec<u16> = bytes.chunks_exact(2).map(|pair| word([pair[0], pair[1]])).collect();
        String::from_utf16(&words)
            .map_err(|_| "is not UTF-16 text, though it begins like it".to_owned())
    };
    let text = match bytes.as_slice() {
        [b'%', b'P', b'D', b'F', b'-', ..] => {
            return Err("is a PDF; make it a text first, as with pdftotext".to_owned());
        }
        [b'P', b'K', 3, 4, ..] => {
            return Err(
                "is a zip archive or an office document (docx, odt, epub); make it a text \
                        first, as with `pandoc -t plain`"
                    .to_owned(),
            );
        }
        [0xff, 0xfe, rest @ ..] => in_words(u16::from_le_bytes, rest)?,
        [0xfe, 0xff, rest @ ..] => in_words(u16::from_be_bytes, rest)?,
        [0xef, 0xbb, 0xbf, rest @ ..] => utf8(rest.to_vec(), 3)?,
        _ => utf8(bytes, 0)?,
    };
    if text.contains('\0') {
        return Err("is binary, not text: it has NUL bytes".to_owned());
    }
    Ok(text)
}

/// The text of bytes that follow `skipped` others in their file.
fn utf8(bytes: Vec<u8>, skipped: usize) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let (byte, at) = (error.as_bytes()[at], at + skipped);
        format!(
            "is not UTF-8 text (byte {at} is 0x{byte:02x}); convert it, as with iconv -f LATIN1 \
             -t UTF-8"
        )
    })
}

/// The text of stdin, however long it takes to come.
pub(crate) fn read_stdin() -> Result<String, CliError> {
    read_text(stdin().lock(), "stdin")
}

/// What stdin holds if nobody asked for it.
pub(crate) enum Piped {
    /// A terminal or `/dev/null`: nobody sends anything.
    Nothing,
    /// A file that another command reads from.
    OfALoop,
    /// A pipe or a file without text.
    Empty,
    Text(String),
    /// Neither a byte nor an end came in time. Nobody may be writing.
    Silent,
}

/// Reads stdin if it is not a terminal. Waits for the first byte or the end only as long as
/// `patience`; after the first byte, until the end.
pub(crate) fn piped(patience: Duration) -> Result<Piped, CliError> {
    if stdin().is_terminal() || is_device() {
        return Ok(Piped::Nothing);
    }
    if is_list_of_a_loop() {
        return Ok(Piped::OfALoop);
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
    Ok(if text.trim().is_empty() { Piped::Empty } else { Piped::Text(text) })
}

/// What is said if stdin is not read because of [`is_list_of_a_loop`].
pub(crate) const LEFT_TO_LOOP: &str =
    "stdin is not read: another command has begun to read that file";

/// Whether stdin is a file that another command reads from, as in `while read`. The shell leaves
/// the position behind the line that it has read.
pub(crate) fn is_list_of_a_loop() -> bool {
    let Some(mut file) = stdin_file() else { return false };
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    is_file && file.stream_position().is_ok_and(|position| position > 0)
}

/// Whether stdin is a device such as `/dev/null`.
#[cfg(unix)]
fn is_device() -> bool {
    use std::os::unix::fs::FileTypeExt;
    let metadata = stdin_file().and_then(|file| file.metadata().ok());
    metadata.is_some_and(|metadata| metadata.file_type().is_char_device())
}

#[cfg(unix)]
fn stdin_file() -> Option<File> {
    use std::os::fd::AsFd;
    stdin().as_fd().try_clone_to_owned().map(File::from).ok()
}

#[cfg(not(unix))]
fn is_device() -> bool {
    false
}

#[cfg(not(unix))]
fn stdin_file() -> Option<File> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_in_two_encodings_and_other_formats_are_refused() {
        let little: Vec<u8> = "\u{feff}Größe".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = "\u{feff}Größe".encode_utf16().flat_map(u16::to_be_bytes).collect();
        for bytes in [little, big, "\u{feff}Größe".into(), "Größe".into()] {
            assert_eq!(decode(bytes).as_deref(), Ok("Größe"));
        }
        for (bytes, says) in [
            (&b"%PDF-1.4\nplain text"[..], "pdftotext"),
            (b"PK\x03\x04word/document.xml", "pandoc"),
            (b"some\0bytes", "NUL"),
            (b"\xff\xfe\x00\xd8", "UTF-16"),
            (b"\xe4", "UTF-8"),
            (b"\xef\xbb\xbfcaf\xe9", "byte 6 is 0xe9"),
        ] {
            assert!(decode(bytes.to_vec()).unwrap_err().contains(says), "{bytes:?}");
        }
    }
}
