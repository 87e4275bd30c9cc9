//! Rows between KV pages and lists of the host, a piece of a layer at a time, through pinned memory.
//!
//! Kernels sort elements, the GPU copies, and threads of this machine move bytes between the caller's
//! lists and pinned memory: while one piece is copied, another is moved. Rows that go to the GPU are on
//! their way when a call returns; whatever uses their pages comes after them in the stream.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use weft::config::Config;
use weft::device::Rows;
use weft::kv::{PAGE_ROWS, PageId};

use crate::driver::{Address, Argument, Done, Gpu, Kernel, Launch, Memory, Pinned};
use crate::error::CudaError;
use crate::kernels::Kernels;
use crate::kv::Kv;

/// Threads that move bytes, each with pieces of its own: one core does not keep the bus busy.
const MOVERS: usize = 4;
/// Pieces that a thread has on their way.
const IN_FLIGHT: usize = 2;
/// The most rows of a piece.
const PIECE_ROWS: usize = 512;
const PAGES_BYTES: usize = PIECE_ROWS / PAGE_ROWS * 4;
const THREADS: usize = 256;

/// Kernels call it `RowsPlace`.
#[repr(C)]
struct RowsPlace {
    pages: Address,
    n_rows: u64,
}

impl Argument for RowsPlace {}

/// Some rows of one layer.
struct Piece<'a> {
    layer: u16,
    pages: &'a [PageId],
    n_rows: usize,
    /// Where they lie in the caller's lists.
    bytes: Range<usize>,
}

/// Room for a piece on both sides: its pages, keys, then values.
struct Stage {
    pinned: Pinned,
    memory: Memory,
    /// When the GPU is done with it.
    done: Done,
}

/// The way in and out of pages.
pub(crate) struct Mover {
    stages: Vec<Mutex<[Stage; IN_FLIGHT]>>,
    /// Bytes of a row's key.
    row_bytes: usize,
}

/// What rows are moved on.
pub(crate) struct On<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) kernels: &'a Kernels,
    pub(crate) kv: &'a Kv,
}

/// What stages take on the GPU.
pub(crate) fn bytes(config: &Config) -> usize {
    MOVERS * IN_FLIGHT * stage_bytes(config)
}

fn stage_bytes(config: &Config) -> usize {
    PAGES_BYTES + 2 * PIECE_ROWS * config.kv_width() * 2
}

impl Mover {
    pub(crate) fn new(gpu: &Arc<Gpu>, config: &Config) -> Result<Self, CudaError> {
        let (row_bytes, bytes) = (config.kv_width() * 2, stage_bytes(config));
        let stage = || -> Result<Stage, CudaError> {
            Ok(Stage {
                pinned: Pinned::new(gpu, bytes)?,
                memory: Memory::new(gpu, "rows on their way", bytes)?,
                done: Done::new(gpu)?,
            })
        };
        let stages = (0..MOVERS).map(|_| Ok(Mutex::new([stage()?, stage()?])));
        Ok(Self { stages: stages.collect::<Result<_, CudaError>>()?, row_bytes })
    }

    /// Writes rows of layers into pages; `k` and `v` are \[layers\]\[rows\]\[kv_width\].
    pub(crate) fn write(
        &self,
        on: &On<'_>,
        layers: Range<u16>,
        rows: &Rows<'_>,
        k: &[u8],
        v: &[u8],
    ) -> Result<(), CudaError> {
        let pieces = self.pieces(layers, rows).map(|piece| {
            let bytes = piece.bytes.clone();
            (piece, &k[bytes.clone()], &v[bytes])
        });
        self.share_out(pieces, |stages, pieces| {
            on.gpu.bind();
            for (turn, (piece, k, v)) in pieces.into_iter().enumerate() {
                let stage = &mut stages[turn % IN_FLIGHT];
                stage.done.wait()?;
                stage.pinned.fill(0, piece.pages);
                stage.pinned.fill(PAGES_BYTES, k);
                stage.pinned.fill(PAGES_BYTES + k.len(), v);
                let bytes = PAGES_BYTES + k.len() + v.len();
                on.gpu.upload(stage.memory.address(), &stage.pinned, bytes)?;
                stage.launch(on, &on.kernels.put_rows, &piece)?;
                stage.done.record(on.gpu)?;
            }
            Ok(())
        })
    }

