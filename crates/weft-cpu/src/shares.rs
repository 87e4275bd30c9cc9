//! How the last token of each lane spread its attention over the lane's spans.
//!
//! `attend` adds to it layer by layer. Each KV head has sums of its own, so threads never share one
//! and the order of adding is that of the layers, then of the heads: the same for any number of
//! threads, and whatever runs beside the lane.

use weft::config::Config;
use weft::device::{self, MAX_LANES, MAX_SPANS, Step};

use crate::memory::Disjoint;

/// The shares of a step. All memory is taken when it is made.
pub(crate) struct Shares {
    /// f32 \[lanes\]\[kv_heads\]\[spans\]: sums over the layers, and over the query heads of a KV head.
    sums: Vec<f32>,
    kv_heads: usize,
    /// Spans of each lane of the step in hand; none of the lanes it does not have.
    n_spans: [usize; MAX_LANES],
}

impl Shares {
    pub(crate) fn new(config: &Config) -> Self {
        let kv_heads = config.kv_heads;
        let sums = vec![0.0; MAX_LANES * kv_heads * MAX_SPANS];
        Self { sums, kv_heads, n_spans: [0; MAX_LANES] }
    }

    /// Forgets the last step.
    pub(crate) fn start(&mut self, step: &Step<'_>) {
        self.n_spans = [0; MAX_LANES];
        for (lane, n_spans) in step.lanes.iter().zip(&mut self.n_spans) {
            *n_spans = lane.spans.len();
        }
        for (row, sums) in self.sums.chunks_exact_mut(MAX_SPANS).enumerate() {
            sums[..self.n_spans[row / self.kv_heads]].fill(0.0);
        }
    }

    /// For adding from several threads.
    pub(crate) fn parts(&mut self) -> SharesParts<'_> {
        SharesParts { sums: Disjoint::new(&mut self.sums), kv_heads: self.kv_heads }
    }

    /// Those of a lane, as shares of 1.
    pub(crate) fn of(&self, lane: usize) -> Vec<f32> {
        let mut all = vec![0.0; self.n_spans[lane]];
        let heads = self.sums[lane * self.kv_heads * MAX_SPANS..].chunks_exact(MAX_SPANS);
        for sums in heads.take(self.kv_heads) {
            all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
        }
        device::shares(&all)
    }
}

/// Sums that several threads add to.
pub(crate) struct SharesParts<'a> {
    sums: Disjoint<'a, f32>,
    kv_heads: usize,
}

impl SharesParts<'_> {
    /// The sums of one KV head of a lane, f32 \[spans\].
    ///
    /// # Safety
    /// No two threads use the sums of the same head of the same lane at the same time.
    #[allow(clippy::mut_from_ref, reason = "that is what it is for")]
    pub(crate) unsafe fn head(&self, lane: usize, head: usize) -> &mut [f32] {
        // SAFETY: rows of different heads and lanes do not overlap; the caller promises the rest.
        unsafe { self.sums.part((lane * self.kv_heads + head) * MAX_SPANS, MAX_SPANS) }
    }
}
