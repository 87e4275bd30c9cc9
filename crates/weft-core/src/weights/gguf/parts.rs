//! Models that are split into several GGUF files: `name-00001-of-00003.gguf`.

use std::path::{Path, PathBuf};

use super::container::{self, Container};
use crate::weights::WeightsError;

/// Real models have below 100 parts.
const PART_LIMIT: u32 = 1000;

/// The end of the name of a GGUF file.
pub const GGUF_SUFFIX: &str = ".gguf";

/// A file name that says which part of a split model it is.
#[derive(Debug, PartialEq, Eq)]
pub struct PartName<'a> {
    /// The name before the part's number.
    pub model: &'a str,
    /// The number of the part, from 1.
    pub number: u32,
    /// The number of parts.
    pub count: u32,
}

impl<'a> PartName<'a> {
    /// Parses a file name; `None` if it is not that of a part.
    pub fn parse(file: &'a str) -> Option<Self> {
        let number = |digits: &str| {
            (digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit()))
                .then(|| digits.parse::<u32>().ok())
                .flatten()
        };
        let (rest, count) = file.strip_suffix(GGUF_SUFFIX)?.rsplit_once("-of-")?;
        let (model, part) = rest.rsplit_once('-')?;
        let (part, count) = (number(part)?, number(count)?);
        let is_valid = !model.is_empty() && part >= 1 && part <= count && count <= PART_LIMIT;
        is_valid.then_some(Self { model, number: part, count })
    }

    /// The file names of all parts.
    pub fn files(&self) -> impl Iterator<Item = String> {
        let (model, count) = (self.model.to_owned(), self.count);
        (1..=count).map(move |part| format!("{model}-{part:05}-of-{count:05}{GGUF_SUFFIX}"))
    }
}

/// Opens a file, and the other parts if it is the first part of a split model.
pub(super) fn open(path: &Path) -> Result<Vec<Container>, WeightsError> {
    let fault = |path: &Path, reason: String| {
        Err(WeightsError::Gguf { file: path.display().to_string(), reason })
    };
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(part) = name.and_then(PartName::parse) else {
        let container = container::open(path)?;
        let (_, count) = numbers(&container)?;
        if count > 1 {
            let reason = format!(
                "it is a part of a model in {count} files, but its name does not end in \
                 -00001-of-{count:05}.gguf; give all parts their original names"
            );
            return fault(path, reason);
        }
        return Ok(vec![container]);
    };
    let files: Vec<PathBuf> = part.files().map(|file| path.with_file_name(file)).collect();
    if part.number != 1 {
        let reason = format!(
            "it is part {} of {}; name the first part, {}",
            part.number,
            part.count,
            files[0].display()
        );
        return fault(path, reason);
    }
    let missing: Vec<String> = files
        .iter()
        .filter(|file| !file.is_file())
        .filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned()))
        .collect();
    if !missing.is_empty() {
        let reason = format!(
            "the model has {} parts, and these are missing beside it: {}; download them too",
            part.count,
            missing.join(", ")
        );
        return fault(path, reason);
    }
    let mut parts = Vec::new();
    for (number, file) in (0_u64..).zip(&files) {
        let container = container::open(file)?;
        let found = numbers(&container)?;
        if found != (number, u64::from(part.count)) {
            let reason = format!(
                "its name says part {} of {}, but its metadata says part {} of {}; download it \
                 again",
                number + 1,
                part.count,
                found.0.saturating_add(1),
                found.1
            );
            return fault(file, reason);
        }
        parts.push(container);
    }
    check_tensors(&parts)?;
    Ok(parts)
}

/// The number of a part, from 0, and the number of parts, as its metadata says. A file that is not
/// split is part 0 of 1.
fn numbers(container: &Container) -> Result<(u64, u64), WeightsError> {
    let count = |key: &str, absent: u64| {
        container.metadata.count(key).map(|count| count.unwrap_or(absent)).map_err(|wrong| {
            let reason = format!("`{}` is {}, not {}", wrong.key, wrong.found, wrong.expected);
            WeightsError::Gguf { file: container.name.clone(), reason }
        })
    };
    // The first version of the splitting tool wrote 0 for "not split".
    Ok((count("split.no", 0)?, count("split.count", 1)?.max(1)))
}

fn check_tensors(parts: &[Container]) -> Result<(), WeightsError> {
    let found: usize = parts.iter().map(|part| part.tensors.len()).sum();
    let expected = parts.first().map(|part| part.metadata.count("split.tensors.count"));
    match expected {
        Some(Ok(Some(expected))) if expected != found as u64 => Err(WeightsError::Gguf {
            file: parts[0].name.clone(),
            reason: format!(
                "its parts have {found} tensors, but its metadata says {expected}; download them \
                 again"
            ),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        let name = PartName::parse("a-b-00002-of-00003.gguf").unwrap();
        assert_eq!(name, PartName { model: "a-b", number: 2, count: 3 });
        assert_eq!(name.files().next().as_deref(), Some("a-b-00001-of-00003.gguf"));
        assert_eq!(name.files().count(), 3);
        for other in [
            "a.gguf",
            "a-00000-of-00003.gguf",
            "a-00004-of-00003.gguf",
            "a-1-of-3.gguf",
            "-00001-of-00003.gguf",
            "a-00001-of-99999.gguf",
            "a-00001-of-00003.safetensors",
            "a-+0001-of-00003.gguf",
        ] {
            assert_eq!(PartName::parse(other), None, "{other}");
        }
    }
}
