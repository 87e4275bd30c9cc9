//! Names of models on a command line: which words name one, and the nearest name for a word that
//! does not. Nothing is downloaded here.

use std::path::Path;

use weft_core::hub::{self, HubEnv, HubError, ModelRef, RepoRef};
use weft_core::model::is_gguf;

use crate::error::CliError;
use crate::terminal;

/// The bundled model's name.
pub(crate) const BUNDLED: &str = "weft-tiny";

/// A small model for examples and suggestions.
pub(crate) const SMALL: &str = "Qwen/Qwen3-0.6B";

/// A family on the hub: the name that other programs use, and the parts of its names on the hub
/// before and after the size.
struct Family {
    name: &'static str,
    before: &'static str,
    after: &'static str,
    sizes: &'static [&'static str],
}

/// Families that weft runs and that users know by names like `qwen3:0.6b`.
const FAMILIES: [Family; 7] = [
    Family {
        name: "qwen3",
        before: "Qwen/Qwen3-",
        after: "",
        sizes: &["0.6B", "1.7B", "4B", "8B", "14B", "32B"],
    },
    Family {
        name: "qwen2.5",
        before: "Qwen/Qwen2.5-",
        after: "-Instruct",
        sizes: &["0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B"],
    },
    Family {
        name: "qwen2.5-coder",
        before: "Qwen/Qwen2.5-Coder-",
        after: "-Instruct",
        sizes: &["0.5B", "1.5B", "3B", "7B", "14B", "32B"],
    },
    Family {
        name: "qwen2",
        before: "Qwen/Qwen2-",
        after: "-Instruct",
        sizes: &["0.5B", "1.5B", "7B", "72B"],
    },
    Family {
        name: "llama3.2",
        before: "meta-llama/Llama-3.2-",
        after: "-Instruct",
        sizes: &["1B", "3B"],
    },
    Family {
        name: "llama3.1",
        before: "meta-llama/Llama-3.1-",
        after: "-Instruct",
        sizes: &["8B", "70B"],
    },
    Family {
        name: "llama3.3",
        before: "meta-llama/Llama-3.3-",
        after: "-Instruct",
        sizes: &["70B"],
    },
];

/// The names of all sizes of all families on the hub.
fn on_the_hub() -> impl Iterator<Item = String> {
    FAMILIES.iter().flat_map(|family| {
        let name = |size: &&str| format!("{}{size}{}", family.before, family.after);
        family.sizes.iter().map(name)
    })
}

/// The name on the hub for `family:size` as other programs write it: `qwen3:0.6b`.
fn by_family(name: &str) -> Option<String> {
    let (family, size) = name.split_once(':')?;
    let family = FAMILIES.iter().find(|known| known.name.eq_ignore_ascii_case(family))?;
    let size = family.sizes.iter().find(|known| known.eq_ignore_ascii_case(size))?;
    Some(format!("{}{size}{}", family.before, family.after))
}

/// A shorter beginning of a name fits too many names.
const LEAST_BEGINNING: usize = 4;

/// A word of twice this length may have two typing errors.
const LETTERS_PER_EDIT: usize = 3;

/// Whether a name means the bundled model. A folder of the same name takes precedence.
pub(crate) fn is_bundled(name: Option<&str>) -> bool {
    name.is_none_or(|name| name == BUNDLED && !Path::new(name).is_dir())
}

/// The name on the hub for `qwen3:0.6b`, or for a cached model that is named without its
/// organisation; other names as they are.
pub(crate) fn full_name(name: &str) -> String {
    in_cache(name).or_else(|| by_family(name)).unwrap_or_else(|| name.to_owned())
}

/// The same, and says so if the name changed.
pub(crate) fn resolve(name: &str, quiet: bool) -> String {
    let full = full_name(name);
    if full != name {
        terminal::note(quiet, &format!("{name} is {full} on the hub"));
    }
    full
}

/// A model's name without organisation, revision and folders, for a prompt.
pub(crate) fn short_name(name: Option<&str>) -> String {
    let Some(name) = name else { return BUNDLED.to_owned() };
    let full = full_name(name);
    let last = full.trim_end_matches('/').rsplit('/').next().unwrap_or(&full);
    let last =
        if Path::new(&full).is_dir() { last } else { last.split('@').next().unwrap_or(last) };
    last.to_owned()
}

/// Refuses a name that cannot be a model's, and a folder that holds no model.
pub(crate) fn check_form(name: &str) -> Result<(), CliError> {
    if let Err(HubError::InvalidReference { .. }) = ModelRef::parse(name) {
        return Err(CliError::Usage(format!("{name:?} is not a model: {}", instead(name))));
    }
    let folder = Path::new(name);
    let has_gguf = || {
        let entries = folder.read_dir().into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| is_gguf(&path))
    };
    if !folder.is_dir() || folder.join(hub::CONFIG_FILE).exists() || has_gguf() {
        return Ok(());
    }
    Err(CliError::Usage(format!(
        "{name} is not a model folder: it has no {} and no GGUF file; give a folder with that \
         file and *.safetensors, a GGUF file, or `org/name`",
        hub::CONFIG_FILE
    )))
}

