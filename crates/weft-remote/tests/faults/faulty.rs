//! An object store in memory that fails on command, and records its requests.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UploadPart,
};
use tokio::sync::Semaphore;

/// What goes wrong with a read.
pub type Damage = Arc<dyn Fn(&Path, Vec<u8>) -> Result<Vec<u8>> + Send + Sync>;

/// A store with faults.
pub struct Faulty {
    pub inner: InMemory,
    /// Changes what a read returns.
    pub damage: Mutex<Option<Damage>>,
    /// The error of every write.
    pub refuses_writes: Mutex<Option<fn() -> Error>>,
    /// The error of every part of an upload but the first.
    pub refuses_parts: Mutex<Option<fn() -> Error>>,
    /// Uploads that were given up.
    pub n_aborted: Arc<AtomicUsize>,
    /// Objects that were deleted, in this order.
    pub deleted: Arc<Mutex<Vec<Path>>>,
    /// The error of every read.
    pub refuses_reads: Mutex<Option<fn() -> Error>>,
    /// While set, reads and writes wait for a permit of `gate`.
    pub is_slow: AtomicBool,
    pub gate: Semaphore,
    /// Objects that are in every list before those that are there; `usize::MAX` is a list that
    /// does not come.
    pub n_invented: AtomicUsize,
    /// Whether `put` only if absent is ignored, as some servers do.
    pub ignores_create: AtomicBool,
    pub n_reads: AtomicUsize,
    /// Bytes of damaged reads that were taken.
    pub n_sent: Arc<AtomicUsize>,
}

impl Faulty {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: InMemory::new(),
            damage: Mutex::default(),
            refuses_writes: Mutex::default(),
            refuses_parts: Mutex::default(),
            n_aborted: Arc::default(),
            deleted: Arc::default(),
            refuses_reads: Mutex::default(),
            is_slow: AtomicBool::new(false),
            gate: Semaphore::new(0),
            n_invented: AtomicUsize::new(0),
            ignores_create: AtomicBool::new(false),
            n_reads: AtomicUsize::new(0),
            n_sent: Arc::default(),
        })
    }

    /// Damages every read from now on.
    pub fn damage(
        &self,
        damage: impl Fn(&Path, Vec<u8>) -> Result<Vec<u8>> + Send + Sync + 'static,
    ) {
        *self.damage.lock().unwrap() = Some(Arc::new(damage));
    }

    pub fn heal(&self) {
        *self.damage.lock().unwrap() = None;
        *self.refuses_reads.lock().unwrap() = None;
        *self.refuses_writes.lock().unwrap() = None;
    }

    pub fn reads(&self) -> usize {
        self.n_reads.load(Ordering::SeqCst)
    }

    async fn pass(&self) {
        if self.is_slow.load(Ordering::SeqCst) {
            self.gate.acquire().await.unwrap().forget();
        }
    }

    /// The paths of all objects, sorted.
    pub fn paths(&self) -> Vec<Path> {
        let listed = self.inner.list(None).map(|meta| meta.unwrap().location);
        let mut paths: Vec<Path> = now(listed.collect());
        paths.sort();
        paths
    }

    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        now(async { self.inner.get_opts(path, GetOptions::new()).await.unwrap().bytes().await })
            .unwrap()
            .to_vec()
    }

    pub fn write(&self, path: &Path, bytes: Vec<u8>) {
        now(self.inner.put_opts(path, bytes.into(), PutOptions::default())).unwrap();
    }
}

/// The result of a future that waits for nothing but memory.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

pub fn server_error() -> Error {
    Error::Generic { store: "faulty", source: "500 internal error".into() }
}

pub fn reset() -> Error {
    let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    Error::Generic { store: "faulty", source: Box::new(reset) }
}

pub fn full() -> Error {
    Error::Generic { store: "faulty", source: "507 the bucket is full".into() }
}

pub fn denied() -> Error {
    Error::PermissionDenied { path: String::new(), source: "403 wrong credentials".into() }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        self.pass().await;
        if let Some(error) = *self.refuses_writes.lock().unwrap() {
            return Err(error());
        }
        if self.ignores_create.load(Ordering::SeqCst) {
            options.mode = Default::default();
        }
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.pass().await;
        let inner = self.inner.put_multipart_opts(path, options).await?;
        let (refusal, n_aborted) =
            (*self.refuses_parts.lock().unwrap(), Arc::clone(&self.n_aborted));
        Ok(Box::new(Upload { inner, n_parts: 0, refusal, n_aborted }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.n_reads.fetch_add(1, Ordering::SeqCst);
        self.pass().await;
        if let Some(error) = *self.refuses_reads.lock().unwrap() {
            return Err(error());
        }
        let is_head = options.head;
        let answer = self.inner.get_opts(path, options).await?;
        let damage = self.damage.lock().unwrap().clone();
        let (Some(damage), false) = (damage, is_head) else { return Ok(answer) };
        let (meta, range) = (answer.meta.clone(), answer.range.clone());
        let attributes = answer.attributes.clone();
        let bytes = damage(path, answer.bytes().await?.to_vec())?;
        // Like the body of a response, it comes in pieces.
        let pieces: Vec<Result<Bytes>> =
            bytes.chunks(1000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let n_sent = Arc::clone(&self.n_sent);
        let count = move |piece: &Result<Bytes>| {
            let bytes = piece.as_ref().map_or(0, Bytes::len);
            n_sent.fetch_add(bytes, Ordering::SeqCst);
        };
        let payload = GetResultPayload::Stream(stream::iter(pieces).inspect(count).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() })
    }

    async fn get_ranges(&self, _: &Path, _: &[Range<u64>]) -> Result<Vec<Bytes>> {
        unreachable!("weft asks for one range at a time")
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let deleted = Arc::clone(&self.deleted);
        let record = move |path: &Result<Path>| {
            deleted.lock().unwrap().extend(path.as_ref().ok().cloned());
        };
        self.inner.delete_stream(paths.inspect(record).boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let n = self.n_invented.load(Ordering::SeqCst);
        if n == usize::MAX {
            return stream::pending().boxed();
        }
        let of_nobody = ObjectMeta {
            location: prefix.cloned().unwrap_or_default().join("of-nobody"),
            last_modified: std::time::SystemTime::UNIX_EPOCH.into(),
            size: 1,
            e_tag: None,
            version: None,
        };
        stream::repeat(of_nobody).take(n).map(Ok).chain(self.inner.list(prefix)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// An object that is written in parts.
#[derive(Debug)]
struct Upload {
    inner: Box<dyn MultipartUpload>,
    n_parts: usize,
    refusal: Option<fn() -> Error>,
    n_aborted: Arc<AtomicUsize>,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        self.n_parts += 1;
        match self.refusal.filter(|_| self.n_parts > 1) {
            Some(error) => std::future::ready(Err(error())).boxed(),
            None => self.inner.put_part(part),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.n_aborted.fetch_add(1, Ordering::SeqCst);
        self.inner.abort().await
    }
}
