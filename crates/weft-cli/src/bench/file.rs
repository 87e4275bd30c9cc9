//! How files are laid out and put in their place. Knows text, not what it says.

use std::path::Path;

use crate::error::CliError;

/// Indented JSON with each list of numbers on a line of its own: hundreds of samples, one each,
/// would bury the rest.
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

/// Writes a file beside its place and moves it there, so that no reader sees half of it.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), CliError> {
    let failed = || CliError::io(path.display().to_string());
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.part", std::process::id()));
    std::fs::write(&beside, text).map_err(failed())?;
    std::fs::rename(&beside, path).map_err(|error| {
        // The error that is told is the first one.
        let _ = std::fs::remove_file(&beside);
        failed()(error)
    })
}
