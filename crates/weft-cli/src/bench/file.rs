//! Formats and writes result files.

use std::io::Write;
use std::path::Path;

use weft_core::files::NewFile;

use crate::error::CliError;

/// Indented JSON with each list of numbers on one line: hundreds of samples, one per line, would
/// bury the rest.
pub(crate) fn lists_on_one_line(json: &str) -> String {
    let mut text = String::new();
    let mut in_list = false;
    for line in json.lines() {
        let value = line.trim();
        let number = value.trim_end_matches(',').parse::<f64>().is_ok();
        match (in_list, number) {
            (true, true) => text += &format!(" {value}"),
            (true, false) | (false, true) => text += value,
            (false, false) if text.is_empty() => text += line,
            (false, false) => text += &format!("\n{line}"),
        }
        in_list = number;
    }
    text + "\n"
}

/// Writes a file so that no reader sees a part of it.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), CliError> {
    let write = || {
        let mut file = NewFile::create(path)?;
        file.write_all(text.as_bytes())?;
        file.commit()
    };
    write().map_err(CliError::io(path.display().to_string()))
}
