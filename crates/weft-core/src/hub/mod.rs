//! Model references and the Hugging Face cache layout.
//!
//! A user names a model by a folder, a GGUF file, or `org/name[:TAG][@revision]`. This module finds
//! the hub cache and reads cached repositories, `models--org--name/{refs,snapshots,blobs}`: the
//! layout that `huggingface_hub` and `hf-hub` write, so that weft needs no second store. It has no
//! network access. If a model is missing, the error says how to get it.

mod env;
mod gguf;
mod list;
mod reference;

#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::weights;

pub use crate::weights::{INDEX_FILE, SINGLE_WEIGHTS_FILE, is_plain_file_name};
pub use env::{HubEnv, Token};
pub use gguf::{Pick, PickError, gguf_models, pick_gguf};
pub use list::{CachedModel, CachedRevision, list};
pub use reference::{ModelRef, RepoRef};

/// The file that every model folder contains.
pub const CONFIG_FILE: &str = "config.json";

/// Hex digits of a full commit sha.
const SHA_LEN: usize = 40;
/// A shorter prefix than git's abbreviation is probably a branch name.
const MIN_SHA_PREFIX: usize = 7;

/// Errors of a model reference, the cache, or its environment.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The text is neither a folder nor `org/name`.
    #[error(
        "{text:?} is not a model: expected an existing folder or GGUF file, or \
         `org/name[:TAG][@revision]` such as `Qwen/Qwen3-0.6B` ({reason})"
    )]
    InvalidReference {
        /// The user's text.
        text: String,
        /// The rule that the text breaks.
        reason: &'static str,
    },
    /// The part after `@` is not a branch, tag or commit name.
    #[error("{text:?} is not a revision: {reason}; expected a branch, a tag or a commit sha")]
    InvalidRevision {
        /// The text after the `@`.
        text: String,
        /// The rule that the text breaks.
        reason: &'static str,
    },
    /// The text is a path, and there is neither a folder nor a file.
    #[error("there is no model at {path:?}; check the path, or name a model as `org/name`")]
    FolderNotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// The path is a file.
    #[error(
        "{path:?} is a file; name a GGUF file, or the folder that holds config.json and \
         *.safetensors"
    )]
    NotAFolder {
        /// The path as given.
        path: PathBuf,
    },
    /// The repository is not in the cache.
    #[error("{repo} is not in the hub cache: looked for {looked_for:?}; run `weft pull {pull}`")]
    NotCached {
        /// `org/name`.
        repo: String,
        /// The folder that would hold it.
        looked_for: PathBuf,
        /// The argument that `weft pull` needs.
        pull: String,
    },
    /// The repository is in the cache, but at other revisions.
    #[error(
        "{repo} is in the hub cache, but not at revision {revision:?}: looked in {looked_in:?}, \
         which has {}; run `weft pull {pull}`",
        list_or_none(known)
    )]
    RevisionNotCached {
        /// `org/name`.
        repo: String,
        /// The requested revision.
        revision: String,
        /// The repository's folder in the cache.
        looked_in: PathBuf,
        /// The cached revisions: refs, then commits.
        known: Vec<String>,
        /// The argument that `weft pull` needs.
        pull: String,
    },
    /// An abbreviated commit sha matches several snapshots.
    #[error(
        "revision {revision:?} of {repo} matches {} cached commits ({}); write more digits",
        candidates.len(), candidates.join(", ")
    )]
    AmbiguousRevision {
        /// `org/name`.
        repo: String,
        /// The given digits.
        revision: String,
        /// All commits that start with them.
        candidates: Vec<String>,
    },
    /// The name fits several GGUF files.
    #[error("{repo}: {reason}")]
    WhichFile {
        /// `org/name`.
        repo: String,
        /// The files, and what to do.
        reason: String,
    },
    /// The snapshot lacks required files.
    #[error(
        "{repo} is incomplete: {snapshot:?} lacks {}; run `weft pull {pull}` to fetch the rest",
        missing.join(", ")
    )]
    Incomplete {
        /// `org/name`.
        repo: String,
        /// The snapshot folder.
        snapshot: PathBuf,
        /// The missing files.
        missing: Vec<String>,
        /// The argument that `weft pull` needs.
        pull: String,
    },
    /// A ref file does not contain a commit.
    #[error("{path:?} holds {text:?}, not a commit sha of 40 hex digits; run `weft pull {pull}`")]
    BadRef {
        /// The ref file.
        path: PathBuf,
        /// Its content.
        text: String,
        /// The argument that `weft pull` needs.
        pull: String,
    },
    /// The weight index cannot be used.
    #[error("{path:?} is not a usable weight index: {reason}; delete it and pull the model again")]
    BadIndex {
        /// The index file.
        path: PathBuf,
        /// Why it cannot be used.
        reason: String,
    },
    /// No environment variable says where the cache is.
    #[error("no folder for the hub cache: set HF_HOME or HF_HUB_CACHE (HOME is not set either)")]
    NoHome,
    /// `HF_ENDPOINT` is not a URL.
    #[error("HF_ENDPOINT is {value:?}; expected http://host or https://host[/path]")]
    BadEndpoint {
        /// The value as given.
        value: String,
    },
    /// The token cannot be sent.
    #[error("the token from {source_name} has invalid characters; set it again")]
    BadToken {
        /// Where the token came from; its value is never shown.
        source_name: String,
    },
    /// A file of the cache cannot be read.
    #[error("cannot read {path:?}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl HubError {
    /// Whether files are missing that a download would bring.
    pub fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::NotCached { .. } | Self::RevisionNotCached { .. } | Self::Incomplete { .. }
        )
    }

    fn io(path: &Path, source: io::Error) -> Self {
        HubError::Io { path: path.to_owned(), source }
    }
}

