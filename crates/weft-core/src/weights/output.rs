//! Files that are written tensor by tensor, by several threads, at offsets that are known before.
//!
//! Rows are collected in blocks, so memory holds a few blocks and no whole tensor.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use thiserror::Error;

use super::{TensorShape, WeightsError};

/// Bytes written to a file at a time, unless a row or a permuted head has more.
const BLOCK_BYTES: usize = 1 << 20;

/// More threads than this wait for the disk.
const THREAD_LIMIT: usize = 8;

/// Why weights could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The weights could not be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The disk is full.
    #[error(
        "{}: the disk is full, and the model needs {bytes} bytes; free some space, or write to \
         another disk",
        path.display()
    )]
    DiskFull {
        /// The file or folder.
        path: PathBuf,
        /// Bytes of the whole output.
        bytes: u64,
    },
    /// A file could not be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The caller ended the writing.
    #[error("interrupted; nothing was written")]
    Cancelled,
}

/// Counts what is written, and lets the caller end it.
pub(crate) struct Meter<'p> {
    total_bytes: u64,
    bytes: AtomicU64,
    is_cancelled: AtomicBool,
    go_on: &'p (dyn Fn(u64, u64) -> bool + Sync),
}

impl<'p> Meter<'p> {
    /// Calls `go_on` with the bytes written so far and all bytes; `false` ends the writing.
    pub(crate) fn new(total_bytes: u64, go_on: &'p (dyn Fn(u64, u64) -> bool + Sync)) -> Self {
        let (bytes, is_cancelled) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { total_bytes, bytes, is_cancelled, go_on }
    }

    fn add(&self, bytes: usize) -> Result<(), WriteError> {
        let bytes = bytes as u64 + self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if !(self.go_on)(bytes, self.total_bytes) {
            self.is_cancelled.store(true, Ordering::Relaxed);
        }
        self.check()
    }

    fn check(&self) -> Result<(), WriteError> {
        match self.is_cancelled.load(Ordering::Relaxed) {
            true => Err(WriteError::Cancelled),
            false => Ok(()),
        }
    }

    /// An error of the system at this path.
    pub(crate) fn fault(&self, path: &Path, source: io::Error) -> WriteError {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                WriteError::DiskFull { path, bytes: self.total_bytes }
            }
            _ => WriteError::Write { path, source },
        }
    }
}

/// A file that several threads write.
pub(crate) struct Output<'m> {
    file: Mutex<File>,
    path: PathBuf,
    meter: &'m Meter<'m>,
}

impl<'m> Output<'m> {
    /// Creates a file with this beginning.
    pub(crate) fn create(
        path: &Path,
        header: &[u8],
        meter: &'m Meter<'m>,
    ) -> Result<Self, WriteError> {
        let file = File::create_new(path).map_err(|source| meter.fault(path, source))?;
        let output = Self { file: Mutex::new(file), path: path.to_owned(), meter };
        output.write(0, header)?;
        Ok(output)
    }

    /// Writes bytes at an offset.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        self.meter.check()?;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(offset))
            .and_then(|_| file.write_all(bytes))
            .map_err(|source| self.meter.fault(&self.path, source))?;
        drop(file);
        self.meter.add(bytes.len())
    }

    /// Writes the file's last bytes to the disk; it then has `bytes` of them.
    pub(crate) fn finish(self, bytes: u64) -> Result<(), WriteError> {
        let file = self.file.into_inner().unwrap_or_else(PoisonError::into_inner);
        file.set_len(bytes)
            .and_then(|()| file.sync_all())
            .map_err(|source| self.meter.fault(&self.path, source))
    }

    /// A writer of the rows of one tensor, which starts at `start`.
    pub(crate) fn rows(&self, start: u64, row_bytes: usize, head: Option<usize>) -> Rows<'_> {
        let at_once = head.unwrap_or((BLOCK_BYTES / row_bytes).max(1));
        let block = vec![0; at_once * row_bytes];
        Rows { output: self, start, row_bytes, head, block, rows: 0, outcome: Ok(()) }
    }
}

/// Writes the rows of one tensor, in order.
pub(crate) struct Rows<'o> {
    output: &'o Output<'o>,
    /// Offset of the next block.
    start: u64,
    row_bytes: usize,
    /// Rows of a head, if the rows of each head are permuted.
    head: Option<usize>,
    block: Vec<u8>,
    /// Rows in the block.
    rows: usize,
    outcome: Result<(), WriteError>,
}

impl Rows<'_> {
    /// Adds a row, which `fill` writes. After an error, nothing more is written.
    pub(crate) fn push(&mut self, fill: impl FnOnce(&mut [u8])) {
        let place = self.head.map_or(self.rows, |head| permuted(self.rows, head));
        fill(&mut self.block[place * self.row_bytes..][..self.row_bytes]);
        self.rows += 1;
        if self.rows * self.row_bytes == self.block.len() {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let bytes = &self.block[..self.rows * self.row_bytes];
        if self.outcome.is_ok() {
            self.outcome = self.output.write(self.start, bytes);
        }
        self.start += bytes.len() as u64;
        self.rows = 0;
    }

    /// Writes what is left.
    pub(crate) fn finish(mut self) -> Result<(), WriteError> {
        self.flush();
        self.outcome
    }
}

/// Where a GGUF file has row `i` of a head of `head` rows, if it is permuted for a rotation of
/// neighbours: the two halves of the head take turns.
pub(super) fn permuted(i: usize, head: usize) -> usize {
    let half = head / 2;
    2 * (i % half) + i / half
}

/// Calls `write` for each tensor, in several threads, until one fails.
pub(crate) fn for_each_tensor(
    tensors: &[TensorShape],
    write: impl Fn(usize, &TensorShape) -> Result<(), WriteError> + Sync,
) -> Result<(), WriteError> {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(tensor) = tensors.get(i) else { return Ok(()) };
            if let Err(error) = write(i, tensor) {
                next.store(tensors.len(), Ordering::Relaxed);
                return Err(error);
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores.min(THREAD_LIMIT)).map(|_| scope.spawn(work)).collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        // The scope waits for the others.
        ended.collect()
    })
}
