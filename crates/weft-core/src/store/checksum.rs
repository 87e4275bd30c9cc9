//! The checksum of rows, computed by several threads while the rows are read.
//!
//! BLAKE3 is a tree: pieces are hashed separately and joined, and the result is the hash of the
//! whole. A thread hashes the piece that it has just read, while the piece is still in the core's
//! cache.

use std::sync::{Mutex, PoisonError};
use std::thread;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};

use super::HostRows;
use super::platform::MOST_READERS;

/// Bytes of a piece: a power of two, so that each piece is a subtree.
const PIECE_BYTES: usize = 1 << 18;

/// A slice of `k`, then one of `v`. Only the piece at the border between them has both.
type Piece<'a> = (&'a mut [u8], &'a mut [u8]);

/// Fills rows by `read`, which gets offsets in `k` followed by `v`, on at most `most_threads`
/// threads, and returns the checksum of both.
pub(super) fn fill<E: Send>(
    rows: &mut HostRows,
    most_threads: usize,
    read: impl Fn(usize, &mut [u8]) -> Result<(), E> + Sync,
) -> Result<blake3::Hash, E> {
    let pieces = pieces(rows);
    let n_pieces = pieces.len();
    let hash = |index: usize, (k, v): Piece<'_>| -> Result<blake3::Hasher, E> {
        let offset = index * PIECE_BYTES;
        read(offset, k)?;
        read(offset + k.len(), v)?;
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(offset as u64).update(k).update(v);
        Ok(hasher)
    };
    let n_threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_READERS);
    let n_threads = n_threads.min(most_threads);
    let queue = Mutex::new(pieces.into_iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || -> Result<Vec<(usize, blake3::Hasher)>, E> {
        let mut hashed = Vec::new();
        while let Some((index, piece)) = next() {
            hashed.push((index, hash(index, piece)?));
        }
        Ok(hashed)
    };
    let mut hashed = thread::scope(|scope| {
        let others: Vec<_> = (1..n_threads.min(n_pieces)).map(|_| scope.spawn(work)).collect();
        let mut hashed = work()?;
        for other in others {
            hashed.extend(other.join().expect("reading panicked")?);
        }
        Ok(hashed)
    })?;
    hashed.sort_unstable_by_key(|(index, _)| *index);
    let hashers: Vec<_> = hashed.into_iter().map(|(_, hasher)| hasher).collect();
    Ok(root(&hashers))
}

/// Cuts `k` followed by `v` into pieces; at least one, possibly empty.
fn pieces(rows: &mut HostRows) -> Vec<Piece<'_>> {
    let (mut k, mut v) = (&mut rows.k[..], &mut rows.v[..]);
    let mut pieces = Vec::new();
    while pieces.is_empty() || !(k.is_empty() && v.is_empty()) {
        let n_k = PIECE_BYTES.min(k.len());
        let n_v = (PIECE_BYTES - n_k).min(v.len());
        let own_k = k.split_off_mut(..n_k).expect("it is as long");
        let own_v = v.split_off_mut(..n_v).expect("it is as long");
        pieces.push((own_k, own_v));
    }
    pieces
}

/// The joined hash of consecutive pieces.
fn root(pieces: &[blake3::Hasher]) -> blake3::Hash {
    match pieces {
        [whole] => whole.finalize(),
        pieces => {
            let (left, right) = halves(pieces);
            merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

fn subtree(pieces: &[blake3::Hasher]) -> ChainingValue {
    match pieces {
        [piece] => piece.finalize_non_root(),
        pieces => {
            let (left, right) = halves(pieces);
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

/// The left half is the largest power of two that leaves at least one piece on the right.
fn halves(pieces: &[blake3::Hasher]) -> (&[blake3::Hasher], &[blake3::Hasher]) {
    pieces.split_at(pieces.len().div_ceil(2).next_power_of_two())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(tensor_bytes: usize) -> (HostRows, blake3::Hash) {
        let byte = |offset: usize| (offset * 31 + offset / 257) as u8;
        let room = |bytes| vec![0; bytes].into();
        let mut rows = HostRows { k: room(tensor_bytes), v: room(tensor_bytes) };
        let hash = fill(&mut rows, 3, |offset, to: &mut [u8]| {
            to.iter_mut().enumerate().for_each(|(i, to)| *to = byte(offset + i));
            Ok::<(), ()>(())
        });
        let expected: Vec<u8> = (0..2 * tensor_bytes).map(byte).collect();
        assert!([&rows.k[..], &rows.v].concat() == expected, "{tensor_bytes}");
        (rows, hash.unwrap())
    }

    #[test]
    fn the_checksum_is_that_of_the_whole_wherever_it_is_cut() {
        let half = PIECE_BYTES / 2;
        for pieces in 0..8 {
            let lengths = [0, 1, 8, 1023, 1024, 1025, half - 1];
            for tensor_bytes in lengths.map(|length| pieces * half + length) {
                let (rows, hash) = filled(tensor_bytes);
                let whole = blake3::Hasher::new().update(&rows.k).update(&rows.v).finalize();
                assert_eq!(hash, whole, "{tensor_bytes}");
            }
        }
    }

    #[test]
    fn one_piece_that_cannot_be_read_is_an_error() {
        let room = || vec![0; 5 * PIECE_BYTES].into();
        let mut rows = HostRows { k: room(), v: room() };
        let fails_at =
            |offset| move |at: usize, _: &mut [u8]| if at == offset { Err(at) } else { Ok(()) };
        for piece in [0, 4, 9] {
            let offset = piece * PIECE_BYTES;
            assert_eq!(fill(&mut rows, 3, fails_at(offset)), Err(offset));
        }
    }
}
