//! Reads rows from the store: the manifest first, then ranges of layers, several at once.
//!
//! Nothing is believed. Memory is taken for what the caller expects, never for what the store
//! claims, and each range is compared with its checksum as it arrives. Coarse rows are decoded when
//! all of them are here.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use weft_core::store::{Header, HostRows, KvKey};

use crate::manifest::{MANIFEST_LIMIT, Manifest};
use crate::miss::{Miss, is_timeout};
use crate::names::{Names, Place};
use crate::seal::Trust;

/// Maximum bytes of one request.
pub(crate) const RANGE_BYTES: u64 = 8 << 20;

/// How long a store may be silent while somebody pulls rows; requests have their own limits.
const PULL_PATIENCE: Duration = Duration::from_secs(300);

/// Ranges of one entry that are asked for at once.
const RANGES_AT_ONCE: usize = 4;

/// A store, and what is read from it.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) names: Names,
    pub(crate) trust: Trust,
}

impl Bucket {
    /// The rows of a key, if they are those that `expected` describes, and the time that they once
    /// took to compute. The store may be silent for `patience` at most.
    pub(crate) async fn rows(
        &self,
        key: &KvKey,
        expected: &Header,
        patience: Duration,
    ) -> Result<(HostRows, Duration), Miss> {
        let place = self.readable(key, expected)?;
        let manifest = within(patience, self.manifest(&place)).await?;
        if let Some(reason) = expected.mismatch(&manifest.header) {
            return Err(Miss::Mismatch(reason));
        }
        let cost = Duration::from_micros(manifest.header.prefill_us);
        Ok((self.rows_of(&place, &manifest, patience).await?, cost))
    }

    /// The manifest of a place and its rows, if they have at most `limit` bytes and are those that
    /// `fits` wants. Nothing of the rows is asked for before that.
    pub(crate) async fn entry(
        &self,
        place: &Place,
        limit: u64,
        fits: impl FnOnce(&Header) -> Result<(), Miss>,
    ) -> Result<(Manifest, HostRows), Miss> {
        if matches!(self.trust, Trust::Nobody) {
            return Err(Miss::Untrusted);
        }
        let manifest = self.manifest(place).await?;
        fits(&manifest.header)?;
        let bytes = 2 * manifest.header.tensor_bytes().unwrap_or(usize::MAX / 4) as u64;
        if bytes > limit {
            return Err(Miss::TooLarge { bytes, limit });
        }
        let rows = self.rows_of(place, &manifest, PULL_PATIENCE).await?;
        Ok((manifest, rows))
    }

    fn readable(&self, key: &KvKey, expected: &Header) -> Result<Place, Miss> {
        if matches!(self.trust, Trust::Nobody) {
            return Err(Miss::Untrusted);
        }
        let found = expected.key();
        if found != *key {
            return Err(Miss::Key { found });
        }
        Place::of(key, expected).ok_or_else(|| Miss::Form("its reuse is no word".to_owned()))
    }

    /// The manifest of a place: undamaged, signed if it must be, and about this place.
    pub(crate) async fn manifest(&self, place: &Place) -> Result<Manifest, Miss> {
        let text = self.small(&self.names.manifest(place), MANIFEST_LIMIT).await?;
        let manifest = Manifest::read(&text, &self.trust)?;
        match Place::of(&manifest.key, &manifest.header) {
            Some(named) if named == *place => Ok(manifest),
            _ => Err(Miss::Key { found: manifest.key }),
        }
    }

    async fn rows_of(
        &self,
        place: &Place,
        manifest: &Manifest,
        patience: Duration,
    ) -> Result<HostRows, Miss> {
        let path = self.names.rows(place, &manifest.object());
        let mut filling = Filling::new(manifest);
        let requests = requests(manifest);
        let mut answers =
            stream::iter(requests).map(|range| self.range(&path, range)).buffered(RANGES_AT_ONCE);
        while let Some(bytes) =
            within(patience, answers.try_next()).await.map_err(|miss| match miss {
                Miss::Absent => Miss::RowsAbsent,
                miss => miss,
            })?
        {
            filling.add(&bytes)?;
        }
        manifest.header.read_stored(filling.rows).map_err(Miss::Mismatch)
    }

