//! Chooses the files of a repository that weft needs.
//!
//! These are configuration, tokenizer, template and safetensors weights at the top of the
//! repository, or one GGUF model; never pickled weights, never code. Names come from the network
//! and become paths, so each chosen name is checked first.

use weft_core::hub::{self, CONFIG_FILE, INDEX_FILE, Pick, SINGLE_WEIGHTS_FILE};

/// Downloaded if they exist. `config.json` comes first, because nothing works without it.
const SMALL_FILES: [&str; 9] = [
    CONFIG_FILE,
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
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

/// Chooses from the names that the hub lists: the GGUF model that is meant, or that is there
/// instead of safetensors; otherwise the safetensors and the files beside them.
pub(super) fn select(listed: &[String], pick: Option<&Pick>) -> Result<Selection, SelectError> {
    let is_only_gguf =
        || !listed.iter().any(|name| is_weights(name)) && !hub::gguf_models(listed).is_empty();
    if pick.is_some() || is_only_gguf() {
        let files = hub::pick_gguf(listed, pick)
            .map_err(|error| SelectError::Unsuitable(error.describe(pick)))?;
        if let Some(name) = files.iter().find(|name| !is_safe(name)) {
            return Err(SelectError::UnsafeName(name.clone()));
        }
        if let Some(part) = files.iter().find(|part| !listed.contains(part)) {
            return Err(SelectError::Unsuitable(format!("its part {part:?} is missing")));
        }
        return Ok(Selection { small: Vec::new(), weights: Weights::Files(files) });
    }
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
        let other = listed.iter().find(|n| n.ends_with(".bin"));
        let other = other.map(|n| format!(" (only others, such as {n:?})")).unwrap_or_default();
        return Err(SelectError::Unsuitable(format!(
            "it has no *.safetensors or *.gguf weights{other}; choose a repository that has them"
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
            "hf_quant_config.json",
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
        let selection = select(&listed, None).unwrap();
        let small = [
            "config.json",
            "hf_quant_config.json",
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
        let selection = select(&listed, None).unwrap();
        assert_eq!(selection.small, ["config.json", INDEX_FILE]);
        assert_eq!(selection.weights, Weights::ByIndex);
    }

    #[test]
    fn select_takes_weights_under_other_names() {
        let listed = names(&["config.json", "b.safetensors", "a.safetensors", "x/c.safetensors"]);
        let expected = Weights::Files(names(&["a.safetensors", "b.safetensors"]));
        assert_eq!(select(&listed, None).unwrap().weights, expected);
    }

    #[test]
    fn select_takes_one_gguf_model_and_nothing_else() {
        let listed = names(&[
            "config.json",
            "a-Q8_0.gguf",
            "BF16/a-BF16-00001-of-00002.gguf",
            "BF16/a-BF16-00002-of-00002.gguf",
            "../b-F16.gguf",
            "c-Q5_0-00001-of-00002.gguf",
        ]);
        let tag = |tag: &str| select(&listed, Some(&Pick::Tag(tag.to_owned())));
        let selection = tag("q8_0").unwrap();
        assert_eq!(selection.small, [""; 0]);
        assert_eq!(selection.weights, Weights::Files(names(&["a-Q8_0.gguf"])));
        assert_eq!(tag("bf16").unwrap().weights, Weights::Files(listed[2..4].to_vec()));
        assert_eq!(tag("F16").unwrap_err(), SelectError::UnsafeName("../b-F16.gguf".to_owned()));
        let SelectError::Unsuitable(reason) = tag("Q5_0").unwrap_err() else { panic!() };
        assert!(reason.contains("c-Q5_0-00002-of-00002.gguf"), "{reason}");
        let SelectError::Unsuitable(reason) = tag("Q2_K").unwrap_err() else { panic!() };
        assert!(reason.contains("a-Q8_0.gguf"), "{reason}");
        assert_eq!(select(&listed[..2], None).unwrap(), selection);
        let both = names(&["config.json", "model.safetensors", "a-Q8_0.gguf"]);
        assert_eq!(select(&both, None).unwrap().small, ["config.json"]);
    }

    #[test]
    fn select_refuses_what_cannot_be_run() {
        for listed in [&["model.safetensors"][..], &["config.json", "pytorch_model.bin"], &[]] {
            let error = select(&names(listed), None).unwrap_err();
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
            assert_eq!(
                select(&listed, None).unwrap_err(),
                SelectError::UnsafeName(name.to_owned())
            );
        }
        let odd_but_not_needed = names(&["config.json", "model.safetensors", "..\\notes.txt"]);
        assert!(select(&odd_but_not_needed, None).is_ok());
    }
}
