//! Downloads a model from the hub into the hub's own cache layout.
//!
//! The order of a pull: ask for the revision's commit, choose the files, download the small ones,
//! then the weights, and write the ref last. An interrupted pull is thus never mistaken for a
//! complete model. Nothing here prints or parses a command line.

mod client;
mod download;
mod error;
mod hash;
mod info;
mod layout;
mod retry;
mod select;
mod url;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use weft_core::hub::{self, HubEnv, INDEX_FILE, ModelRef, RepoRef};

use crate::progress::{Event, Progress};
pub use error::PullError;

use client::{Client, Listing};
use download::Download;
use hash::Hash;
use info::FileInfo;
use layout::Layout;
use retry::{Failure, Limits, with_retries};
use select::{SelectError, Selection, Weights};

/// Downloads all files of a repository that weft needs and that are not yet in the cache, or are
/// damaged there: every file with a hash is checked. Returns the snapshot's folder, or the GGUF
/// file in it; [`hub::resolve`] finds it from now on.
///
/// # Errors
/// See [`PullError`]. A later call resumes.
pub fn pull(
    reference: &ModelRef,
    env: &HubEnv,
    progress: &dyn Progress,
) -> Result<PathBuf, PullError> {
    pull_with(reference, env, progress, &Limits::default())
}

fn pull_with(
    reference: &ModelRef,
    env: &HubEnv,
    progress: &dyn Progress,
    limits: &Limits,
) -> Result<PathBuf, PullError> {
    let repo = match reference {
        ModelRef::Folder(path) | ModelRef::File(path) => {
            return Err(PullError::NotARepo { path: path.clone() });
        }
        ModelRef::Repo(repo) => repo,
    };
    if env.offline {
        return Err(PullError::Offline { repo: repo.id() });
    }
    let client = Client::new(env, repo, limits);
    let what = format!("the list of files of {}", repo.id());
    // Without a network nothing has begun, and the user need not wait for more attempts.
    let list = || match client.list() {
        Err(Failure::Unreachable(reason)) => {
            Err(PullError::Unreachable { endpoint: env.endpoint.clone(), reason }.into())
        }
        listed => listed,
    };
    let listing = with_retries(&what, limits, progress, || 0, list)?;
    let layout = Layout::new(env, repo);
    Pull { repo, client, layout, listing, progress, limits }.run()
}

/// A pull after its commit is known.
struct Pull<'a> {
    repo: &'a RepoRef,
    client: Client<'a>,
    layout: Layout,
    listing: Listing,
    progress: &'a dyn Progress,
    limits: &'a Limits,
}

impl Pull<'_> {
    fn run(&self) -> Result<PathBuf, PullError> {
        let Selection { small, weights } = self.select()?;
        for file in &small {
            self.fetch(file)?;
        }
        let weights = match weights {
            Weights::Files(files) => files,
            Weights::ByIndex => self.shards()?,
        };
        for file in &weights {
            self.fetch(file)?;
        }
        self.finish()
    }

    fn select(&self) -> Result<Selection, PullError> {
        let repo = self.repo.id();
        select::select(&self.listing.files, self.repo.pick()).map_err(|error| match error {
            SelectError::UnsafeName(file) => PullError::UnsafeFileName { repo, file },
            SelectError::Unsuitable(reason) => PullError::Unsuitable { repo, reason },
        })
    }

    /// The weight files that the index names. Checks that the repository has all of them, before
    /// gigabytes are downloaded.
    fn shards(&self) -> Result<Vec<String>, PullError> {
        let shards = hub::shards_of_index(&self.snapshot().join(INDEX_FILE))?;
        match shards.iter().find(|shard| !self.listing.files.contains(shard)) {
            None => Ok(shards),
            Some(shard) => Err(PullError::Unsuitable {
                repo: self.repo.id(),
                reason: format!("its {INDEX_FILE} names {shard:?}, which is missing"),
            }),
        }
    }

    fn snapshot(&self) -> PathBuf {
        self.layout.snapshot(&self.listing.sha)
    }

    fn fetch(&self, file: &str) -> Result<(), PullError> {
        let at = self.snapshot().join(file);
        let (mut hash, mut info) = (self.listing.hashes.get(file).cloned(), None);
        if at.is_file() {
            // A mirror of the hub may list names alone.
            if hash.is_none() {
                let asked = self.file_info(file)?;
                (hash, info) = (Hash::parse(&asked.etag), Some(asked));
            }
            if self.is_sound(file, &at, hash.as_ref())? {
                self.progress.report(Event::Cached { file });
                return Ok(());
            }
            self.progress.report(Event::Damaged { file });
        }
        let info = info.map_or_else(|| self.file_info(file), Ok)?;
        let hash = hash.or_else(|| Hash::parse(&info.etag));
        let etag = info.etag.clone();
        Download { pull: self, file, info, hash }.run()?;
        self.layout.link(&self.listing.sha, file, &etag)
    }

    fn file_info(&self, file: &str) -> Result<FileInfo, PullError> {
        let ask = || self.client.file_info(&self.listing.sha, file);
        with_retries(file, self.limits, self.progress, || 0, ask)
    }

    /// Whether a file in the cache has its hash. Without a hash there is nothing to compare.
    fn is_sound(&self, file: &str, at: &Path, hash: Option<&Hash>) -> Result<bool, PullError> {
        let Some(hash) = hash else { return Ok(true) };
        self.progress.report(Event::Verifying { file });
        let actual = hash.of_file(at).map_err(|e| PullError::write(at, e))?;
        Ok(actual == *hash)
    }

    fn finish(&self) -> Result<PathBuf, PullError> {
        let model = hub::find_model(self.repo, &self.snapshot())?;
        self.layout.write_ref(self.repo.revision(), &self.listing.sha)?;
        Ok(model)
    }
}