fn list_or_none(names: &[String]) -> String {
    if names.is_empty() { "no revision".to_owned() } else { names.join(", ") }
}

/// Finds a model: its folder or GGUF file itself, or a repository's cached snapshot or GGUF file.
///
/// # Errors
/// If the repository or the revision is not cached, or the snapshot lacks files.
pub fn resolve(reference: &ModelRef, env: &HubEnv) -> Result<PathBuf, HubError> {
    let repo = match reference {
        ModelRef::Folder(path) | ModelRef::File(path) => return Ok(path.clone()),
        ModelRef::Repo(repo) => repo,
    };
    let folder = repo.cache_folder(env);
    if !folder.is_dir() {
        return Err(HubError::NotCached {
            repo: repo.id(),
            looked_for: folder,
            pull: repo.to_string(),
        });
    }
    let snapshot = find_snapshot(repo, &folder)?;
    find_model(repo, &snapshot)
}

/// The model of a snapshot: the snapshot itself, or the first file of a GGUF model in it.
///
/// # Errors
/// If the snapshot lacks files, or several GGUF models fit the name.
pub fn find_model(repo: &RepoRef, snapshot: &Path) -> Result<PathBuf, HubError> {
    let incomplete = |missing: Vec<String>| HubError::Incomplete {
        repo: repo.id(),
        snapshot: snapshot.to_owned(),
        missing,
        pull: repo.to_string(),
    };
    let files = gguf::gguf_files(snapshot);
    if repo.pick().is_none() && (files.is_empty() || has_safetensors(snapshot)) {
        let missing = missing_files(snapshot)?;
        return if missing.is_empty() { Ok(snapshot.to_owned()) } else { Err(incomplete(missing)) };
    }
    let parts = match pick_gguf(&files, repo.pick()) {
        Ok(parts) => parts,
        Err(PickError::NoneFits(_)) => {
            let missing = match repo.pick() {
                Some(Pick::File(file)) => file.clone(),
                Some(Pick::Tag(tag)) => format!("a GGUF file {tag}"),
                None => "a GGUF file".to_owned(),
            };
            return Err(incomplete(vec![missing]));
        }
        Err(error) => {
            let reason = error.describe(repo.pick());
            return Err(HubError::WhichFile { repo: repo.id(), reason });
        }
    };
    let missing: Vec<String> =
        parts.iter().filter(|part| !snapshot.join(part).is_file()).cloned().collect();
    match &parts[..] {
        [first, ..] if missing.is_empty() => Ok(snapshot.join(first)),
        _ => Err(incomplete(missing)),
    }
}

fn has_safetensors(snapshot: &Path) -> bool {
    snapshot.join(INDEX_FILE).is_file() || !weights::other_weight_files(snapshot).is_empty()
}

