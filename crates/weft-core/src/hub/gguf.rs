//! Chooses a GGUF model among the files of a repository: by a tag such as `Q4_K_M`, by its file, or
//! without either.

use std::fs;
use std::path::Path;

use crate::weights::{GGUF_SUFFIX, PartName};

/// The tag that is taken if a repository has several models and none is named, as llama.cpp does.
const DEFAULT_TAG: &str = "Q4_K_M";

/// Folders of a repository are at most this deep.
const MAX_DEPTH: usize = 3;

/// Which GGUF model of a repository is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pick {
    /// The one whose file name ends in this tag, or whose folder has this name.
    Tag(String),
    /// The one in this file, or the one whose part it is.
    File(String),
}

/// Why no model can be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PickError {
    /// None fits; these are there.
    NoneFits(Vec<String>),
    /// All of these fit.
    SeveralFit(Vec<String>),
}

impl PickError {
    /// The error as a sentence about a repository.
    pub fn describe(&self, pick: Option<&Pick>) -> String {
        let wanted = match pick {
            Some(Pick::Tag(tag)) => format!("the tag {tag:?}"),
            Some(Pick::File(file)) => format!("the name {file:?}"),
            None => "a name without a tag".to_owned(),
        };
        match self {
            Self::NoneFits(there) if there.is_empty() => {
                format!("no GGUF file fits {wanted}: there are no GGUF files")
            }
            Self::NoneFits(there) => format!(
                "no GGUF file fits {wanted}; there are {}: name one as `org/name/FILE`",
                there.join(", ")
            ),
            Self::SeveralFit(fits) => format!(
                "several GGUF files fit {wanted}: {}; name one as `org/name/FILE`",
                fits.join(", ")
            ),
        }
    }
}

/// The files of the model that is meant: one, or all parts of a split one.
///
/// # Errors
/// If no model fits, or several do.
pub fn pick_gguf(listed: &[String], pick: Option<&Pick>) -> Result<Vec<String>, PickError> {
    let models = gguf_models(listed);
    let fits = |pick: &Pick| -> Vec<String> {
        models.iter().filter(|first| is_meant(first, pick)).cloned().collect()
    };
    let mut found = match pick {
        Some(pick) => fits(pick),
        None if models.len() > 1 => match fits(&Pick::Tag(DEFAULT_TAG.to_owned())) {
            fits if fits.len() == 1 => fits,
            _ => models.clone(),
        },
        None => models.clone(),
    };
    match (found.len(), found.pop()) {
        (1, Some(first)) => Ok(parts(&first)),
        (0, _) | (_, None) => Err(PickError::NoneFits(models)),
        (_, Some(last)) => Err(PickError::SeveralFit([found, vec![last]].concat())),
    }
}

/// The first file of every GGUF model, sorted. Projectors of images and statistics are no models.
pub fn gguf_models(listed: &[String]) -> Vec<String> {
    let is_model = |name: &&String| {
        let name = file_name(name).to_ascii_lowercase();
        name.ends_with(GGUF_SUFFIX) && !name.contains("mmproj") && !name.contains("imatrix")
    };
    let mut models: Vec<String> = listed
        .iter()
        .filter(is_model)
        .map(|name| parts(name).into_iter().next().unwrap_or_else(|| name.clone()))
        .collect();
    models.sort();
    models.dedup();
    models
}

/// The names of GGUF files in a folder and the folders in it, with `/` between names.
pub(super) fn gguf_files(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    collect(folder, "", MAX_DEPTH, &mut files);
    files
}

fn collect(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        if path.is_dir() && depth > 0 {
            collect(&path, &format!("{prefix}{name}/"), depth - 1, files);
        } else if name.to_ascii_lowercase().ends_with(GGUF_SUFFIX) && path.is_file() {
            files.push(format!("{prefix}{name}"));
        }
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// All files of the model that this file belongs to.
fn parts(file: &str) -> Vec<String> {
    let (folder, name) = file.split_at(file.len() - file_name(file).len());
    match PartName::parse(name) {
        Some(part) => part.files().map(|name| format!("{folder}{name}")).collect(),
        None => vec![file.to_owned()],
    }
}

fn is_meant(first: &str, pick: &Pick) -> bool {
    match pick {
        Pick::File(file) => parts(file).first().is_some_and(|wanted| wanted == first),
        Pick::Tag(tag) => {
            let tag = tag.to_ascii_lowercase();
            let path = first.to_ascii_lowercase();
            let mut names = path.rsplit('/');
            let file = names.next().unwrap_or_default();
            let stem = match PartName::parse(file) {
                Some(part) => part.model,
                None => file.strip_suffix(GGUF_SUFFIX).unwrap_or(file),
            };
            let before = stem.strip_suffix(&tag);
            names.next() == Some(&tag)
                || before.is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '.', '_']))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> Vec<String> {
        [
            "README.md",
            "Qwen3-8B-Q4_K_M.gguf",
            "Qwen3-8B-IQ4_XS.gguf",
            "qwen3-8b.q8_0.gguf",
            "BF16/Qwen3-8B-BF16-00001-of-00002.gguf",
            "BF16/Qwen3-8B-BF16-00002-of-00002.gguf",
            "mmproj-F16.gguf",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn tag(tag: &str) -> Result<Vec<String>, PickError> {
        pick_gguf(&listed(), Some(&Pick::Tag(tag.to_owned())))
    }

    #[test]
    fn tags_find_files_whatever_their_case() {
        assert_eq!(tag("Q4_K_M").unwrap(), ["Qwen3-8B-Q4_K_M.gguf"]);
        assert_eq!(tag("q4_k_m").unwrap(), ["Qwen3-8B-Q4_K_M.gguf"]);
        assert_eq!(tag("Q8_0").unwrap(), ["qwen3-8b.q8_0.gguf"]);
        let parts = ["1", "2"].map(|n| format!("BF16/Qwen3-8B-BF16-0000{n}-of-00002.gguf"));
        assert_eq!(tag("bf16").unwrap(), parts);
        let file = |name: &str| pick_gguf(&listed(), Some(&Pick::File(name.to_owned())));
        assert_eq!(file("Qwen3-8B-IQ4_XS.gguf").unwrap(), ["Qwen3-8B-IQ4_XS.gguf"]);
        assert_eq!(file(&parts[1]).unwrap(), parts);
        assert_eq!(pick_gguf(&listed(), None).unwrap(), ["Qwen3-8B-Q4_K_M.gguf"]);
        assert_eq!(pick_gguf(&listed()[3..4], None).unwrap(), ["qwen3-8b.q8_0.gguf"]);
    }

    #[test]
    fn what_there_is_is_listed_if_none_or_several_fit() {
        let pick = Pick::Tag("Q2_K".to_owned());
        let error = tag("Q2_K").unwrap_err().describe(Some(&pick));
        assert!(error.contains("\"Q2_K\"; there are BF16/Qwen3-8B-BF16-00001-of"), "{error}");
        assert!(error.contains("IQ4_XS.gguf") && !error.contains("mmproj"), "{error}");
        // Not the end of a tag: `_XS` is a part of `IQ4_XS`.
        assert_eq!(tag("4_XS"), tag("Q2_K"));
        let several = ["a-Q8_0.gguf", "b-Q8_0.gguf"].map(str::to_owned);
        let error = pick_gguf(&several, Some(&Pick::Tag("Q8_0".to_owned()))).unwrap_err();
        assert_eq!(error, PickError::SeveralFit(several.to_vec()));
        assert!(pick_gguf(&several, None).is_err());
        assert_eq!(pick_gguf(&[], None), Err(PickError::NoneFits(Vec::new())));
    }
}