    /// Reads rows of layers out of pages; returns when they are there.
    pub(crate) fn read(
        &self,
        on: &On<'_>,
        layers: Range<u16>,
        rows: &Rows<'_>,
        (mut k, mut v): (&mut [u8], &mut [u8]),
    ) -> Result<(), CudaError> {
        let pieces = self.pieces(layers, rows).map(|piece| {
            let own_k = k.split_off_mut(..piece.bytes.len()).expect("room for every row");
            let own_v = v.split_off_mut(..piece.bytes.len()).expect("room for every row");
            (piece, own_k, own_v)
        });
        self.share_out(pieces, |stages, pieces| {
            on.gpu.bind();
            // A piece is asked for before the one before it is taken.
            let mut asked: Option<(usize, &mut [u8], &mut [u8])> = None;
            for (turn, (piece, k, v)) in pieces.into_iter().enumerate() {
                let stage = &mut stages[turn % IN_FLIGHT];
                stage.done.wait()?;
                stage.pinned.fill(0, piece.pages);
                on.gpu.upload(stage.memory.address(), &stage.pinned, PAGES_BYTES)?;
                stage.launch(on, &on.kernels.get_rows, &piece)?;
                on.gpu.download(&stage.pinned, PAGES_BYTES, &stage.memory, 2 * k.len())?;
                stage.done.record(on.gpu)?;
                if let Some((turn, k, v)) = asked.replace((turn, k, v)) {
                    stages[turn % IN_FLIGHT].take(k, v)?;
                }
            }
            asked.map_or(Ok(()), |(turn, k, v)| stages[turn % IN_FLIGHT].take(k, v))
        })
    }

    /// Rows of layers in pieces, in the order of the lists.
    fn pieces<'a>(
        &self,
        layers: Range<u16>,
        rows: &Rows<'a>,
    ) -> impl Iterator<Item = Piece<'a>> + use<'a> {
        let (pages, len, row_bytes) = (rows.pages, rows.len, self.row_bytes);
        let first_layer = usize::from(layers.start);
        layers.flat_map(move |layer| {
            let start = (usize::from(layer) - first_layer) * len;
            (0..len).step_by(PIECE_ROWS).map(move |row| {
                let n_rows = PIECE_ROWS.min(len - row);
                Piece {
                    layer,
                    pages: &pages[row / PAGE_ROWS..][..n_rows.div_ceil(PAGE_ROWS)],
                    n_rows,
                    bytes: (start + row) * row_bytes..(start + row + n_rows) * row_bytes,
                }
            })
        })
    }

    /// Deals pieces out to threads, each with stages of its own.
    fn share_out<P: Send>(
        &self,
        pieces: impl Iterator<Item = P>,
        work: impl Fn(&mut [Stage; IN_FLIGHT], Vec<P>) -> Result<(), CudaError> + Sync,
    ) -> Result<(), CudaError> {
        let mut hands: Vec<Vec<P>> = self.stages.iter().map(|_| Vec::new()).collect();
        for (i, piece) in pieces.enumerate() {
            hands[i % MOVERS].push(piece);
        }
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = { self.stages.iter().zip(hands) }
                .filter(|(_, hand)| !hand.is_empty())
                .map(|(stages, hand)| {
                    scope.spawn(move || {
                        // A thread that failed left nothing half done that matters.
                        work(&mut stages.lock().unwrap_or_else(PoisonError::into_inner), hand)
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("moving panicked"))
        })
    }
}

impl Stage {
    fn launch(&self, on: &On<'_>, kernel: &Kernel, piece: &Piece<'_>) -> Result<(), CudaError> {
        let elements = piece.bytes.len() / 2;
        let launch = Launch {
            grid: (elements.div_ceil(THREADS), 1),
            threads: THREADS,
            early: false,
            cooperative: false,
        };
        let at = self.memory.address();
        let place = RowsPlace { pages: at, n_rows: piece.n_rows as u64 };
        let (k, v) = (at.offset(PAGES_BYTES), at.offset(PAGES_BYTES + piece.bytes.len()));
        kernel.launch(on.gpu, launch, &[&place, &k, &v, &on.kv.layer(piece.layer)])
    }

    /// Hands out what the GPU left in pinned memory, once it has.
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
    fn pieces_cover_every_row_of_every_layer_once() {
        let mover = Mover { stages: Vec::new(), row_bytes: 6 };
        let pages: Vec<PageId> = (10..40).collect();
        let rows = Rows { pages: &pages, len: 1300 };
        let pieces: Vec<_> = mover.pieces(2..5, &rows).collect();
        let shapes: Vec<_> = { pieces.iter() }
            .map(|piece| (piece.layer, piece.pages[0], piece.pages.len(), piece.n_rows))
            .collect();
        assert_eq!(
            shapes[..4],
            [(2, 10, 8, 512), (2, 18, 8, 512), (2, 26, 5, 276), (3, 10, 8, 512)]
        );
        assert_eq!(pieces.len(), 9);
        let mut end = 0;
        for piece in &pieces {
            assert_eq!((piece.bytes.start, piece.bytes.len()), (end, piece.n_rows * 6));
            end = piece.bytes.end;
        }
        assert_eq!(end, 3 * 1300 * 6);
    }
}
