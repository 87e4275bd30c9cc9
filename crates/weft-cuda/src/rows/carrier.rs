//! Copies rows between KV pages and lists on the host, one piece of a layer at a time, through
//! pinned memory.
//!
//! Kernels reorder elements, the GPU copies, and host threads move bytes between lists and pinned
//! memory: while one piece is copied, another is moved, and a third is reordered in another stream.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use weft_core::config::Config;
use weft_core::kv::{PAGE_ROWS, PageId};
use weft_core::store::Rows as HostRows;

use super::{Copy, Job, Way};
use crate::driver::{
    Address, Argument, COPY_STREAMS, Done, Gpu, Kernel, Launch, Memory, Pinned, Stream,
};
use crate::error::CudaError;
use crate::kernels::Kernels;
use crate::kv::Kv;
use crate::layouts::{Layout, layout};

/// Threads that move bytes, each with its own pieces: one core does not keep the bus busy.
const MOVERS: usize = 8;
/// Pieces that are worth a thread. Fewer are moved by the thread that has the job.
const THREAD_BYTES: usize = 1 << 20;
/// Pieces that a thread has in flight.
const IN_FLIGHT: usize = 2;
/// The most rows of a piece.
const PIECE_ROWS: usize = 512;
const PAGES_BYTES: usize = PIECE_ROWS / PAGE_ROWS * 4;
const THREADS: usize = 256;
/// The most jobs in a batch.
const BATCH: usize = 8;

/// Kernels call it `RowsPlace`.
#[repr(C)]
struct RowsPlace {
    pages: Address,
    n_rows: u32,
    first_row: u32,
}

// SAFETY: `repr(C)`, with the fields of the kernels' `RowsPlace`.
unsafe impl Argument for RowsPlace {}

/// Structs that kernels must lay out as here.
pub(crate) fn layout() -> Layout {
    layout!(RowsPlace as "RowsPlace" { pages, n_rows, first_row })
}

/// A job that writes rows into pages.
struct Coming {
    layers: Range<u16>,
    rows: Range<usize>,
    from: Arc<HostRows>,
    copy: Arc<Copy>,
}

/// Some rows of one layer.
struct Piece<'a> {
    layer: u16,
    pages: &'a [PageId],
    /// Their first row in the first page.
    first_row: usize,
    n_rows: usize,
    /// Their byte range in the caller's lists.
    bytes: Range<usize>,
}

/// Memory for a piece on the host and on the GPU: its pages, keys, then values.
struct Stage {
    pinned: Pinned,
    memory: Memory,
    /// Where it is copied and reordered.
    stream: Stream,
    /// When the GPU is done with it.
    done: Done,
}

/// Copies rows; owned by the thread in `rows.rs`.
pub(super) struct Carrier {
    gpu: Arc<Gpu>,
    put_rows: Kernel,
    get_rows: Kernel,
    /// The pages of each layer.
    layers: Vec<Address>,
    stages: Vec<Mutex<[Stage; IN_FLIGHT]>>,
    /// A point in each stream for copies.
    points: [Done; COPY_STREAMS],
    /// Bytes of a row's key.
    row_bytes: usize,
}

/// Bytes that stages take on the GPU.
pub(crate) fn bytes(config: &Config) -> usize {
    MOVERS * IN_FLIGHT * stage_bytes(config)
}

fn stage_bytes(config: &Config) -> usize {
    PAGES_BYTES + 2 * PIECE_ROWS * config.kv_width() * 2
}

