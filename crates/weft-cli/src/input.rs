//! Texts from files and pipes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

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
