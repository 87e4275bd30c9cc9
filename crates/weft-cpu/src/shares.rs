//! The attention of tokens to the stretches between their lane's marks, for the tokens that report
//! it.
//!
//! `attend` adds to the shares layer by layer. Each KV head has its own sums, so threads never
//! share one. The order of addition is by layers, then by heads: the same for any number of threads
//! and any other lanes.

use weft_core::config::Config;
use weft_core::device::{self, MAX_MARKS, Reporting, Step};

use crate::memory::Disjoint;

/// Maximum number of stretches of a lane.
const MAX_STRETCHES: usize = MAX_MARKS + 1;

/// The shares of a step. All memory is allocated when it is created.
pub(crate) struct Shares {
    /// f32 \[reported tokens\]\[kv_heads\]\[stretches\]: sums over the layers, and over the query
    /// heads of a KV head.
    sums: Vec<f32>,
    kv_heads: usize,
    /// KV rows that the token sees of each stretch, for each reported token of the current step;
    /// empty for absent ones.
    rows: [Vec<usize>; Reporting::MAX_ROWS],
    reporting: Reporting,
}

impl Shares {
    pub(crate) fn new(config: &Config) -> Self {
        let kv_heads = config.kv_heads;
        let sums = vec![0.0; Reporting::MAX_ROWS * kv_heads * MAX_STRETCHES];
        let rows = std::array::from_fn(|_| Vec::with_capacity(MAX_STRETCHES));
        Self { sums, kv_heads, rows, reporting: Reporting::default() }
    }

    /// Clears the shares of the last step.
    pub(crate) fn start(&mut self, step: &Step<'_>) {
        self.rows.iter_mut().for_each(Vec::clear);
        self.reporting.fill(step);
        for ((lane, token), rows) in self.reporting.tokens().zip(&mut self.rows) {
            let lane = &step.lanes[lane];
            rows.extend(lane.rows_of_stretches(lane.positions[token] as usize));
        }
        for (row, sums) in self.sums.chunks_exact_mut(MAX_STRETCHES).enumerate() {
            sums[..self.rows[row / self.kv_heads].len()].fill(0.0);
        }
    }

    /// The tokens of the current step that report their attention.
    pub(crate) fn reporting(&self) -> &Reporting {
        &self.reporting
    }

    /// The sums, for several threads.
    pub(crate) fn parts(&mut self) -> SharesParts<'_> {
        let Self { sums, kv_heads, rows, .. } = self;
        SharesParts { sums: Disjoint::new(sums), kv_heads: *kv_heads, rows }
    }

    /// The shares of an output of a lane, which sum to 1.
    pub(crate) fn of(&self, lane: usize, output: usize) -> Vec<f32> {
        let row = self.reporting.row_of_output(lane, output);
        let mut all = vec![0.0; self.rows[row].len()];
        let heads = self.sums[row * self.kv_heads * MAX_STRETCHES..].chunks_exact(MAX_STRETCHES);
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
    rows: &'a [Vec<usize>; Reporting::MAX_ROWS],
}

impl SharesParts<'_> {
    /// The KV rows that a reported token sees of each stretch, and the sums of one KV head,
    /// f32 \[stretches\].
    ///
    /// # Safety
    /// No two threads use the sums of the same head of the same token at the same time.
    #[allow(clippy::mut_from_ref, reason = "that is what it is for")]
    pub(crate) unsafe fn head(&self, row: usize, head: usize) -> (&[usize], &mut [f32]) {
        let start = (row * self.kv_heads + head) * MAX_STRETCHES;
        // SAFETY: rows of different heads and tokens do not overlap; the caller promises the rest.
        (&self.rows[row], unsafe { self.sums.part(start, MAX_STRETCHES) })
    }
}
