//! Byte-pair merging of one word.
//!
//! It applies the merge table in order: always the pair of lowest rank, the leftmost of equals.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// No merge, no neighbour.
const NONE: u32 = u32::MAX;

/// The merge table of a vocabulary.
#[derive(Debug)]
pub(super) struct Merges {
    /// (left id, right id, rank), sorted. A binary search between two entries of `starts` is faster
    /// than a hash table that resists chosen collisions.
    pairs: Vec<(u32, u32, u32)>,
    /// For each left id, the start of its entries in `pairs`.
    starts: Vec<u32>,
    /// The resulting id of each merge, by rank.
    merged: Vec<u32>,
    /// The id of each byte; [`NONE`] for bytes that no UTF-8 text contains.
    byte_ids: [u32; 256],
    /// All tokens by their bytes, if the tokenizer takes a word that is a token without merging
    /// (`ignore_merges`).
    whole: Option<HashMap<Box<[u8]>, u32>>,
}

/// A run of bytes that is one token up to now; a list linked by positions in the word.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    id: u32,
    /// Rank of the merge with the next symbol, or [`NONE`]. A queue entry with another rank is
    /// stale.
    rank: u32,
    previous: u32,
    next: u32,
}

/// Buffers that are reused between words.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    /// Rank and position of possible merges, the next one on top.
    queue: BinaryHeap<Reverse<u64>>,
}

/// A queue entry: orders by rank, then by position.
fn entry(rank: u32, at: u32) -> Reverse<u64> {
    Reverse(u64::from(rank) << 32 | u64::from(at))
}

impl Merges {
    /// `merges` in order of rank: left id, right id, id of the merged token.
    pub(super) fn new(
        merges: impl Iterator<Item = (u32, u32, u32)>,
        byte_ids: [u32; 256],
        whole: Option<HashMap<Box<[u8]>, u32>>,
    ) -> Self {
        let (mut pairs, mut merged) = (Vec::new(), Vec::new());
        for (rank, (left, right, id)) in (0..).zip(merges) {
            pairs.push((left, right, rank));
            merged.push(id);
        }
        // If a pair is listed twice, its last rank counts, as in Hugging Face.
        pairs.sort_unstable_by_key(|&(left, right, rank)| (left, right, Reverse(rank)));
        pairs.dedup_by_key(|&mut (left, right, _)| (left, right));
        let n_left = pairs.last().map_or(0, |&(left, ..)| left + 1);
        let start = |left| pairs.partition_point(|pair| pair.0 < left) as u32;
        let starts = (0..=n_left).map(start).collect();
        Self { pairs, starts, merged, byte_ids, whole }
    }

    /// Appends the tokens of `word`.
    pub(super) fn encode(&self, word: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        if let &[byte] = word {
            ids.push(self.byte_ids[usize::from(byte)]);
            return;
        }
        if let Some(&id) = self.whole.as_ref().and_then(|whole| whole.get(word)) {
            ids.push(id);
            return;
        }
        self.load(word, scratch);
        let Scratch { symbols, queue } = scratch;
        while let Some(Reverse(top)) = queue.pop() {
            let (rank, at) = ((top >> 32) as u32, top as u32);
            if symbols[at as usize].rank == rank {
                self.merge(at, rank, symbols, queue);
            }
        }
        let mut at = 0;
        while at != NONE {
            ids.push(symbols[at as usize].id);
            at = symbols[at as usize].next;
        }
    }

    fn rank(&self, left: u32, right: u32) -> u32 {
        let Some(&[start, end]) = self.starts.get(left as usize..left as usize + 2) else {
            return NONE;
        };
        let pairs = &self.pairs[start as usize..end as usize];
        pairs.binary_search_by_key(&right, |pair| pair.1).map_or(NONE, |at| pairs[at].2)
    }

    /// One symbol per byte, every possible merge queued.
    fn load(&self, word: &[u8], scratch: &mut Scratch) {
        let Scratch { symbols, queue } = scratch;
        symbols.clear();
        let last = word.len() as u32 - 1;
        let mut entries = std::mem::take(queue).into_vec();
        entries.clear();
        for (at, &byte) in (0..).zip(word) {
            let id = self.byte_ids[usize::from(byte)];
            let rank = match word.get(at as usize + 1) {
                Some(&next) => self.rank(id, self.byte_ids[usize::from(next)]),
                None => NONE,
            };
            if rank != NONE {
                entries.push(entry(rank, at));
            }
            let next = if at == last { NONE } else { at + 1 };
            symbols.push(Symbol { id, rank, previous: at.wrapping_sub(1), next });
        }
        *queue = BinaryHeap::from(entries);
    }

    /// Merges the symbol at `at` with the next one, and queues the resulting pairs.
    fn merge(
        &self,
        at: u32,
        rank: u32,
        symbols: &mut [Symbol],
        queue: &mut BinaryHeap<Reverse<u64>>,
    ) {
        let gone = symbols[at as usize].next as usize;
        let next = symbols[gone].next;
        symbols[gone].rank = NONE;
        let id = self.merged[rank as usize];
        let mut with_next = NONE;
        if next != NONE {
            symbols[next as usize].previous = at;
            with_next = self.rank(id, symbols[next as usize].id);
        }
        let previous = symbols[at as usize].previous;
        symbols[at as usize] = Symbol { id, rank: with_next, previous, next };
        if with_next != NONE {
            queue.push(entry(with_next, at));
        }
        if previous != NONE {
            let with_previous = self.rank(symbols[previous as usize].id, id);
            symbols[previous as usize].rank = with_previous;
            if with_previous != NONE {
                queue.push(entry(with_previous, previous));
            }
        }
    }
}