/// A ref takes precedence over a commit of the same name, as in git and `huggingface_hub`.
fn find_snapshot(repo: &RepoRef, folder: &Path) -> Result<PathBuf, HubError> {
    let snapshots = folder.join("snapshots");
    let ref_path = folder.join("refs").join(repo.revision());
    let sha = if ref_path.is_file() {
        Some(read_ref(&ref_path, repo)?)
    } else {
        sha_by_prefix(repo, &snapshots)?
    };
    sha.map(|sha| snapshots.join(sha)).filter(|snapshot| snapshot.is_dir()).ok_or_else(|| {
        HubError::RevisionNotCached {
            repo: repo.id(),
            revision: repo.revision().to_owned(),
            looked_in: folder.to_owned(),
            known: known_revisions(folder),
            pull: repo.to_string(),
        }
    })
}

fn read_ref(path: &Path, repo: &RepoRef) -> Result<String, HubError> {
    let text = read_short(path).map_err(|e| HubError::io(path, e))?;
    if is_commit_sha(&text) {
        Ok(text)
    } else {
        Err(HubError::BadRef { path: path.to_owned(), text, pull: repo.to_string() })
    }
}

/// Reads the start of a file that should contain only a sha, and trims it.
fn read_short(path: &Path) -> io::Result<String> {
    let mut head = Vec::new();
    fs::File::open(path)?.take(128).read_to_end(&mut head)?;
    Ok(String::from_utf8_lossy(&head).trim().to_owned())
}

fn sha_by_prefix(repo: &RepoRef, snapshots: &Path) -> Result<Option<String>, HubError> {
    let prefix = repo.revision().to_ascii_lowercase();
    let is_prefix = (MIN_SHA_PREFIX..=SHA_LEN).contains(&prefix.len())
        && prefix.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_prefix {
        return Ok(None);
    }
    let mut fits = snapshot_shas(snapshots);
    fits.retain(|sha| sha.starts_with(&prefix));
    if fits.len() > 1 {
        return Err(HubError::AmbiguousRevision {
            repo: repo.id(),
            revision: repo.revision().to_owned(),
            candidates: fits,
        });
    }
    Ok(fits.pop())
}

/// The commits that have a snapshot folder, sorted. Empty if the folder cannot be read.
fn snapshot_shas(snapshots: &Path) -> Vec<String> {
    let mut shas: Vec<String> = fs::read_dir(snapshots)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_commit_sha(name))
        .collect();
    shas.sort();
    shas
}

/// The names of the cached snapshots: refs that point to one, then commits.
fn known_revisions(folder: &Path) -> Vec<String> {
    let shas = snapshot_shas(&folder.join("snapshots"));
    let mut known: Vec<String> = list::read_refs(&folder.join("refs"))
        .into_iter()
        .filter_map(|(name, sha)| shas.contains(&sha).then_some(name))
        .collect();
    known.extend(shas);
    known
}

/// Whether the text is a full commit sha as the hub writes it: 40 lower-case hex digits.
pub fn is_commit_sha(text: &str) -> bool {
    text.len() == SHA_LEN && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The required files that a folder lacks: `config.json` and the weights. If there is an index, the
/// weights are its shards. A link to a deleted blob counts as missing. A folder that holds GGUF
/// models instead lacks only their missing parts.
///
/// # Errors
/// If there is an index and it cannot be used.
pub(crate) fn missing_files(folder: &Path) -> Result<Vec<String>, HubError> {
    let mut missing = Vec::new();
    let files = gguf::gguf_files(folder);
    if !files.is_empty() && !has_safetensors(folder) {
        for model in gguf_models(&files) {
            let parts = pick_gguf(&files, Some(&Pick::File(model))).unwrap_or_default();
            missing.extend(parts.into_iter().filter(|part| !folder.join(part).is_file()));
        }
        return Ok(missing);
    }
    if !folder.join(CONFIG_FILE).is_file() {
        missing.push(CONFIG_FILE.to_owned());
    }
    let index = folder.join(INDEX_FILE);
    if index.is_file() {
        let shards = shards_of_index(&index)?;
        missing.extend(shards.into_iter().filter(|shard| !folder.join(shard).is_file()));
    } else if weights::other_weight_files(folder).is_empty() {
        missing.push(SINGLE_WEIGHTS_FILE.to_owned());
    }
    Ok(missing)
}

/// The weight files that an index names.
///
/// # Errors
/// If the file cannot be read, is not an index, or names a file outside its folder.
pub fn shards_of_index(path: &Path) -> Result<Vec<String>, HubError> {
    weights::shards_of_index(path)
        .map_err(|error| HubError::BadIndex { path: path.to_owned(), reason: error.to_string() })
}