impl Carrier {
    /// Creates it for pages that outlive it.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        config: &Config,
        kernels: &Kernels,
        kv: &Kv,
    ) -> Result<Self, CudaError> {
        let bytes = stage_bytes(config);
        let stage = |mover: usize| -> Result<Stage, CudaError> {
            Ok(Stage {
                pinned: Pinned::new(gpu, bytes)?,
                memory: Memory::new(gpu, "rows on their way", bytes)?,
                stream: Stream::Copies(mover % COPY_STREAMS),
                done: Done::new(gpu)?,
            })
        };
        let stages = (0..MOVERS).map(|mover| Ok(Mutex::new([stage(mover)?, stage(mover)?])));
        let point = || Done::new(gpu);
        Ok(Self {
            stages: stages.collect::<Result<_, CudaError>>()?,
            points: [point()?, point()?, point()?, point()?],
            gpu: Arc::clone(gpu),
            put_rows: kernels.put_rows.clone(),
            get_rows: kernels.get_rows.clone(),
            layers: (0..config.layers as u16).map(|layer| kv.layer(layer)).collect(),
            row_bytes: config.kv_width() * 2,
        })
    }

    /// Runs jobs until the channel closes.
    pub(super) fn carry(&self, jobs: &Receiver<Job>) {
        let mut next = None;
        while let Some(first) = next.take().or_else(|| jobs.recv().ok()) {
            self.gpu.bind();
            let Job { layers, rows, way, copy } = first;
            match way {
                Way::Out(to, receiver) => {
                    let pieces = pieces(layers, &copy.pages, rows, self.row_bytes);
                    copy.report(&guarded(|| self.carry_out(pieces, &copy, to, &receiver)));
                }
                Way::In(from) => {
                    let mut batch = vec![Coming { layers, rows, from, copy }];
                    next = self.gather(&mut batch, jobs);
                    let carried = guarded(|| self.carry_in(&batch));
                    batch.iter().for_each(|job| job.copy.report(&carried));
                }
            }
        }
    }

    /// Adds jobs that are already queued, so that threads do not wait for one another after each
    /// job. Returns the first job that cannot be added.
    fn gather(&self, batch: &mut Vec<Coming>, jobs: &Receiver<Job>) -> Option<Job> {
        while batch.len() < BATCH {
            let job = jobs.try_recv().ok()?;
            // Pieces of a batch are written in any order.
            let meets = batch.iter().any(|other| other.copy.is_at(&job.copy.pages));
            match job {
                Job { layers, rows, way: Way::In(from), copy } if !meets => {
                    batch.push(Coming { layers, rows, from, copy });
                }
                other => return Some(other),
            }
        }
        None
    }

    fn carry_out<'a>(
        &self,
        pieces: impl Iterator<Item = Piece<'a>>,
        copy: &Copy,
        mut to: HostRows,
        receiver: &Sender<HostRows>,
    ) -> Result<(), CudaError> {
        self.fork([copy])?;
        self.read(pieces, &mut to.k, &mut to.v)?;
        self.join([copy])?;
        // The caller may have gone.
        let _ = receiver.send(to);
        Ok(())
    }

    fn carry_in(&self, batch: &[Coming]) -> Result<(), CudaError> {
        let n_bytes = batch.iter().map(|job| job.from.k.len() + job.from.v.len()).sum();
        let pieces = batch.iter().flat_map(|job| {
            let (layers, rows) = (job.layers.clone(), job.rows.clone());
            let pieces = pieces(layers, &job.copy.pages, rows, self.row_bytes);
            pieces.map(|piece| {
                let bytes = piece.bytes.clone();
                (piece, &job.from.k[bytes.clone()], &job.from.v[bytes])
            })
        });
        self.fork(batch.iter().map(|job| &*job.copy))?;
        self.write(pieces, n_bytes)?;
        self.join(batch.iter().map(|job| &*job.copy))
    }

    /// Makes every stream begin after what these copies wait for and after all earlier copies.
    fn fork<'a>(&self, copies: impl IntoIterator<Item = &'a Copy>) -> Result<(), CudaError> {
        let [first, others @ ..] = &self.points;
        for copy in copies {
            self.gpu.order(Stream::Copies(0), &copy.ready)?;
        }
        first.record(Stream::Copies(0))?;
        (1..=others.len()).try_for_each(|n| self.gpu.order(Stream::Copies(n), first))
    }

    /// Records the end of these copies: when all streams are done.
    fn join<'a>(&self, copies: impl IntoIterator<Item = &'a Copy>) -> Result<(), CudaError> {
        for (n, point) in self.points.iter().enumerate().skip(1) {
            point.record(Stream::Copies(n))?;
            self.gpu.order(Stream::Copies(0), point)?;
        }
        copies.into_iter().try_for_each(|copy| copy.over.record(Stream::Copies(0)))
    }

    /// Writes pieces into pages; the copies may still run when it returns.
    fn write<'a>(
        &self,
        pieces: impl Iterator<Item = (Piece<'a>, &'a [u8], &'a [u8])>,
        n_bytes: usize,
    ) -> Result<(), CudaError> {
        self.share_out(pieces, n_bytes, |stages, pieces| {
            self.gpu.bind();
            for (turn, (piece, k, v)) in pieces.into_iter().enumerate() {
                let stage = &mut stages[turn % IN_FLIGHT];
                stage.done.wait()?;
                stage.pinned.fill(0, piece.pages);
                stage.pinned.fill(PAGES_BYTES, k);
                stage.pinned.fill(PAGES_BYTES + k.len(), v);
                self.upload(stage, PAGES_BYTES + k.len() + v.len())?;
                self.launch(&self.put_rows, stage, &piece)?;
                stage.done.record(stage.stream)?;
            }
            Ok(())
        })
    }

    /// Reads pieces from pages; returns when they have arrived.
    fn read<'a>(
        &self,
        pieces: impl Iterator<Item = Piece<'a>>,
        mut k: &mut [u8],
        mut v: &mut [u8],
    ) -> Result<(), CudaError> {
        let n_bytes = k.len() + v.len();
        let pieces = pieces.map(|piece| {
            let own_k = k.split_off_mut(..piece.bytes.len()).expect("room for every row");
            let own_v = v.split_off_mut(..piece.bytes.len()).expect("room for every row");
            (piece, own_k, own_v)
        });
        self.share_out(pieces, n_bytes, |stages, pieces| {
            self.gpu.bind();
            // The next copy is started before the previous piece is taken.
            let mut asked: Option<(usize, &mut [u8], &mut [u8])> = None;
            for (turn, (piece, k, v)) in pieces.into_iter().enumerate() {
                let stage = &mut stages[turn % IN_FLIGHT];
                stage.done.wait()?;
                stage.pinned.fill(0, piece.pages);
                self.upload(stage, PAGES_BYTES)?;
                self.launch(&self.get_rows, stage, &piece)?;
                let Stage { pinned, memory, stream, .. } = stage;
                self.gpu.download(*stream, pinned, PAGES_BYTES, memory, 2 * k.len())?;
                stage.done.record(stage.stream)?;
                if let Some((turn, k, v)) = asked.replace((turn, k, v)) {
                    stages[turn % IN_FLIGHT].take(k, v)?;
                }
            }
            asked.map_or(Ok(()), |(turn, k, v)| stages[turn % IN_FLIGHT].take(k, v))
        })
    }

    fn upload(&self, stage: &Stage, bytes: usize) -> Result<(), CudaError> {
        self.gpu.upload(stage.stream, &stage.memory, &stage.pinned, bytes)
    }

    fn launch(&self, kernel: &Kernel, stage: &Stage, piece: &Piece<'_>) -> Result<(), CudaError> {
        let elements = piece.bytes.len() / 2;
        let launch = Launch {
            grid: (elements.div_ceil(THREADS), 1),
            threads: THREADS,
            early: false,
            cooperative: false,
        };
        let at = stage.memory.address();
        let (n_rows, first_row) = (piece.n_rows as u32, piece.first_row as u32);
        let place = RowsPlace { pages: at, n_rows, first_row };
        let (k, v) = (at.offset(PAGES_BYTES), at.offset(PAGES_BYTES + piece.bytes.len()));
        let layer = self.layers[usize::from(piece.layer)];
        kernel.launch_in(&self.gpu, stage.stream, launch, &[&place, &k, &v, &layer])
    }

    /// Distributes pieces of so many bytes to threads, each with its own stages.
    fn share_out<P: Send>(
        &self,
        pieces: impl Iterator<Item = P>,
        n_bytes: usize,
        work: impl Fn(&mut [Stage; IN_FLIGHT], Vec<P>) -> Result<(), CudaError> + Sync,
    ) -> Result<(), CudaError> {
        let n_threads = n_bytes.div_ceil(THREAD_BYTES).clamp(1, MOVERS);
        let mut hands: Vec<Vec<P>> = (0..n_threads).map(|_| Vec::new()).collect();
        for (i, piece) in pieces.enumerate() {
            hands[i % n_threads].push(piece);
        }
        // A failed thread leaves no partial state that matters.
        let work = |stages: &Mutex<[Stage; IN_FLIGHT]>, hand| {
            work(&mut stages.lock().unwrap_or_else(PoisonError::into_inner), hand)
        };
        let own = hands.pop().expect("at least one");
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = { self.stages.iter().zip(hands) }
                .filter(|(_, hand)| !hand.is_empty())
                .map(|(stages, hand)| scope.spawn(move || work(stages, hand)))
                .collect();
            let moved = work(&self.stages[n_threads - 1], own);
            { threads.into_iter() }
                .map(|thread| thread.join().unwrap_or_else(|_| panicked()))
                .fold(moved, Result::and)
        })
    }
}

