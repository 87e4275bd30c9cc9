//! Lists the cached models.
//!
//! It walks the cache for `weft list`: models, their revisions, and their sizes with each blob
//! counted once. It changes nothing, and ignores everything outside the hub's layout.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::gguf::gguf_files;
use super::{
    HubEnv, HubError, RepoRef, gguf_models, is_commit_sha, missing_files, read_short, snapshot_shas,
};

/// A repository in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// `org/name`.
    pub id: String,
    /// Its snapshots, by commit.
    pub revisions: Vec<CachedRevision>,
    /// Bytes of the whole repository on disk. Blobs shared by revisions count once; unfinished
    /// downloads count too.
    pub size_bytes: u64,
    /// When one of its files last changed.
    pub last_modified: Option<SystemTime>,
}

/// One snapshot of a cached repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedRevision {
    /// The commit.
    pub sha: String,
    /// The branches and tags that point to it, sorted.
    pub refs: Vec<String>,
    /// The size of its files, each blob counted once.
    pub size_bytes: u64,
    /// When one of its files last changed.
    pub last_modified: Option<SystemTime>,
    /// The GGUF models in it: the file of each, or its first part.
    pub gguf: Vec<String>,
    /// Why the snapshot cannot run: missing files, or an index that cannot be read. Empty if the
    /// snapshot is complete.
    pub missing: Vec<String>,
}

/// Lists the models in the cache, sorted by name. If the cache does not exist, the list is empty.
///
/// # Errors
/// If the cache's folder cannot be read.
pub fn list(env: &HubEnv) -> Result<Vec<CachedModel>, HubError> {
    let entries = match fs::read_dir(&env.cache) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(HubError::io(&env.cache, e)),
    };
    let mut models: Vec<CachedModel> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let repo = RepoRef::from_cache_folder(&name)?;
            let folder = env.cache.join(name);
            folder.is_dir().then(|| describe_model(&repo, &folder))
        })
        .collect();
    models.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(models)
}

fn describe_model(repo: &RepoRef, folder: &Path) -> CachedModel {
    let refs = read_refs(&folder.join("refs"));
    let snapshots = folder.join("snapshots");
    let mut files = FileSet::default();
    let revisions = snapshot_shas(&snapshots)
        .into_iter()
        .map(|sha| {
            let snapshot = snapshots.join(&sha);
            files.add_tree(&snapshot);
            describe_revision(sha, &snapshot, &refs)
        })
        .collect();
    files.add_tree(&folder.join("blobs"));
    CachedModel {
        id: repo.id(),
        revisions,
        size_bytes: files.size_bytes,
        last_modified: files.last_modified,
    }
}

fn describe_revision(sha: String, snapshot: &Path, refs: &[(String, String)]) -> CachedRevision {
    let mut files = FileSet::default();
    files.add_tree(snapshot);
    let names = refs.iter().filter(|(_, target)| *target == sha).map(|(name, _)| name.clone());
    CachedRevision {
        refs: names.collect(),
        size_bytes: files.size_bytes,
        last_modified: files.last_modified,
        gguf: gguf_models(&gguf_files(snapshot)),
        missing: missing_files(snapshot).unwrap_or_else(|error| vec![error.to_string()]),
        sha,
    }
}

/// All refs below a `refs` folder as (name, commit), sorted; names may have slashes (`refs/pr/1`).
pub(super) fn read_refs(refs: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk(refs, &mut |path| {
        let name = path.strip_prefix(refs).ok().and_then(Path::to_str);
        if let (Some(name), Ok(sha)) = (name, read_short(path))
            && is_commit_sha(&sha)
        {
            found.push((name.replace('\\', "/"), sha));
        }
    });
    found.sort();
    found
}

/// The files seen up to now, so that a blob with several links counts once.
#[derive(Default)]
struct FileSet {
    seen: HashSet<PathBuf>,
    size_bytes: u64,
    last_modified: Option<SystemTime>,
}

impl FileSet {
    fn add_tree(&mut self, folder: &Path) {
        walk(folder, &mut |path| self.add(path));
    }

    fn add(&mut self, path: &Path) {
        let Ok(target) = path.canonicalize() else { return };
        let Ok(metadata) = fs::metadata(&target) else { return };
        if metadata.is_file() && self.seen.insert(target) {
            self.size_bytes += metadata.len();
            self.last_modified = self.last_modified.max(metadata.modified().ok());
        }
    }
}

/// Calls `visit` for every entry that is not a folder. Links are entries too and are not followed,
/// so the walk ends.
fn walk(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), visit),
            Ok(_) => visit(&entry.path()),
            Err(_) => {}
        }
    }
}
