//! Formats and writes result files.

use std::io::Write;
use std::path::Path;

use weft_core::files::NewFile;

use crate::answer::print;
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

/// Refuses a file that cannot be written, before anything is measured for it.
pub(crate) fn check_target(flag: &str, path: &Path) -> Result<(), CliError> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let reason = match folder {
        _ if path.is_dir() => "it is a folder; name a file in it".to_owned(),
        Some(folder) if !folder.is_dir() => {
            format!("{} is not a folder; make it first, or name another", folder.display())
        }
        _ => return Ok(()),
    };
    Err(CliError::Usage(format!("{flag} {}: {reason}", path.display())))
}

/// Writes the results of a run. If that fails, they go to stdout, so that nothing measured is lost;
/// `is_printed` says that they are there already.
pub(crate) fn save(path: &Path, json: &str, is_printed: bool) -> Result<(), CliError> {
    write_whole(path, json).inspect_err(|_| {
        if !is_printed {
            // The error of the file matters more than one of stdout.
            let _ = print(json);
        }
    })
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