impl Drop for Carrier {
    /// The GPU may still be copying the last pieces.
    fn drop(&mut self) {
        self.gpu.bind();
        for stages in &mut self.stages {
            let stages = stages.get_mut().unwrap_or_else(PoisonError::into_inner);
            stages.iter().for_each(|stage| drop(stage.done.wait()));
        }
    }
}

fn panicked() -> Result<(), CudaError> {
    let reason = "a thread panicked".to_owned();
    Err(CudaError::Driver { call: "moving rows", reason })
}

/// The result of `carry`, or an error if it panicked: a caller that waits for a copy must get an
/// answer.
fn guarded(carry: impl FnOnce() -> Result<(), CudaError>) -> Result<(), CudaError> {
    catch_unwind(AssertUnwindSafe(carry)).unwrap_or_else(|_| panicked())
}

/// Rows of layers in pieces, in the order of the lists. `rows` are those of the pages; all pieces
/// but the first begin with a page.
fn pieces(
    layers: Range<u16>,
    pages: &[PageId],
    rows: Range<usize>,
    row_bytes: usize,
) -> impl Iterator<Item = Piece<'_>> {
    let first_layer = usize::from(layers.start);
    layers.flat_map(move |layer| {
        let Range { start: first, end } = rows;
        let before = (usize::from(layer) - first_layer) * (end - first);
        let starts = if first < end { 0..end } else { 0..0 };
        starts.step_by(PIECE_ROWS).map(move |start| {
            let own = start.max(first)..end.min(start + PIECE_ROWS);
            let listed = before + own.start - first..before + own.end - first;
            Piece {
                layer,
                pages: &pages[start / PAGE_ROWS..own.end.div_ceil(PAGE_ROWS)],
                first_row: own.start - start,
                n_rows: own.len(),
                bytes: listed.start * row_bytes..listed.end * row_bytes,
            }
        })
    })
}

