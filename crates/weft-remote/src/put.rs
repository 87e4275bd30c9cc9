//! Writes rows to the store: the rows first, the manifest last.
//!
//! Without its manifest the rows do not exist for readers, so a writer that dies leaves nothing
//! that could be read. Two writers of one entry write the same bytes under the same name.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload};
use weft_core::store::{Header, HostRows, KvKey};

use crate::get::{Bucket, miss};
use crate::manifest::Manifest;
use crate::miss::Miss;
use crate::names::Place;

/// Objects above this size are written in parts, which can be sent again one by one.
const PART_BYTES: usize = 16 << 20;

/// The result of writing an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was written: rows and manifest.
    New {
        /// Bytes of both.
        bytes: u64,
    },
    /// The store had it already, undamaged as far as the manifest says.
    Present,
}

/// The keys or values of shared rows, as memory that the store's client may hold.
struct Tensor {
    rows: Arc<HostRows>,
    is_values: bool,
}

impl AsRef<[u8]> for Tensor {
    fn as_ref(&self) -> &[u8] {
        if self.is_values { &self.rows.v } else { &self.rows.k }
    }
}

impl Bucket {
    /// Writes an entry that the store does not have. With `anew`, whatever the store has is
    /// replaced: a reader has found it damaged.
    pub(crate) async fn put_rows(
        &self,
        key: &KvKey,
        header: &Header,
        rows: &Arc<HostRows>,
        anew: bool,
    ) -> Result<Written, Miss> {
        let found = header.key();
        if found != *key {
            return Err(Miss::Key { found });
        }
        let wrong = |what: &str| Miss::Form(what.to_owned());
        let place = Place::of(key, header).ok_or_else(|| wrong("its reuse is no word"))?;
        let is_absent = match self.manifest(&place).await {
            Ok(found) if !anew && header.mismatch(&found.header).is_none() => {
                return Ok(Written::Present);
            }
            // Another version of weft can use what is there.
            Err(miss @ Miss::Version { .. }) => return Err(miss),
            Err(miss) if miss.is_failure() => return Err(miss),
            Err(Miss::Absent) => true,
            // A manifest that nobody can use is replaced.
            Ok(_) | Err(_) => false,
        };
        let sizes = (header.full_bytes(), header.full_bytes());
        if sizes != (Some(rows.k.len()), Some(rows.v.len())) && !header.is_stored(rows) {
            return Err(wrong("the rows do not have the size of their header"));
        }
        let coarse = header.stored(rows).map_err(|error| Miss::Form(error.to_string()))?;
        let rows = &coarse.map_or_else(|| Arc::clone(rows), Arc::new);
        let manifest = Manifest::of(key, header, rows)
            .ok_or_else(|| wrong("the rows do not have the size of their header"))?;
        let mode = if is_absent { PutMode::Create } else { PutMode::Overwrite };
        let path = self.names.rows(&place, &manifest.object());
        let payload = payload(rows, manifest.range_bytes());
        let row_bytes = payload.content_length();
        self.put(&path, payload, mode.clone()).await?;
        let text = manifest.write(&self.trust);
        let bytes = (row_bytes + text.len()) as u64;
        self.put(&self.names.manifest(&place), text.into(), mode).await?;
        Ok(Written::New { bytes })
    }

    /// Writes an object. If it must be new and is there, that is as good: names are contents.
    pub(crate) async fn put(
        &self,
        path: &Path,
        payload: PutPayload,
        mode: PutMode,
    ) -> Result<(), Miss> {
        if payload.content_length() > PART_BYTES {
            return self.put_in_parts(path, payload).await;
        }
        let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
        match self.store.put_opts(path, payload.clone(), options).await {
            Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. },
            ) if mode == PutMode::Create => Ok(()),
            Err(
                object_store::Error::NotImplemented { .. }
                | object_store::Error::NotSupported { .. },
            ) if mode == PutMode::Create => {
                self.store.put(path, payload).await.map(drop).map_err(miss)
            }
            result => result.map(drop).map_err(miss),
        }
    }

    /// Readers see the object when all parts are there, or not at all.
    async fn put_in_parts(&self, path: &Path, payload: PutPayload) -> Result<(), Miss> {
        let mut upload = self.store.put_multipart(path).await.map_err(miss)?;
        for part in parts(payload) {
            if let Err(error) = upload.put_part(part).await {
                // What was sent takes room in the store until it is given up. The first error is
                // the one to report.
                let _ = upload.abort().await;
                return Err(miss(error));
            }
        }
        upload.complete().await.map(drop).map_err(miss)
    }
}

/// The bytes of rows in the order of the object, without copying them.
fn payload(rows: &Arc<HostRows>, range_bytes: usize) -> PutPayload {
    let tensor = |is_values| Bytes::from_owner(Tensor { rows: Arc::clone(rows), is_values });
    let (k, v) = (tensor(false), tensor(true));
    let starts = (0..k.len()).step_by(range_bytes);
    starts.flat_map(|at| [k.slice(at..at + range_bytes), v.slice(at..at + range_bytes)]).collect()
}

/// Cuts a payload into parts of the same size, except the last: some stores insist on it.
fn parts(payload: PutPayload) -> Vec<PutPayload> {
    let mut parts = vec![Vec::new()];
    let mut room = PART_BYTES;
    for mut bytes in payload {
        while !bytes.is_empty() {
            if room == 0 {
                parts.push(Vec::new());
                room = PART_BYTES;
            }
            let now = bytes.split_to(room.min(bytes.len()));
            room -= now.len();
            parts.last_mut().expect("there is one").push(now);
        }
    }
    parts.into_iter().map(|part| part.into_iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_one_size_and_lose_nothing() {
        let sizes = [1, PART_BYTES - 1, 3, 2 * PART_BYTES, 5];
        let all: Vec<u8> =
            (0..sizes.iter().sum::<usize>()).map(|i| (i * 31 + i / 257) as u8).collect();
        let mut rest = Bytes::from(all.clone());
        let payload: PutPayload = sizes.map(|size| rest.split_to(size)).into_iter().collect();
        let parts = parts(payload);
        let lengths: Vec<usize> = parts.iter().map(PutPayload::content_length).collect();
        assert_eq!(lengths, [PART_BYTES, PART_BYTES, PART_BYTES, 8]);
        let joined: Vec<u8> = parts.into_iter().flatten().flatten().collect();
        assert!(joined == all);
    }

    #[test]
    fn layers_lie_one_after_the_other() {
        let rows = Arc::new(HostRows { k: vec![1, 1, 2, 2].into(), v: vec![3, 3, 4, 4].into() });
        let bytes: Vec<u8> = payload(&rows, 2).into_iter().flatten().collect();
        assert_eq!(bytes, [1, 1, 3, 3, 2, 2, 4, 4]);
    }
}