    /// Exactly this range of an object.
    async fn range(&self, path: &Path, range: Range<u64>) -> Result<Bytes, Miss> {
        let expected = range.end - range.start;
        let end = range.end;
        let (bytes, _) = match self.part(path, Some(range), expected).await {
            // A store answers with an error if a range is beyond the end: the object was cut.
            Err(Miss::Failed(reason)) => match self.store.head(path).await {
                Ok(meta) if meta.size < end => {
                    return Err(Miss::Length { expected: end, found: meta.size });
                }
                _ => return Err(Miss::Failed(reason)),
            },
            part => part?,
        };
        let found = bytes.len() as u64;
        if found == expected { Ok(bytes) } else { Err(Miss::Length { expected, found }) }
    }

    /// A whole object of at most `limit` bytes.
    pub(crate) async fn small(&self, path: &Path, limit: u64) -> Result<Vec<u8>, Miss> {
        let mut all = Vec::new();
        loop {
            let at = all.len() as u64;
            let end = limit.min(at + RANGE_BYTES);
            // An empty object has no ranges, so that of a short one is the whole.
            let range = (limit > RANGE_BYTES).then_some(at..end);
            let (bytes, total) = self.part(path, range, end - at).await?;
            if total > limit {
                return Err(Miss::TooLarge { bytes: total, limit });
            }
            all.extend_from_slice(&bytes);
            let found = all.len() as u64;
            if found == total {
                return Ok(all);
            }
            let is_whole = limit <= RANGE_BYTES;
            if is_whole || found > total || bytes.is_empty() {
                return Err(Miss::Length { expected: total, found });
            }
        }
    }

    /// Up to `most` bytes of a range or of a whole object, and the length of the object as the
    /// store claims it.
    async fn part(
        &self,
        path: &Path,
        range: Option<Range<u64>>,
        most: u64,
    ) -> Result<(Bytes, u64), Miss> {
        let is_whole = range.is_none();
        let options = GetOptions::new().with_range(range.map(GetRange::Bounded));
        let answer = self.store.get_opts(path, options).await.map_err(miss)?;
        let total = answer.meta.size;
        if is_whole && total > most {
            return Err(Miss::TooLarge { bytes: total, limit: most });
        }
        let mut stream = answer.into_stream();
        let first = stream.try_next().await.map_err(miss)?.unwrap_or_default();
        let mut all = Vec::new();
        let mut next = first;
        loop {
            let found = all.len() as u64 + next.len() as u64;
            if found > most {
                return Err(Miss::Length { expected: most, found });
            }
            let Some(after) = stream.try_next().await.map_err(miss)? else { break };
            all.extend_from_slice(&next);
            next = after;
        }
        if all.is_empty() {
            return Ok((next, total));
        }
        all.extend_from_slice(&next);
        Ok((all.into(), total))
    }
}

/// The result of a request, unless it takes longer than a store may be silent.
pub(crate) async fn within<T>(
    patience: Duration,
    request: impl Future<Output = Result<T, Miss>>,
) -> Result<T, Miss> {
    let timeout = Miss::Timeout { seconds: patience.as_secs_f64() };
    tokio::time::timeout(patience, request).await.unwrap_or(Err(timeout))
}

/// The reason of an error. A request that got no answer counts as one that took too long.
pub(crate) fn miss(error: object_store::Error) -> Miss {
    let is_silent = is_timeout(&error);
    match Miss::from(error) {
        Miss::Failed(reason) if is_silent => Miss::Silent(reason),
        miss => miss,
    }
}

/// The ranges to ask for: whole layers as far as they fit, else pieces of one.
fn requests(manifest: &Manifest) -> Vec<Range<u64>> {
    let layer_bytes = 2 * manifest.range_bytes() as u64;
    let total = layer_bytes * manifest.header.layers as u64;
    let step = match RANGE_BYTES / layer_bytes {
        0 => RANGE_BYTES,
        layers => layers * layer_bytes,
    };
    (0..total).step_by(step as usize).map(|at| at..total.min(at + step)).collect()
}

