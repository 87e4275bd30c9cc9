//! What Tab offers in a chat: commands at the start of a line, then files or names of chunks.

use std::path::{Path, PathBuf};

use rustyline::completion::Pair;

use super::COMMANDS;

/// Completes the end of a line: where the replaced part starts, and what can stand there.
pub(super) fn complete(line: &str, names: &[String]) -> (usize, Vec<Pair>) {
    let Some((command, rest)) = line.split_once(' ') else {
        return (0, commands(line));
    };
    let rest = rest.trim_start();
    let start = line.len() - rest.len();
    match command {
        "/context" => (start, files(rest)),
        "/system" => match rest.strip_prefix('@') {
            Some(file) => (start + 1, files(file)),
            None => (start, named(rest, names)),
        },
        "/use" | "/drop" => (start, named(rest, names)),
        _ => (start, Vec::new()),
    }
}

/// A path as a shell reads it: `~/` is the home folder.
pub(super) fn path(text: &str) -> PathBuf {
    let home = text.strip_prefix("~/").and_then(|rest| Some((std::env::var_os("HOME")?, rest)));
    home.map_or_else(|| PathBuf::from(text), |(home, rest)| Path::new(&home).join(rest))
}

fn commands(start: &str) -> Vec<Pair> {
    let fits = COMMANDS.iter().filter(|(name, ..)| name.starts_with(start) && !start.is_empty());
    fits.map(|(name, argument, _)| {
        let space = if argument.is_empty() { "" } else { " " };
        Pair { display: (*name).to_owned(), replacement: format!("{name}{space}") }
    })
    .collect()
}

fn named(start: &str, names: &[String]) -> Vec<Pair> {
    let fits = names.iter().filter(|name| name.starts_with(start));
    fits.map(|name| Pair { display: name.clone(), replacement: name.clone() }).collect()
}

/// The files and folders whose paths start so. Names that start with a dot are offered only if the
/// dot is typed.
fn files(start: &str) -> Vec<Pair> {
    let (folder, beginning) = start
        .rsplit_once('/')
        .map_or(("", start), |(_, name)| (&start[..start.len() - name.len()], name));
    let place = if folder.is_empty() { PathBuf::from(".") } else { path(folder) };
    let mut found: Vec<Pair> = std::fs::read_dir(place)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let is_offered = name.starts_with(beginning)
                && (!name.starts_with('.') || beginning.starts_with('.'))
                && !name.contains(char::is_control);
            let slash = if entry.path().is_dir() { "/" } else { "" };
            is_offered.then(|| Pair {
                display: format!("{name}{slash}"),
                replacement: format!("{folder}{name}{slash}"),
            })
        })
        .collect();
    found.sort_by(|a, b| a.display.cmp(&b.display));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(line: &str) -> (usize, Vec<String>) {
        let (start, pairs) = complete(line, &["ship".to_owned(), "minutes".to_owned()]);
        (start, pairs.into_iter().map(|pair| pair.replacement).collect())
    }

    #[test]
    fn commands_files_and_names_are_completed() {
        // Tests run in the folder of their crate.
        assert_eq!(offered("/con"), (0, vec!["/context ".to_owned()]));
        assert_eq!(offered("/ver"), (0, vec!["/verify".to_owned()]));
        assert_eq!(offered("/context Car"), (9, vec!["Cargo.toml".to_owned()]));
        assert_eq!(offered("/context sr"), (9, vec!["src/".to_owned()]));
        assert_eq!(offered("/context src/mai"), (9, vec!["src/main.rs".to_owned()]));
        assert_eq!(offered("/system @Car"), (9, vec!["Cargo.toml".to_owned()]));
        assert_eq!(offered("/use sh"), (5, vec!["ship".to_owned()]));
        assert_eq!(offered("Why is th"), (4, vec![]));
        assert_eq!(offered(""), (0, vec![]));
    }
}
