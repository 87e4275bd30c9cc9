//! Parses the name of a model.
//!
//! It applies the hub's rules for names strictly, because a name becomes a path in the cache and a
//! part of a URL. It does not read the cache.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{HubEnv, HubError, Pick, is_plain_file_name};
use crate::model::is_gguf;
use crate::weights::GGUF_SUFFIX;

/// The branch if no revision is named.
const DEFAULT_REVISION: &str = "main";
/// The hub's limit for an organisation's and for a model's name.
const MAX_NAME_LEN: usize = 96;
/// Longer names do not fit a file name on common systems.
const MAX_REVISION_LEN: usize = 200;

/// A model reference from a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelRef {
    /// An existing folder.
    Folder(PathBuf),
    /// An existing GGUF file.
    File(PathBuf),
    /// A repository on the hub.
    Repo(RepoRef),
}

/// `org/name@revision`, `org/name:TAG@revision` or `org/name/FILE.gguf@revision`, every part
/// checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoRef {
    org: String,
    name: String,
    pick: Option<Pick>,
    revision: String,
}

impl ModelRef {
    /// Parses a reference. An existing folder or file takes precedence over a repository of the
    /// same name.
    ///
    /// # Errors
    /// If the text is neither a folder, nor a GGUF file, nor a valid name of a repository.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let path = Path::new(text);
        if !text.is_empty() && path.is_dir() {
            return Ok(ModelRef::Folder(path.to_owned()));
        }
        if path.is_file() && is_gguf(path) {
            return Ok(ModelRef::File(path.to_owned()));
        }
        if !text.is_empty() && path.exists() {
            return Err(HubError::NotAFolder { path: path.to_owned() });
        }
        if looks_like_path(text) {
            return Err(HubError::FolderNotFound { path: path.to_owned() });
        }
        RepoRef::parse(text).map(ModelRef::Repo)
    }
}

/// Whether the user meant a path: a repository name cannot look like this.
fn looks_like_path(text: &str) -> bool {
    let id = text.split('@').next().unwrap_or_default();
    let is_file = id.to_ascii_lowercase().ends_with(GGUF_SUFFIX);
    text.starts_with(['/', '.', '~'])
        || id.contains('\\')
        || (is_file && id.matches('/').count() < 2)
        || (!is_file && id.matches('/').count() > 1)
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelRef::Folder(path) | ModelRef::File(path) => write!(f, "{}", path.display()),
            ModelRef::Repo(repo) => write!(f, "{repo}"),
        }
    }
}

impl RepoRef {
    /// Parses `org/name[:TAG][@revision]` or `org/name/FILE.gguf[@revision]`, never as a path.
    ///
    /// # Errors
    /// If a part is missing or breaks the hub's rules for names.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let invalid = |reason| HubError::InvalidReference { text: text.to_owned(), reason };
        let (id, revision) = match text.split_once('@') {
            Some((id, revision)) => (id, revision),
            None => (text, DEFAULT_REVISION),
        };
        let (org, rest) = id.split_once('/').ok_or_else(|| {
            invalid(if id.is_empty() { "it is empty" } else { "the organisation is missing" })
        })?;
        let (name, pick) = match (rest.split_once('/'), rest.split_once(':')) {
            (Some((name, file)), _) => {
                check_file(file).map_err(invalid)?;
                (name, Some(Pick::File(file.to_owned())))
            }
            (None, Some((name, tag))) => {
                check_tag(tag).map_err(invalid)?;
                (name, Some(Pick::Tag(tag.to_owned())))
            }
            (None, None) => (rest, None),
        };
        for part in [org, name] {
            check_name(part).map_err(invalid)?;
        }
        if name.ends_with(".git") {
            return Err(invalid("a name cannot end in `.git`"));
        }
        check_revision(revision)
            .map_err(|reason| HubError::InvalidRevision { text: revision.to_owned(), reason })?;
        let (org, name, revision) = (org.to_owned(), name.to_owned(), revision.to_owned());
        Ok(RepoRef { org, name, pick, revision })
    }

    /// Parses the name of a repository's folder in the cache, `models--org--name`.
    pub(super) fn from_cache_folder(folder_name: &str) -> Option<Self> {
        let (org, name) = folder_name.strip_prefix("models--")?.split_once("--")?;
        RepoRef::parse(&format!("{org}/{name}")).ok()
    }

    /// `org/name`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.org, self.name)
    }

    /// Which GGUF model of the repository is meant, if the name says so.
    pub fn pick(&self) -> Option<&Pick> {
        self.pick.as_ref()
    }

    /// The branch, tag or commit; `main` by default.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The name of this repository's folder in the cache: `models--org--name`.
    pub fn cache_folder_name(&self) -> String {
        format!("models--{}--{}", self.org, self.name)
    }

    /// This repository's folder in the cache, whether or not it exists.
    pub fn cache_folder(&self, env: &HubEnv) -> PathBuf {
        env.cache.join(self.cache_folder_name())
    }
}

/// The short form: without `@main`.
impl fmt::Display for RepoRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)?;
        match &self.pick {
            Some(Pick::Tag(tag)) => write!(f, ":{tag}")?,
            Some(Pick::File(file)) => write!(f, "/{file}")?,
            None => {}
        }
        if self.revision == DEFAULT_REVISION { Ok(()) } else { write!(f, "@{}", self.revision) }
    }
}

/// A tag is compared with the ends of file names.
fn check_tag(tag: &str) -> Result<(), &'static str> {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if tag.is_empty() || tag.len() > MAX_NAME_LEN || !tag.bytes().all(is_allowed) {
        return Err("a tag after `:` has 1 to 96 ASCII letters, digits, `-`, `_` and `.`");
    }
    Ok(())
}

/// A file name becomes a path in the cache.
fn check_file(file: &str) -> Result<(), &'static str> {
    if !file.split('/').all(is_plain_file_name) || !file.to_ascii_lowercase().ends_with(GGUF_SUFFIX)
    {
        return Err("only a GGUF file can follow `org/name/`");
    }
    Ok(())
}

fn check_name(part: &str) -> Result<(), &'static str> {
    if part.is_empty() {
        return Err("the organisation or the name is empty");
    }
    if part.len() > MAX_NAME_LEN {
        return Err("a name has at most 96 characters");
    }
    if !part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
        return Err("a name has only ASCII letters, digits, `-`, `_` and `.`");
    }
    if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) {
        return Err("a name cannot start or end with `-` or `.`");
    }
    if part.contains("--") || part.contains("..") {
        return Err("a name cannot contain `--` or `..`");
    }
    Ok(())
}

/// git's rules for refs, restricted to names that are also safe as a path below `refs/`.
fn check_revision(revision: &str) -> Result<(), &'static str> {
    if revision.is_empty() {
        return Err("it is empty");
    }
    if revision.len() > MAX_REVISION_LEN {
        return Err("it has more than 200 characters");
    }
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.+/".contains(&b);
    if !revision.bytes().all(is_allowed) {
        return Err("only ASCII letters, digits, `-`, `_`, `.`, `+` and `/` are allowed");
    }
    if revision.starts_with('-') {
        return Err("it cannot start with `-`");
    }
    for part in revision.split('/') {
        if part.is_empty() || part.starts_with('.') || part.ends_with('.') || part.contains("..") {
            return Err("a part between slashes is empty, or has a misplaced `.`");
        }
    }
    Ok(())
}
