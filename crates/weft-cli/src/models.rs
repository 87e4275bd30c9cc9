//! Names of models on a command line: which words name one, and the nearest name for a word that
//! does not. Nothing is downloaded here.

use std::path::Path;

use weft_core::hub::{self, HubEnv, RepoRef};
use weft_core::model::is_gguf;

use crate::error::CliError;

/// The bundled model's name.
pub(crate) const BUNDLED: &str = "weft-tiny";

/// A small model for examples and suggestions.
pub(crate) const SMALL: &str = "Qwen/Qwen3-0.6B";

/// Models of the supported families, for suggestions only.
const ON_THE_HUB: [&str; 13] = [
    SMALL,
    "Qwen/Qwen3-1.7B",
    "Qwen/Qwen3-4B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-14B",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen2.5-0.5B-Instruct",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen2.5-3B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct",
    "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/Llama-3.2-3B-Instruct",
    "meta-llama/Llama-3.1-8B-Instruct",
];

/// A shorter beginning of a name fits too many names.
const LEAST_BEGINNING: usize = 4;

/// A word of twice this length may have two typing errors.
const LETTERS_PER_EDIT: usize = 3;

/// Whether a name means the bundled model. A folder of the same name takes precedence.
pub(crate) fn is_bundled(name: Option<&str>) -> bool {
    name.is_none_or(|name| name == BUNDLED && !Path::new(name).is_dir())
}

/// The full name of a cached model that is named without its organisation; other names as they are.
pub(crate) fn full_name(name: &str) -> String {
    in_cache(name).unwrap_or_else(|| name.to_owned())
}

/// Whether a word names a model: the bundled one, a folder, a GGUF file, `org/name`, or a name in
/// the hub cache.
pub(crate) fn is_model(word: &str) -> bool {
    let path = Path::new(word);
    path.is_dir()
        || (path.is_file() && is_gguf(path))
        || (!path.exists()
            && (is_bundled(Some(word)) || RepoRef::parse(word).is_ok() || in_cache(word).is_some()))
}

/// The cached `org/name` for a name without its organisation, if there is exactly one.
fn in_cache(name: &str) -> Option<String> {
    if name.contains(['/', '\\']) || name.contains(char::is_whitespace) || Path::new(name).exists()
    {
        return None;
    }
    let is_named =
        |id: &String| id.split_once('/').is_some_and(|(_, n)| n.eq_ignore_ascii_case(name));
    let mut found = cached().into_iter().filter(is_named);
    found.next().filter(|_| found.next().is_none())
}

/// The ids of the cached models; none if there is no cache.
fn cached() -> Vec<String> {
    let models = HubEnv::from_env().and_then(|env| hub::list(&env)).unwrap_or_default();
    models.into_iter().map(|model| model.id).collect()
}

/// The known name that is most like a word; cached models come first.
pub(crate) fn nearest(word: &str) -> Option<String> {
    let known = [&ON_THE_HUB[..], &[BUNDLED]].concat();
    nearest_of(word, cached().into_iter().chain(known.into_iter().map(str::to_owned)))
}

/// The same among given names.
pub(crate) fn nearest_of(word: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let word = letters(word);
    let distance = |id: &String| {
        let name = id.split_once('/').map_or(id.as_str(), |(_, name)| name);
        [id, name]
            .map(|text| distance(&word, &letters(text)))
            .into_iter()
            .min()
            .unwrap_or(usize::MAX)
    };
    let (distance, id) =
        known.map(|id| (distance(&id), id)).min_by_key(|(distance, _)| *distance)?;
    (distance <= word.len() / LETTERS_PER_EDIT && word.len() >= LEAST_BEGINNING).then_some(id)
}

/// Letters and digits in lower case: `qwen3:0.6b` and `Qwen3-0.6B` are the same.
fn letters(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// The number of edits that make a word a beginning of a name.
fn distance(word: &str, name: &str) -> usize {
    // Row `i` has the distances from the first `i` letters of the word to each beginning.
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for (i, letter) in word.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in name.bytes().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.into_iter().min().unwrap_or(usize::MAX)
}

/// The error of `weft run` for a first word that is not a model, with the nearest name.
pub(crate) fn not_a_model(word: &str, prompt: &str) -> CliError {
    let prompt = example(prompt);
    if Path::new(word).is_file() {
        return CliError::Usage(format!(
            "{word:?} is a file, not a model; type `weft ask {word} {prompt}` to ask about it, or \
             `weft run -f {word} {prompt}` to put it before the prompt"
        ));
    }
    let (model, what) = match nearest(word) {
        Some(near) => (near.clone(), format!("the nearest name that weft knows is {near}")),
        None => (
            SMALL.to_owned(),
            format!("expected a folder, `org/name` like {SMALL}, or a name from `weft list`"),
        ),
    };
    CliError::Usage(format!(
        "{word:?} is not a model: {what}; type `weft run {model} {prompt}`, or put the whole \
         prompt into quotes if {word:?} is part of it"
    ))
}

/// Words in quotes for a command that the user can type; long texts are left out.
pub(crate) fn example(words: &str) -> String {
    const MOST: usize = 60;
    let is_plain = words.chars().count() <= MOST && !words.contains(['"', '`', '$', '\\', '\n']);
    format!("\"{}\"", if is_plain { words } else { "…" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(word: &str) -> Option<String> {
        nearest_of(word, ON_THE_HUB.iter().chain([&BUNDLED]).map(|name| (*name).to_owned()))
    }

    #[test]
    fn names_of_other_programs_lead_to_names_on_the_hub() {
        for (word, id) in [
            ("qwen3:0.6b", SMALL),
            ("gwen3", SMALL),
            ("Qwen3-8B", "Qwen/Qwen3-8B"),
            ("Qwen/Qwen3-0.6", SMALL),
            ("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct"),
            ("llama3.2", "meta-llama/Llama-3.2-1B-Instruct"),
            ("llama3.2:3b", "meta-llama/Llama-3.2-3B-Instruct"),
            ("weft-tny", BUNDLED),
        ] {
            assert_eq!(near(word).as_deref(), Some(id), "{word}");
        }
        for word in ["nope", "What", "Who", "when", "", "Why is the sky blue?"] {
            assert_eq!(near(word), None, "{word}");
        }
    }
}
