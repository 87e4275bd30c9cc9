//! Formats and writes result files.

use std::path::Path;

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

/// Writes a temporary file and renames it, so that no reader sees a partial file.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), CliError> {
    let failed = || CliError::io(path.display().to_string());
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.part", std::process::id()));
    std::fs::write(&beside, text).map_err(failed())?;
    std::fs::rename(&beside, path).map_err(|error| {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&beside);
        failed()(error)
    })
}
