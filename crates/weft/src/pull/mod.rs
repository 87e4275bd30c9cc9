//! Downloads a model from the hub into the hub's own cache layout.
//!
//! The order of a pull: ask for the revision's commit, choose the files, download the small ones,
//! then the weights, and write the ref last. An interrupted pull is thus never mistaken for a
//! complete model. Nothing here prints or parses a command line.

mod client;
mod download;
mod error;
mod info;
mod layout;
mod retry;
mod select;
mod url;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use weft_core::hub::{self, HubEnv, INDEX_FILE, ModelRef, RepoRef};

use crate::progress::{Event, Progress};
pub use error::PullError;

use client::{Client, Listing};
use download::Download;
use layout::Layout;
use retry::{Limits, with_retries};
use select::{SelectError, Selection, Weights};

/// Downloads all files of a repository that weft needs and that are not yet in the cache. Returns
/// the snapshot's folder, or the GGUF file in it; [`hub::resolve`] finds it from now on.
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
    let listing = with_retries(&what, limits, progress, || 0, || client.list())?;
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
        // A link always points to a complete blob, and the files of a commit never change.
        if self.snapshot().join(file).is_file() {
            self.progress.report(Event::Cached { file });
            return Ok(());
        }
        let (client, sha) = (&self.client, self.listing.sha.as_str());
        let ask = || client.file_info(sha, file);
        let info = with_retries(file, self.limits, self.progress, || 0, ask)?;
        let etag = info.etag.clone();
        let (layout, limits, progress) = (&self.layout, self.limits, self.progress);
        Download { client, layout, limits, progress, sha, file, info }.run()?;
        self.layout.link(sha, file, &etag)
    }

    fn finish(&self) -> Result<PathBuf, PullError> {
        let model = hub::find_model(self.repo, &self.snapshot())?;
        self.layout.write_ref(self.repo.revision(), &self.listing.sha)?;
        Ok(model)
    }
}