/// Refuses a name that cannot be a model here, without using the network or reading weights.
pub(crate) fn check_name(name: &str, offline: bool) -> Result<(), CliError> {
    let name = full_name(name);
    check_form(&name)?;
    let mut env = HubEnv::from_env()?;
    env.offline |= offline;
    match hub::resolve(&ModelRef::parse(&name)?, &env) {
        Err(error) if error.is_missing() && !env.offline => Ok(()),
        found => Ok(found.map(drop)?),
    }
}

/// Whether a word is `family:size` of a family on the hub. Words of a prompt never are.
pub(crate) fn is_family(word: &str) -> bool {
    by_family(word).is_some()
}

/// Whether a word names a model: the bundled one, a folder, a GGUF file, `org/name`, or a name in
/// the hub cache.
pub(crate) fn is_model(word: &str) -> bool {
    let path = Path::new(word);
    path.is_dir()
        || (path.is_file() && is_gguf(path))
        || (!path.exists()
            && (is_bundled(Some(word))
                || RepoRef::parse(word).is_ok()
                || is_family(word)
                || in_cache(word).is_some()))
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
    nearest_size(word).or_else(|| nearest_known(word))
}

/// The nearest size of a family that weft knows: the 8B model for `qwen3:7b`.
fn nearest_size(word: &str) -> Option<String> {
    let (family, wanted) = word.split_once(':')?;
    let family = FAMILIES.iter().find(|known| known.name.eq_ignore_ascii_case(family))?;
    let number = |size: &str| size.trim_end_matches(['b', 'B']).parse::<f64>().ok();
    let wanted = number(wanted)?;
    let distance = |size: &str| number(size).map_or(f64::MAX, |size| (size - wanted).abs());
    let nearest = |a: &&&str, b: &&&str| distance(a).total_cmp(&distance(b));
    let size = family.sizes.iter().min_by(nearest)?;
    Some(format!("{}{size}{}", family.before, family.after))
}

fn nearest_known(word: &str) -> Option<String> {
    nearest_of(word, cached().into_iter().chain(on_the_hub()).chain([BUNDLED.to_owned()]))
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
pub(crate) fn not_a_model(word: &str) -> CliError {
    if Path::new(word).is_file() {
        return CliError::Usage(format!(
            "{word:?} is a file, not a model; `weft ask` answers questions about it, and \
             `-f {word}` puts it before the prompt"
        ));
    }
    CliError::Usage(format!(
        "{word:?} is not a model: {} If it is part of the prompt, put the whole prompt into quotes",
        instead(word)
    ))
}

/// What to write instead of a name that is not a model.
pub(crate) fn instead(word: &str) -> String {
    match nearest(word).filter(|near| near != word) {
        Some(near) => format!("did you mean {near}?"),
        None => format!(
            "give a folder, a GGUF file, `org/name` like {SMALL}, or a name from `weft list`."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(word: &str) -> Option<String> {
        nearest_of(word, on_the_hub().chain([BUNDLED.to_owned()]))
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
        for (word, id) in
            [("qwen3:7b", "Qwen/Qwen3-8B"), ("qwen2.5:8b", "Qwen/Qwen2.5-7B-Instruct")]
        {
            assert_eq!(nearest(word).as_deref(), Some(id), "{word}");
        }
        for word in ["nope", "What", "Who", "when", "", "Why is the sky blue?"] {
            assert_eq!(near(word), None, "{word}");
        }
    }

    #[test]
    fn names_with_a_size_are_those_of_the_hub() {
        for (word, id) in [
            ("qwen3:0.6b", SMALL),
            ("Qwen3:32B", "Qwen/Qwen3-32B"),
            ("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct"),
            ("llama3.2:3b", "meta-llama/Llama-3.2-3B-Instruct"),
        ] {
            assert_eq!(by_family(word).as_deref(), Some(id), "{word}");
            assert!(RepoRef::parse(id).is_ok() && is_model(word), "{word}");
        }
        // Quantised forms, sizes and families that weft does not have.
        for word in ["qwen3", "qwen3:latest", "qwen3:0.6b-q4_K_M", "qwen3:9b", "gemma3:1b", ":8b"] {
            assert_eq!(by_family(word), None, "{word}");
        }
        assert_eq!(short_name(Some("qwen3:0.6b")), "Qwen3-0.6B");
        assert_eq!(short_name(Some("org/name@v1")), "name");
        assert_eq!(short_name(Some("/srv/models/mine/")), "mine");
        assert_eq!(short_name(None), BUNDLED);
    }
}
