//! Finds the weight files in a folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::WeightsError;

/// The list of shards, if there are several.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// The weights, if they are in one file.
pub const SINGLE_WEIGHTS_FILE: &str = "model.safetensors";

/// The name of a shard, numbered from 1.
pub(super) fn shard_name(number: usize, count: usize) -> String {
    format!("model-{number:05}-of-{count:05}.safetensors")
}

const INDEX_LIMIT: u64 = 64 << 20;
const SHARD_LIMIT: usize = 4096;

/// The weight files of a folder: the shards of the index, else the single file, else all
/// safetensors files.
pub(super) fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    let index = folder.join(INDEX_FILE);
    if index.exists() {
        let shards = shards_of_index(&index)?;
        return Ok(shards.iter().map(|name| folder.join(name)).collect());
    }
    let single = folder.join(SINGLE_WEIGHTS_FILE);
    if single.exists() {
        return Ok(vec![single]);
    }
    let files = other_weight_files(folder);
    if files.is_empty() {
        return Err(WeightsError::NoFiles { folder: folder.display().to_string() });
    }
    Ok(files)
}

/// Weight files under unusual names, sorted.
pub(crate) fn other_weight_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files: BTreeSet<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "safetensors") && path.is_file())
        .collect();
    files.into_iter().collect()
}

/// The weight files that an index names: sorted, each once, each in the same folder as the index.
pub fn shards_of_index(index: &Path) -> Result<Vec<String>, WeightsError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let file = || index.display().to_string();
    let broken = |reason: String| WeightsError::Index { file: file(), reason };
    let failed = |source| WeightsError::Read { file: file(), source };
    let opened = File::open(index).map_err(failed)?;
    let bytes = opened.metadata().map_err(failed)?.len();
    if bytes > INDEX_LIMIT {
        return Err(broken(format!("it has {bytes} bytes, and the limit is {INDEX_LIMIT}")));
    }
    let mut json = Vec::new();
    opened.take(INDEX_LIMIT).read_to_end(&mut json).map_err(failed)?;
    let parsed: Index = serde_json::from_slice(&json).map_err(|e| broken(e.to_string()))?;

    let shards: BTreeSet<String> = parsed.weight_map.into_values().collect();
    if shards.is_empty() || shards.len() > SHARD_LIMIT {
        return Err(broken(format!("it names {} files, not 1 to {SHARD_LIMIT}", shards.len())));
    }
    match shards.iter().find(|name| !is_plain_file_name(name) || !name.ends_with(".safetensors")) {
        Some(name) => Err(broken(format!("{name:?} is not a weight file in the same folder"))),
        None => Ok(shards.into_iter().collect()),
    }
}

/// Whether the text names a file inside a folder, and never one outside, on any system.
pub fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name != "."
        && name != ".."
        && !name.chars().any(|c| matches!(c, '/' | '\\' | ':') || c.is_control())
}