/// Rows that arrive front to back. Every range before `layer` has been checked.
struct Filling<'m> {
    manifest: &'m Manifest,
    rows: HostRows,
    /// The range that arrives: a layer, and its keys or values.
    layer: usize,
    is_values: bool,
    /// Bytes of it that are here.
    n_bytes: usize,
    hasher: blake3::Hasher,
}

impl<'m> Filling<'m> {
    fn new(manifest: &'m Manifest) -> Self {
        let room = || vec![0; manifest.range_bytes() * manifest.header.layers].into();
        Self {
            manifest,
            rows: HostRows { k: room(), v: room() },
            layer: 0,
            is_values: false,
            n_bytes: 0,
            hasher: blake3::Hasher::new(),
        }
    }

    fn add(&mut self, mut bytes: &[u8]) -> Result<(), Miss> {
        let range_bytes = self.manifest.range_bytes();
        while !bytes.is_empty() {
            let n = bytes.len().min(range_bytes - self.n_bytes);
            let (now, later) = bytes.split_at(n);
            let at = self.layer * range_bytes + self.n_bytes;
            let tensor = if self.is_values { &mut self.rows.v } else { &mut self.rows.k };
            tensor[at..at + n].copy_from_slice(now);
            self.hasher.update(now);
            self.n_bytes += n;
            bytes = later;
            if self.n_bytes == range_bytes {
                self.end_range()?;
            }
        }
        Ok(())
    }

    fn end_range(&mut self) -> Result<(), Miss> {
        let expected = self.manifest.ranges[self.layer][usize::from(self.is_values)];
        if self.hasher.finalize() != expected {
            return Err(Miss::RangeChecksum { layer: self.layer });
        }
        self.hasher.reset();
        self.n_bytes = 0;
        self.layer += usize::from(self.is_values);
        self.is_values = !self.is_values;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use weft_core::dtype::Dtype;
    use weft_core::store::RowForm;

    use super::*;

    /// The sums and the signature of rows do not say that they are numbers.
    #[test]
    fn coarse_rows_whose_scales_are_no_magnitudes_are_refused() {
        let header = Header {
            fingerprint: "model".to_owned(),
            dtype: Dtype::Bf16,
            form: RowForm::Int8 { group: 2 },
            layers: 1,
            kv_width: 2,
            reuse: "coarse".to_owned(),
            parent: KvKey::NOTHING,
            home_position: 0,
            tokens: vec![5],
            prefill_us: 7,
        };
        let (key, trust) = (header.key(), Trust::Anyone);
        let place = Place::of(&key, &header).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        // Of the keys: one, infinity, minus one, not a number.
        for (scale, is_fine) in [(0x3f80, true), (0x7f80, false), (0xbf80, false), (0x7fc0, false)]
        {
            let [low, high] = u16::to_le_bytes(scale);
            let rows = HostRows { k: vec![127, 0x81, low, high].into(), v: vec![0; 4].into() };
            let names = Names::new(Path::from("kv"));
            let bucket = Bucket { store: Arc::new(InMemory::new()), names, trust: trust.clone() };
            let manifest = Manifest::of(&key, &header, &rows).unwrap();
            let found = runtime.block_on(async {
                let object = [&rows.k[..], &rows.v].concat();
                let path = bucket.names.rows(&place, &manifest.object());
                bucket.store.put(&path, object.into()).await.unwrap();
                let path = bucket.names.manifest(&place);
                bucket.store.put(&path, manifest.write(&trust).into()).await.unwrap();
                bucket.rows(&key, &header, PULL_PATIENCE).await
            });
            match found {
                Ok((rows, _)) => {
                    assert!(is_fine);
                    assert_eq!(Dtype::Bf16.numbers(&rows.k), [1.0, -1.0]);
                }
                Err(miss) => assert_eq!((miss.name(), is_fine), ("scale", false)),
            }
        }
    }
}
