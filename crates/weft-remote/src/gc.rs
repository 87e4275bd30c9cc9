//! Deletes rows from the store: old ones, those over a budget, and leftovers.
//!
//! A manifest is deleted before its rows. A reader then finds no manifest, or misses the rows that
//! a manifest promised it; both are misses. Leftovers (rows without a manifest, and the other way
//! round) are deleted only when they are old: a writer may be about to complete them. Ages are
//! measured by the store's own clock. Texts and labels of chunks stay.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt, PutMode};

use crate::get::{Bucket, miss, within};
use crate::miss::Miss;
use crate::names::{Named, Place};
use crate::service::Remote;

/// A leftover of this age belongs to no writer any more.
const LEFTOVER_AGE: Duration = Duration::from_secs(60 * 60);

/// Entries that are deleted at once.
const DELETES_AT_ONCE: usize = 16;

/// Which rows to delete.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sweep {
    /// Those stored at least this long ago.
    pub older_than: Option<Duration>,
    /// The oldest, until this many bytes are left.
    pub max_bytes: Option<u64>,
}

/// What was deleted, and what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Entries that were deleted, and their bytes.
    pub deleted: (usize, u64),
    /// Leftover objects that were deleted, and their bytes.
    pub leftovers: (usize, u64),
    /// Entries that are left, and their bytes.
    pub left: (usize, u64),
}

/// The objects of one entry.
#[derive(Default)]
struct Entry {
    manifest: Option<ObjectMeta>,
    rows: Vec<ObjectMeta>,
    uses: Vec<ObjectMeta>,
}

impl Entry {
    fn objects(&self) -> impl Iterator<Item = &ObjectMeta> {
        self.manifest.iter().chain(&self.rows).chain(&self.uses)
    }

    fn bytes(&self) -> u64 {
        self.objects().map(|meta| meta.size).sum()
    }

    /// When the newest of its objects was stored.
    fn stored(&self) -> SystemTime {
        let times = self.objects().map(|meta| SystemTime::from(meta.last_modified));
        times.max().unwrap_or(SystemTime::UNIX_EPOCH)
    }

    fn is_complete(&self) -> bool {
        self.manifest.is_some() && !self.rows.is_empty()
    }
}

impl Remote {
    /// Deletes rows, and waits for it.
    ///
    /// # Errors
    /// If the store cannot be listed, or refuses to delete.
    pub fn sweep(&self, which: &Sweep) -> Result<Swept, Miss> {
        self.wait_for(self.bucket().sweep(which, self.limits().listing))
    }
}

impl Bucket {
    async fn sweep(&self, which: &Sweep, patience: Duration) -> Result<Swept, Miss> {
        let now = self.now().await?;
        let entries = within(patience, self.entries()).await?;
        let age = |entry: &Entry| now.duration_since(entry.stored()).unwrap_or_default();
        let (mut complete, partial): (Vec<_>, Vec<_>) =
            entries.into_values().partition(Entry::is_complete);
        let mut swept = Swept::default();
        let mut victims: Vec<&Entry> = Vec::new();
        for entry in partial.iter().filter(|entry| age(entry) >= LEFTOVER_AGE) {
            swept.leftovers.0 += entry.objects().count();
            swept.leftovers.1 += entry.bytes();
            victims.push(entry);
        }
        complete.sort_by_key(Entry::stored);
        let mut left_bytes: u64 = complete.iter().map(Entry::bytes).sum();
        for entry in &complete {
            let is_old = which.older_than.is_some_and(|limit| age(entry) >= limit);
            let is_over = which.max_bytes.is_some_and(|limit| left_bytes > limit);
            let counted = if is_old || is_over {
                left_bytes -= entry.bytes();
                victims.push(entry);
                &mut swept.deleted
            } else {
                &mut swept.left
            };
            counted.0 += 1;
            counted.1 += entry.bytes();
        }
        stream::iter(victims)
            .map(|entry| self.delete(entry))
            .buffer_unordered(DELETES_AT_ONCE)
            .try_collect::<()>()
            .await?;
        Ok(swept)
    }

    /// All entries, complete or not.
    async fn entries(&self) -> Result<BTreeMap<Place, Entry>, Miss> {
        let mut entries: BTreeMap<Place, Entry> = BTreeMap::new();
        let mut listed = pin!(self.listed(self.names.all()));
        while let Some(meta) = listed.try_next().await? {
            match self.names.parse(&meta.location) {
                Some(Named::Manifest(place)) => {
                    entries.entry(place).or_default().manifest = Some(meta);
                }
                Some(Named::Rows(place)) => entries.entry(place).or_default().rows.push(meta),
                Some(Named::Use(place)) => {
                    entries.entry(place).or_default().uses.push(meta);
                }
                // Chunks stay, and objects of others are none of weft's business.
                Some(Named::Label { .. } | Named::Card { .. }) | None => {}
            }
        }
        Ok(entries)
    }

    /// Deletes the manifest of an entry, then everything else.
    async fn delete(&self, entry: &Entry) -> Result<(), Miss> {
        if let Some(manifest) = &entry.manifest {
            self.delete_object(&manifest.location).await?;
        }
        for meta in entry.rows.iter().chain(&entry.uses) {
            self.delete_object(&meta.location).await?;
        }
        Ok(())
    }

    async fn delete_object(&self, path: &Path) -> Result<(), Miss> {
        match self.store.delete(path).await.map_err(miss) {
            Err(Miss::Absent) => Ok(()),
            result => result,
        }
    }

    /// The time by the store's clock, which dates its objects: that of an object written now.
    async fn now(&self) -> Result<SystemTime, Miss> {
        let path = self.names.clock();
        self.put(&path, "\n".into(), PutMode::Overwrite).await?;
        let meta = self.store.head(&path).await.map_err(miss)?;
        Ok(meta.last_modified.into())
    }
}
