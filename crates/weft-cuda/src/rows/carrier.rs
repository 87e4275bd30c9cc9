//! Copies rows between KV pages and lists on the host, a piece at a time.
//!
//! The GPU copies between lists in pinned memory and its own stages, and kernels reorder elements
//! between stages and pages; while one piece is reordered, others are copied in other streams. If a
//! list is in plain memory, host threads move its bytes through pinned memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

use weft_core::config::Config;
use weft_core::store::{HostRows, PackedRows};

use super::pieces::{PIECE_PAGES, Piece, groups, half_bytes, pieces};
use super::pool::RowPool;
use super::stage::{Stage, move_bytes, on_host, pinned};
use super::{Copy, Job, LayerEnds, Message, Way};
use crate::driver::{Address, Argument, COPY_STREAMS, Done, Gpu, Kernel, Launch, Memory, Stream};
use crate::error::CudaError;
use crate::kernels::Kernels;
use crate::kv::Kv;
use crate::layouts::{Layout, layout};

const THREADS: usize = 256;
/// Copies are submitted together, because then those of first layers come first. Until somebody
/// waits for them, only as many as keep the bus busy: so many batches of at least so many bytes of
/// keys.
const AHEAD: usize = 2;
const AHEAD_BYTES: usize = 16 << 20;
/// How often to look whether lists can be let go, and whether the bus has little left to do.
const LOOK: Duration = Duration::from_micros(200);
const LOOK_AHEAD: Duration = Duration::from_micros(50);

/// Kernels call it `RowsPlace`.
#[repr(C)]
struct RowsPlace {
    pages: [u32; PIECE_PAGES],
    n_rows: u32,
    first_row: u32,
    layer_bytes: u64,
}

// SAFETY: `repr(C)`, with the fields of the kernels' `RowsPlace`.
unsafe impl Argument for RowsPlace {}

/// Structs that kernels must lay out as here.
pub(crate) fn layout() -> Layout {
    layout!(RowsPlace as "RowsPlace" { pages, n_rows, first_row, layer_bytes })
}

/// A job that writes rows into pages.
struct Coming {
    layers: Range<u16>,
    rows: Range<usize>,
    packed: bool,
    from: Arc<HostRows>,
    copy: Arc<Copy>,
}

/// Copies rows; owned by the thread in `rows.rs`.
pub(super) struct Carrier {
    gpu: Arc<Gpu>,
    full: Form,
    packed: Form,
    /// The pages of each layer, and the bytes from one layer to the next.
    layers: Vec<Address>,
    layer_bytes: u64,
    /// One for each stream.
    stages: Vec<Stage>,
    /// A point in each stream for copies.
    points: [Done; COPY_STREAMS],
    /// Jobs that will be submitted together.
    waiting: VecDeque<Coming>,
    /// Copies that were submitted before somebody waited for them: the last one of each batch.
    ahead: Vec<Arc<Copy>>,
    /// Copies that may not be done, and the lists that the GPU may still copy from.
    held: Vec<(Arc<Copy>, Arc<HostRows>)>,
    pool: Arc<RowPool>,
    /// Bytes of the keys of the largest piece.
    half_bytes: usize,
}

/// How rows lie in lists, and the kernels that know it.
struct Form {
    put: Kernel,
    get: Kernel,
    /// Bytes of a row's key, and those that a block of threads moves.
    row_bytes: usize,
    block_bytes: usize,
}

/// Bytes that stages take on the GPU.
pub(crate) fn bytes(config: &Config) -> usize {
    COPY_STREAMS * 2 * half_bytes(config)
}

