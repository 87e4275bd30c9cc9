//! The values that no flag gave, and where each came from, so that an error names what the user
//! wrote.

use std::sync::OnceLock;

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::{Lookup, Setting, config_file, settable, variable};

/// Flags whose value an error may name without the flag: models, paths and texts.
const NAMED_BY_VALUE: [&str; 8] =
    ["model", "draft", "system", "key", "remote", "remote-key", "cache-dir", "chunk-dir"];

/// A flag's values from the environment or the config file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elsewhere {
    key: String,
    values: Vec<String>,
    /// The variable, or the key and its file.
    place: String,
}

static ALL: OnceLock<Vec<Elsewhere>> = OnceLock::new();

/// Keeps what [`find`] found for [`with_place`].
pub(super) fn keep(found: Vec<Elsewhere>) {
    // The command line is parsed once.
    let _ = ALL.set(found);
}

/// An error's text, and the place of the value that it is about if no flag gave that value.
pub(crate) fn with_place(text: String) -> String {
    describe(text, ALL.get().map_or(&[], Vec::as_slice))
}

fn describe(text: String, all: &[Elsewhere]) -> String {
    match all.iter().find(|value| value.is_blamed_in(&text)) {
        Some(Elsewhere { place, .. }) => format!("{text} (from {place})"),
        None => text,
    }
}

impl Elsewhere {
    fn is_blamed_in(&self, text: &str) -> bool {
        let flag = format!("--{} ", self.key);
        let setting = format!("{} is ", self.key.replace('-', "_"));
        let is_named = || self.values.iter().any(|value| has_word(text, value));
        text.starts_with(&flag)
            || text.starts_with(&setting)
            || (NAMED_BY_VALUE.contains(&self.key.as_str()) && is_named())
    }
}

/// Whether a text has a word, and not only as a part of another.
fn has_word(text: &str, word: &str) -> bool {
    let is_end = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
    let mut found = text.match_indices(word).filter(|_| !word.is_empty());
    found.any(|(at, _)| {
        is_end(text[..at].chars().next_back()) && is_end(text[at + word.len()..].chars().next())
    })
}

/// The values of a command and its subcommands that no flag gave.
pub(super) fn find(
    command: &clap::Command,
    flags: &ArgMatches,
    (file, lookup): (&[Setting], Lookup<'_>),
) -> Vec<Elsewhere> {
    let is_default =
        |id: &str| matches!(flags.value_source(id), Some(ValueSource::DefaultValue) | None);
    let args = command.get_arguments().filter(|arg| is_default(arg.get_id().as_str()));
    let mut found: Vec<Elsewhere> =
        args.filter_map(|arg| elsewhere(settable(arg)?, file, lookup)).collect();
    if let Some((name, flags)) = flags.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        found.extend(find(command, flags, (file, lookup)));
    }
    found
}

fn elsewhere(key: String, file: &[Setting], lookup: Lookup<'_>) -> Option<Elsewhere> {
    let name = variable(&key);
    if let Some(value) = lookup(&name).filter(|value| !value.is_empty()) {
        let values = vec![value.to_string_lossy().into_owned()];
        return Some(Elsewhere { key, values, place: name });
    }
    let (_, values) = file.iter().find(|(set, _)| *set == key)?;
    let path =
        config_file().map_or("config.toml".to_owned(), |(path, _)| path.display().to_string());
    Some(Elsewhere { values: values.clone(), place: format!("{key} in {path}"), key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_a_value_from_elsewhere_names_the_place() {
        let of = |key: &str, value: &str| Elsewhere {
            key: key.to_owned(),
            values: vec![value.to_owned()],
            place: "there".to_owned(),
        };
        let all = [of("ctx-size", "32k"), of("top-p", "7"), of("model", "no"), of("threads", "7")];
        let is_named = |text: &str| describe(text.to_owned(), &all).ends_with(" (from there)");
        assert!(is_named("--ctx-size 32768 exceeds the model's 4096 positions; lower it"));
        assert!(is_named("top_p is 7; give 0 to 1"));
        assert!(is_named("\"no\" is not a model"));
        for other in ["not known; lower --ctx-size", "top_k is 7", "7 lanes are too many"] {
            assert!(!is_named(other), "{other}");
        }
    }
}
