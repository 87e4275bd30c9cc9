//! `weft config show|set|unset|path`: the config file. These commands work if the file is broken.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use weft_core::files::NewFile;

use crate::answer::print;
use crate::args::{ConfigCommand, SetArgs, UnsetArgs};
use crate::error::CliError;
use crate::settings::{self, Setting};
use crate::terminal;

/// Settings whose values are not printed.
const SECRET: &str = "api-key";

/// Without a command, the settings are shown.
pub(crate) fn run(command: Option<&ConfigCommand>) -> Result<ExitCode, CliError> {
    let Some((path, _)) = settings::config_file() else {
        return Err(CliError::Usage("there is no home folder; set WEFT_CONFIG".to_owned()));
    };
    match command.unwrap_or(&ConfigCommand::Show) {
        ConfigCommand::Path => print(&format!("{}\n", path.display())),
        ConfigCommand::Show => show(&path),
        ConfigCommand::Set(SetArgs { key, values }) => set(&path, key, Some(values)),
        ConfigCommand::Unset(UnsetArgs { key }) => set(&path, key, None),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Prints all settings with their sources; the environment wins over the file.
fn show(path: &Path) -> Result<(), CliError> {
    let text = read(path)?;
    let file = settings::read(&text).map_err(|reason| about(path, &reason))?;
    let hidden = |key: &str, value: String| {
        if key == SECRET && !value.is_empty() { "(hidden)".to_owned() } else { value }
    };
    let mut n_wrong = 0;
    let mut rows: Vec<(String, String, String)> = Vec::new();
    for key in settings::known_keys() {
        let variable = settings::variable(&key);
        if let Some(value) = std::env::var_os(&variable).filter(|value| !value.is_empty()) {
            let value = hidden(&key, value.to_string_lossy().into_owned());
            rows.push((key, value, variable));
        }
    }
    for (key, values) in &file {
        let value = hidden(key, values.join(", "));
        let source = match settings::check(key, values) {
            Ok(()) if rows.iter().any(|(set, ..)| set == key) => "config.toml, overridden".into(),
            Ok(()) => "config.toml".to_owned(),
            Err(error) => {
                n_wrong += 1;
                format!("WRONG: {error}")
            }
        };
        rows.push((key.clone(), value, source));
    }
    if rows.is_empty() {
        terminal::note(
            false,
            &format!("nothing is set; `weft config set ctx-size 32k` writes {}", path.display()),
        );
        return Ok(());
    }
    rows.sort();
    let width = |cell: fn(&(String, String, String)) -> &str| {
        rows.iter().map(|row| cell(row).chars().count()).max().unwrap_or(0)
    };
    let (keys, values) = (width(|row| &row.0), width(|row| &row.1));
    let line = |(key, value, source): &(String, String, String)| {
        format!("{key:<keys$}  {value:<values$}  {source}\n")
    };
    print(&rows.iter().map(line).collect::<String>())?;
    match n_wrong {
        0 => Ok(()),
        1 => Err(about(path, "one setting is wrong")),
        n => Err(about(path, &format!("{n} settings are wrong"))),
    }
}

/// Writes or removes one line, and keeps everything else as it is.
fn set(path: &Path, key: &str, values: Option<&Vec<String>>) -> Result<(), CliError> {
    if let Some(values) = values {
        settings::check(key, values)?;
    }
    let text = read(path)?;
    let before = settings::read(&text).map_err(|reason| about(path, &reason))?;
    if values.is_none() && !before.iter().any(|(name, _)| name == key) {
        return Err(about(path, &format!("`{key}` is not set")));
    }
    let changed = with_line(&text, key, values.map(|values| line(key, values)));
    // The file must say what was wanted, and everything else that it said before.
    let others = |settings: Vec<Setting>| -> Vec<Setting> {
        settings.into_iter().filter(|(name, _)| name != key).collect()
    };
    let after = settings::read(&changed).unwrap_or_default();
    let is_set = after.iter().find(|(name, _)| name == key).map(|(_, values)| values) == values;
    if !is_set || others(after) != others(before) {
        return Err(about(path, &format!("`{key}` spans several lines; edit the file by hand")));
    }
    write(path, &changed).map_err(CliError::io(path.display().to_string()))?;
    terminal::note(false, &format!("wrote {}", path.display()));
    Ok(())
}

fn about(path: &Path, reason: &str) -> CliError {
    CliError::Usage(format!("{}: {reason}", path.display()))
}

/// The text of the file; empty if there is none.
fn read(path: &Path) -> Result<String, CliError> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        text => text.map_err(CliError::io(path.display().to_string())),
    }
}

/// A line of the file. A JSON string is a TOML string.
fn line(key: &str, values: &[String]) -> String {
    let plain = |value: &String| value.parse::<i64>().is_ok_and(|n| n.to_string() == *value);
    let one = |value: &String| match value.as_str() {
        "true" | "false" => value.clone(),
        _ if plain(value) => value.clone(),
        text => serde_json::Value::from(text).to_string(),
    };
    match values {
        [value] => format!("{key} = {}", one(value)),
        values => format!("{key} = [{}]", values.iter().map(one).collect::<Vec<_>>().join(", ")),
    }
}

/// The text with the key's line replaced, added or removed.
fn with_line(text: &str, key: &str, line: Option<String>) -> String {
    let is_key = |old: &&str| {
        old.split_once('=').is_some_and(|(name, _)| name.trim().trim_matches(['"', '\'']) == key)
    };
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    match (text.lines().position(|old| is_key(&old)), line) {
        (Some(at), Some(line)) => lines[at] = line,
        (Some(at), None) => drop(lines.remove(at)),
        (None, line) => lines.extend(line),
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// Writes a file that only its owner can read, because it may hold a key; the old one is kept until
/// the new one is complete.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // It follows a link, so that a file in a folder of dotfiles stays there.
    let mut file = NewFile::create_private(path)?;
    file.write_all(text.as_bytes())?;
    file.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_replaced_added_or_removed_and_the_others_stay() {
        let text = "# mine\nctx-size = \"8k\" # short\nquiet = true\n";
        let to = |text: &str| Some(text.to_owned());
        let replaced = with_line(text, "ctx-size", to("ctx-size = 9"));
        assert_eq!(replaced, "# mine\nctx-size = 9\nquiet = true\n");
        assert_eq!(with_line(text, "seed", to("seed = 1")), format!("{text}seed = 1\n"));
        assert_eq!(with_line(text, "quiet", None), "# mine\nctx-size = \"8k\" # short\n");
        let values = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
        assert_eq!(line("seed", &values(&["7"])), "seed = 7");
        assert_eq!(line("stop", &values(&["a\"b", "c"])), r#"stop = ["a\"b", "c"]"#);
    }
}