impl Carrier {
    /// Creates it for pages that outlive it.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        config: &Config,
        kernels: &Kernels,
        kv: &Kv,
        pool: &Arc<RowPool>,
    ) -> Result<Self, CudaError> {
        let half_bytes = half_bytes(config);
        let stage = |n: usize| -> Result<Stage, CudaError> {
            Ok(Stage {
                memory: Memory::new(gpu, "rows on their way", 2 * half_bytes)?,
                pinned: None,
                stream: Stream::Copies(n),
                done: Done::new(gpu)?,
            })
        };
        let point = || Done::new(gpu);
        Ok(Self {
            stages: (0..COPY_STREAMS).map(stage).collect::<Result<_, CudaError>>()?,
            points: [point()?, point()?, point()?, point()?],
            waiting: VecDeque::new(),
            ahead: Vec::new(),
            held: Vec::new(),
            gpu: Arc::clone(gpu),
            pool: Arc::clone(pool),
            full: Form {
                put: kernels.put_rows.clone(),
                get: kernels.get_rows.clone(),
                row_bytes: config.kv_width() * 2,
                block_bytes: THREADS * 2,
            },
            packed: {
                let form = PackedRows { kv_width: config.kv_width(), group: config.head_dim };
                let row_bytes = form.row_bytes();
                Form {
                    put: kernels.put_packed_rows.clone(),
                    get: kernels.get_packed_rows.clone(),
                    row_bytes,
                    // A warp moves a head.
                    block_bytes: row_bytes / config.kv_heads * (THREADS / 32),
                }
            },
            layers: (0..config.layers as u16).map(|layer| kv.layer(layer)).collect(),
            layer_bytes: kv.layer_bytes() as u64,
            half_bytes,
        })
    }

    /// Runs jobs until the channel closes.
    pub(super) fn carry(mut self, messages: &Receiver<Message>) {
        while let Some(message) = self.hear(messages) {
            self.gpu.bind();
            match message {
                Message::Now => self.submit(usize::MAX),
                Message::Copy(Job { layers, rows, packed, way: Way::In(from), copy }) => {
                    // Pieces of a batch are written in any order.
                    if self.waiting.iter().any(|job| job.copy.is_at(&copy.pages)) {
                        self.submit(usize::MAX);
                    }
                    self.waiting.push_back(Coming { layers, rows, packed, from, copy });
                }
                Message::Copy(Job { layers, rows, packed, way: Way::Out(bytes, to), copy }) => {
                    self.submit(usize::MAX);
                    let carry = || self.carry_out((layers, rows, packed), bytes, &copy, &to);
                    let carried = guarded(carry);
                    copy.report(&carried);
                }
            }
        }
        self.gpu.bind();
        self.submit(usize::MAX);
    }

    /// The next message. Meanwhile lists are let go when the GPU has copied them, and jobs that
    /// wait are submitted a few at a time.
    fn hear(&mut self, messages: &Receiver<Message>) -> Option<Message> {
        loop {
            match messages.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            self.gpu.bind();
            let is_in_flight = |copy: &Copy| !copy.is_over() && !copy.has_failed();
            self.held.retain(|(copy, _)| is_in_flight(copy));
            self.ahead.retain(|copy| is_in_flight(copy));
            if !self.waiting.is_empty() && self.ahead.len() < AHEAD {
                let few = self.a_few();
                self.ahead.extend(self.waiting.get(few - 1).map(|job| Arc::clone(&job.copy)));
                self.submit(few);
                continue;
            }
            let look = if self.waiting.is_empty() { LOOK } else { LOOK_AHEAD };
            if self.waiting.is_empty() && self.held.is_empty() {
                return messages.recv().ok();
            }
            match messages.recv_timeout(look) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// How many of the waiting jobs keep the bus busy for a while.
    fn a_few(&self) -> usize {
        let bytes = self.waiting.iter().scan(0, |sum, job| {
            *sum += job.layers.len() * job.rows.len() * self.form(job.packed).row_bytes;
            Some(*sum)
        });
        1 + bytes.take_while(|bytes| *bytes < AHEAD_BYTES).count().min(self.waiting.len() - 1)
    }

    /// Submits the first `n` of the waiting jobs to the GPU.
    fn submit(&mut self, n: usize) {
        let batch: Vec<Coming> = self.waiting.drain(..n.min(self.waiting.len())).collect();
        if batch.is_empty() {
            return;
        }
        let carried = guarded(|| self.carry_in(&batch));
        if carried.is_err() {
            self.wait_for_stages();
        }
        batch.iter().for_each(|job| job.copy.report(&carried));
        self.held.extend(batch.into_iter().map(|job| (job.copy, job.from)));
    }

    fn carry_out(
        &mut self,
        (layers, rows, packed): (Range<u16>, Range<usize>, bool),
        bytes: usize,
        copy: &Copy,
        receiver: &Sender<HostRows>,
    ) -> Result<(), CudaError> {
        let mut to = HostRows { k: self.pool.take(bytes), v: self.pool.take(bytes) };
        self.fork([copy])?;
        let first_layer = layers.start;
        let (row_bytes, half_bytes) = (self.form(packed).row_bytes, self.half_bytes);
        let pieces = pieces(layers, first_layer, &copy.pages, rows, row_bytes, half_bytes);
        let read = self.read(pieces, packed, &mut to);
        // The lists must not go while the GPU writes to them.
        self.wait_for_stages();
        read?;
        self.join([copy])?;
        // The caller may have gone.
        let _ = receiver.send(to);
        Ok(())
    }

    fn carry_in(&mut self, batch: &[Coming]) -> Result<(), CudaError> {
        self.begin_after(batch)?;
        let half_bytes = self.half_bytes;
        let row_bytes: Vec<_> = batch.iter().map(|job| self.form(job.packed).row_bytes).collect();
        let chunk =
            |(job, row_bytes): (&Coming, &usize)| (job.layers.clone(), job.rows.len() * row_bytes);
        let chunks: Vec<_> = batch.iter().zip(&row_bytes).map(chunk).collect();
        let mut turn = 0;
        let mut ends = Vec::new();
        for group in groups(&chunks) {
            for (n, run) in group.runs {
                let Coming { layers, rows, packed, from, copy } = &batch[n];
                let (first, rows) = (layers.start, rows.clone());
                for piece in pieces(run, first, &copy.pages, rows, row_bytes[n], half_bytes) {
                    self.write(&piece, from, *packed, turn % COPY_STREAMS)?;
                    turn += 1;
                }
            }
            ends.push((group.end, self.points_now()?));
        }
        let ends = Arc::new(LayerEnds(ends));
        for Coming { copy, .. } in batch {
            // A copy is carried once.
            let _ = copy.layers.set(Arc::clone(&ends));
        }
        self.join(batch.iter().map(|job| &*job.copy))
    }

    /// New events, one in each stream, at what it has been given so far.
    fn points_now(&self) -> Result<[Done; COPY_STREAMS], CudaError> {
        let point = |n| {
            let done = Done::new(&self.gpu)?;
            done.record(Stream::Copies(n)).map(|()| done)
        };
        Ok([point(0)?, point(1)?, point(2)?, point(3)?])
    }

    /// Makes every stream begin after what these jobs wait for, and after earlier copies to their
    /// pages. Streams need not wait for one another otherwise: each keeps the order of its stage.
    fn begin_after(&self, batch: &[Coming]) -> Result<(), CudaError> {
        let meets =
            |(copy, _): &(Arc<Copy>, _)| batch.iter().any(|job| copy.is_at(&job.copy.pages));
        if self.held.iter().any(meets) {
            return self.fork(batch.iter().map(|job| &*job.copy));
        }
        // What the last one waits for comes after what the others wait for.
        let Some(last) = batch.last() else { return Ok(()) };
        (0..COPY_STREAMS).try_for_each(|n| self.gpu.order(Stream::Copies(n), &last.copy.ready))
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

    /// Writes a piece into pages; the copy may still run when it returns. A stage's stream keeps
    /// the order of its pieces.
    fn write(
        &mut self,
        piece: &Piece<'_>,
        from: &HostRows,
        packed: bool,
        n: usize,
    ) -> Result<(), CudaError> {
        let (bytes, len) = (piece.bytes.clone(), piece.bytes.len());
        let stage = &mut self.stages[n];
        match [&from.k, &from.v].map(pinned) {
            [Some(k), Some(v)] => {
                for (at, (pinned, start)) in [(0, k), (len, v)] {
                    let from = (pinned, start + bytes.start);
                    self.gpu.upload_part(stage.stream, (&stage.memory, at), from, len)?;
                }
            }
            _ => {
                stage.done.wait()?;
                let pinned = on_host(&mut stage.pinned, &self.gpu, self.half_bytes)?;
                let (k, v) = pinned.bytes_mut()[..2 * len].split_at_mut(len);
                move_bytes([(k, &from.k[bytes.clone()]), (v, &from.v[bytes])]);
                self.gpu.upload_part(stage.stream, (&stage.memory, 0), (pinned, 0), 2 * len)?;
            }
        }
        let (stage, form) = (&self.stages[n], self.form(packed));
        self.launch(&form.put, form, stage, piece)?;
        stage.done.record(stage.stream)
    }

    /// Reads pieces from pages to lists; the last ones may be on their way when it returns.
    fn read<'a>(
        &mut self,
        pieces: impl Iterator<Item = Piece<'a>>,
        packed: bool,
        to: &mut HostRows,
    ) -> Result<(), CudaError> {
        let is_pinned = [&to.k, &to.v].into_iter().all(|list| pinned(list).is_some());
        // Of a plain list, the next piece is asked for before the previous one is taken.
        let mut asked: Option<(usize, Range<usize>)> = None;
        for (turn, piece) in pieces.enumerate() {
            let n = turn % COPY_STREAMS;
            let (bytes, len) = (piece.bytes.clone(), piece.bytes.len());
            let form = self.form(packed);
            self.launch(&form.get, form, &self.stages[n], &piece)?;
            let stage = &mut self.stages[n];
            for (at, list) in [(0, &to.k), (len, &to.v)] {
                let target = match pinned(list).filter(|_| is_pinned) {
                    Some((pinned, start)) => (pinned, start + bytes.start),
                    None => (&*on_host(&mut stage.pinned, &self.gpu, self.half_bytes)?, at),
                };
                self.gpu.download(stage.stream, target, (&stage.memory, at), len)?;
            }
            stage.done.record(stage.stream)?;
            if !is_pinned && let Some((n, bytes)) = asked.replace((n, bytes)) {
                self.stages[n].take(bytes, to)?;
            }
        }
        asked.map_or(Ok(()), |(n, bytes)| self.stages[n].take(bytes, to))
    }

    fn form(&self, packed: bool) -> &Form {
        if packed { &self.packed } else { &self.full }
    }

    fn launch(
        &self,
        kernel: &Kernel,
        form: &Form,
        stage: &Stage,
        piece: &Piece<'_>,
    ) -> Result<(), CudaError> {
        let n_layers = piece.layers.len();
        let launch = Launch {
            grid: ((piece.bytes.len() / n_layers).div_ceil(form.block_bytes), n_layers),
            threads: THREADS,
            early: false,
            cooperative: false,
        };
        let mut pages = [0; PIECE_PAGES];
        pages[..piece.pages.len()].copy_from_slice(piece.pages);
        let place = RowsPlace {
            pages,
            n_rows: piece.n_rows as u32,
            first_row: piece.first_row as u32,
            layer_bytes: self.layer_bytes,
        };
        let k = stage.memory.address();
        let v = k.offset(piece.bytes.len());
        let layer = self.layers[usize::from(piece.layers.start)];
        kernel.launch_in(&self.gpu, stage.stream, launch, &[&place, &k, &v, &layer])
    }

    /// Waits until the GPU is done with all pieces. After a failure it is, and the next call says
    /// so.
    fn wait_for_stages(&self) {
        self.stages.iter().for_each(|stage| drop(stage.done.wait()));
    }
}

impl Drop for Carrier {
    /// The GPU may still be copying the last pieces.
    fn drop(&mut self) {
        self.gpu.bind();
        self.wait_for_stages();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_reported_to_whoever_waits() {
        let reported = guarded(|| panic!("no room"));
        assert!(matches!(reported, Err(CudaError::Driver { .. })));
        assert!(guarded(|| Ok(())).is_ok());
    }
}
