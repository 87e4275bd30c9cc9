//! Chooses the files of a repository that weft needs.
//!
//! These are configuration, tokenizer, template and safetensors weights at the top of the
//! repository; never pickled weights, never code. Names come from the network and become paths, so
//! each chosen name is checked first.

use weft_core::hub::{self, CONFIG_FILE, INDEX_FILE, SINGLE_WEIGHTS_FILE};

/// Downloaded if they exist. `config.json` comes first, because nothing works without it.
const SMALL_FILES: [&str; 6] = [
    CONFIG_FILE,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    INDEX_FILE,
];

/// The files to fetch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// All files except the weights.
    pub(super) small: Vec<String>,
    /// The weights.
    pub(super) weights: Weights,
}

/// Where the weights are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// In the shards that the index names. The index takes precedence over a single file beside it,
    /// which holds the same weights again.
    ByIndex,
    /// In these files.
    Files(Vec<String>),
}

/// Why no files can be chosen.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SelectError {
    /// The name of a needed file is not safe.
    UnsafeName(String),
    /// Files are missing; the text names them.
    Unsuitable(String),
}

/// Chooses from the names that the hub lists.
pub(super) fn select(listed: &[String]) -> Result<Selection, SelectError> {
    if let Some(name) = listed.iter().find(|name| is_wanted(name) && !is_safe(name)) {
        return Err(SelectError::UnsafeName(name.clone()));
    }
    let has = |name: &str| listed.iter().any(|listed| listed == name);
    if !has(CONFIG_FILE) {
        return Err(SelectError::Unsuitable(format!("it has no {CONFIG_FILE}")));
    }
    let small = SMALL_FILES.into_iter().filter(|name| has(name)).map(str::to_owned).collect();
    let weights = if has(INDEX_FILE) {
        Weights::ByIndex
    } else if has(SINGLE_WEIGHTS_FILE) {
        Weights::Files(vec![SINGLE_WEIGHTS_FILE.to_owned()])
    } else {
        Weights::Files(other_weights(listed)?)
    };
    Ok(Selection { small, weights })
}

/// Weights under other names than the usual one, such as a hand-made `weights.safetensors`.
fn other_weights(listed: &[String]) -> Result<Vec<String>, SelectError> {
    let mut names: Vec<String> =
        listed.iter().filter(|n| !n.contains('/') && is_weights(n)).cloned().collect();
    names.sort();
    names.dedup();
    if names.is_empty() {
        let other = listed.iter().find(|n| n.ends_with(".bin") || n.ends_with(".gguf"));
        let other = other.map(|n| format!(" (only others, such as {n:?})")).unwrap_or_default();
        return Err(SelectError::Unsuitable(format!(
            "it has no *.safetensors weights{other}; choose a repository that has them"
        )));
    }
    Ok(names)
}

fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors")
}

/// Compares the last component of the name. So `../config.json` is found and refused, and odd names
/// of other files do not matter.
fn is_wanted(name: &str) -> bool {
    let last = name.rsplit(['/', '\\']).next().unwrap_or(name);
    SMALL_FILES.contains(&last) || is_weights(last)
}

/// Whether this is a relative path whose every component is a plain file name.
fn is_safe(name: &str) -> bool {
    name.split('/').all(hub::is_plain_file_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn select_takes_what_is_needed_and_no_more() {
        let listed = names(&[
            ".gitattributes",
            "README.md",
            "model.safetensors",
            "config.json",
            "merges.txt",
            "onnx/model.safetensors",
            "original/config.json",
            "pytorch_model.bin",
            "run.py",
            "special_tokens_map.json",
            "tokenizer.json",
            "consolidated.safetensors",
            "tokenizer_config.json",
            "chat_template.jinja",
            "generation_config.json",
            "vocab.json",
        ]);
        let selection = select(&listed).unwrap();
        let small = [
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        ];
        assert_eq!(selection.small, small);
        assert_eq!(selection.weights, Weights::Files(names(&["model.safetensors"])));
    }

    #[test]
    fn select_prefers_the_index() {
        let listed = names(&[
            "config.json",
            "model.safetensors",
            INDEX_FILE,
            "model-00001-of-00001.safetensors",
        ]);
        let selection = select(&listed).unwrap();
        assert_eq!(selection.small, ["config.json", INDEX_FILE]);
        assert_eq!(selection.weights, Weights::ByIndex);
    }

    #[test]
    fn select_takes_weights_under_other_names() {
        let listed = names(&["config.json", "b.safetensors", "a.safetensors", "x/c.safetensors"]);
        let expected = Weights::Files(names(&["a.safetensors", "b.safetensors"]));
        assert_eq!(select(&listed).unwrap().weights, expected);
    }

    #[test]
    fn select_refuses_what_cannot_be_run() {
        for listed in [&["model.safetensors"][..], &["config.json", "pytorch_model.bin"], &[]] {
            let error = select(&names(listed)).unwrap_err();
            assert!(matches!(error, SelectError::Unsuitable(_)), "{listed:?}: {error:?}");
        }
    }

    #[test]
    fn select_refuses_unsafe_names() {
        let unsafe_names = [
            "../config.json",
            "/etc/config.json",
            "a/../b.safetensors",
            "a//b.safetensors",
            "a\\b.safetensors",
            "./model.safetensors",
            "C:model.safetensors",
            "x\n.safetensors",
            "/model.safetensors",
            "..\\model.safetensors",
        ];
        for name in unsafe_names {
            let listed = names(&["config.json", "model.safetensors", name]);
            assert_eq!(select(&listed).unwrap_err(), SelectError::UnsafeName(name.to_owned()));
        }
        let odd_but_not_needed = names(&["config.json", "model.safetensors", "..\\notes.txt"]);
        assert!(select(&odd_but_not_needed).is_ok());
    }
}
