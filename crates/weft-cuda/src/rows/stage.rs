//! Stages: memory for a piece of rows on its way, on the GPU and, if its list is in plain memory, on
//! the host, where several threads move its bytes.

use std::ops::Range;
use std::sync::Arc;

use weft_core::store::{HostRows, RowBytes};

use super::pool::PinnedRows;
use crate::driver::{Done, Gpu, Memory, Pinned, Stream};
use crate::error::CudaError;

/// Threads that move bytes of plain lists: one core does not keep the bus busy.
const MOVERS: usize = 8;
/// Bytes that are worth a thread.
const THREAD_BYTES: usize = 1 << 20;

/// Memory for a piece on the GPU: keys, then values.
pub(super) struct Stage {
    pub(super) memory: Memory,
    /// The same on the host, for plain lists, once there was one.
    pub(super) pinned: Option<Pinned>,
    /// Where it is copied and reordered.
    pub(super) stream: Stream,
    /// When the GPU is done with it.
    pub(super) done: Done,
}

/// Copies bytes on the host, on several threads if they are many.
pub(super) fn move_bytes(lists: [(&mut [u8], &[u8]); 2]) {
    let n_bytes: usize = lists.iter().map(|(to, _)| to.len()).sum();
    let share = n_bytes.div_ceil(MOVERS).max(THREAD_BYTES);
    let parts =
        lists.into_iter().flat_map(|(to, from)| to.chunks_mut(share).zip(from.chunks(share)));
    let mut parts = parts.peekable();
    std::thread::scope(|scope| {
        while let Some((to, from)) = parts.next() {
            if parts.peek().is_some() {
                scope.spawn(|| to.copy_from_slice(from));
            } else {
                to.copy_from_slice(from);
            }
        }
    });
}

/// The pinned memory that a list lies in, and where it begins.
pub(super) fn pinned(list: &RowBytes) -> Option<(&Pinned, usize)> {
    list.lent::<PinnedRows>().and_then(PinnedRows::pinned)
}

/// A stage's memory on the host.
pub(super) fn on_host<'a>(
    pinned: &'a mut Option<Pinned>,
    gpu: &Arc<Gpu>,
    half_bytes: usize,
) -> Result<&'a mut Pinned, CudaError> {
    if pinned.is_none() {
        *pinned = Some(Pinned::new(gpu, 2 * half_bytes)?);
    }
    Ok(pinned.as_mut().expect("it was just made"))
}

impl Stage {
    /// Moves what the GPU copied to pinned memory to plain lists, once the copy is done.
    pub(super) fn take(&mut self, bytes: Range<usize>, to: &mut HostRows) -> Result<(), CudaError> {
        self.done.wait()?;
        let len = bytes.len();
        let pinned = self.pinned.as_ref().expect("it was asked for");
        let (k, v) = pinned.bytes()[..2 * len].split_at(len);
        move_bytes([(&mut to.k[bytes.clone()], k), (&mut to.v[bytes], v)]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_moved_whatever_the_number_of_threads() {
        for len in [0, 1, THREAD_BYTES - 1, THREAD_BYTES, 5 * THREAD_BYTES + 3] {
            let from: Vec<u8> = (0..2 * len).map(|i| (i * 31 + i / 257) as u8).collect();
            let (mut k, mut v) = (vec![0; len], vec![0; len]);
            move_bytes([(&mut k, &from[..len]), (&mut v, &from[len..])]);
            assert!([k, v].concat() == from, "{len}");
        }
    }
}