impl Stage {
    /// Moves what the GPU copied to pinned memory to the caller's lists, once the copy is done.
    fn take(&mut self, k: &mut [u8], v: &mut [u8]) -> Result<(), CudaError> {
        self.done.wait()?;
        let len = k.len();
        let bytes = self.pinned.bytes();
        k.copy_from_slice(&bytes[PAGES_BYTES..][..len]);
        v.copy_from_slice(&bytes[PAGES_BYTES + len..][..len]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_reported_to_whoever_waits() {
        let reported = guarded(|| panic!("no room"));
        assert!(matches!(reported, Err(CudaError::Driver { .. })));
        assert!(guarded(|| Ok(())).is_ok());
    }

    #[test]
    fn pieces_cover_every_row_of_every_layer_once() {
        let pages: Vec<PageId> = (10..40).collect();
        assert_eq!(pieces(2..5, &pages, 37..37, 6).count(), 0);
        for (rows, sizes) in
            [(0..1300, [(8, 512), (8, 512), (5, 276)]), (37..1337, [(8, 475), (8, 512), (5, 313)])]
        {
            let pieces: Vec<_> = pieces(2..5, &pages, rows.clone(), 6).collect();
            let shapes: Vec<_> = { pieces.iter() }
                .map(|piece| (piece.layer, piece.pages[0], (piece.pages.len(), piece.n_rows)))
                .collect();
            assert_eq!(shapes[..3], [(2, 10, sizes[0]), (2, 18, sizes[1]), (2, 26, sizes[2])]);
            assert_eq!((shapes[3], pieces.len()), ((3, 10, sizes[0]), 9));
            let mut end = 0;
            for piece in &pieces {
                let row = piece.bytes.start / 6 % 1300 + rows.start;
                let place = (piece.pages[0] as usize - 10) * PAGE_ROWS + piece.first_row;
                assert_eq!(place, row, "where its first row lies");
                assert!(size_of_val(piece.pages) <= PAGES_BYTES);
                assert_eq!((piece.bytes.start, piece.bytes.len()), (end, piece.n_rows * 6));
                end = piece.bytes.end;
            }
            assert_eq!(end, 3 * 1300 * 6);
        }
    }
}
