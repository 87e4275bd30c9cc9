//! Sums of weights, and the rank at which a running sum exceeds a number. Ranks are not sorted for
//! this: weights are added by ranges of distances, and only the ranks in the relevant range are
//! examined one by one.

use super::{
    candidates::{Candidate, Candidates},
    weight::{self, BLOCK, NOTHING_FROM},
};

/// The logarithm of the number of distances in a range. Each halving of the weight has 32 ranges,
/// so that few ranks share one even if there are hundreds of thousands.
const RANGE_BITS: u32 = 27;
const N_RANGES: usize = (NOTHING_FROM >> RANGE_BITS) as usize;

/// Converts scores to distances from the first rank (`weight.rs`).
#[derive(Clone, Copy)]
pub(super) struct Measure {
    pub(super) max: f64,
    pub(super) scale: f64,
}

impl Measure {
    /// Not rounded. It is below a whole number exactly if the rounded one is.
    fn distance(self, score: f32) -> f64 {
        (self.max - f64::from(score)) * self.scale
    }

    fn weight(self, score: f32) -> u64 {
        weight::weight(self.max - f64::from(score), self.scale)
    }
}

/// Reused for every token; only [`Sums::new`] allocates.
#[derive(Clone)]
pub(super) struct Sums {
    of_ranges: Vec<u64>,
    /// Of all added weights.
    all: u64,
    /// Of those that are large enough.
    large: u64,
}

impl Sums {
    pub(super) fn new() -> Self {
        Self { of_ranges: vec![0; N_RANGES], all: 0, large: 0 }
    }

    /// Drops all candidates at a distance of `end` or more (`end` is at most [`NOTHING_FROM`]), and
    /// replaces the sums by those of the remaining ones. Weights from `least` on are large.
    pub(super) fn add_up(
        &mut self,
        candidates: &mut Candidates,
        measure: Measure,
        end: u64,
        least: u64,
    ) {
        (self.all, self.large) = (0, 0);
        self.of_ranges.fill(0);
        let end = end as f64;
        let (mut near, mut n) = ([0.0; BLOCK], 0);
        candidates.keep(|score| {
            // A distant candidate is overwritten by the next.
            let distance = measure.distance(score);
            let is_near = distance < end;
            near[n] = distance;
            n += usize::from(is_near);
            if n == BLOCK {
                self.add_block(&near, n, least);
                n = 0;
            }
            is_near
        });
        near[n..].fill(0.0);
        self.add_block(&near, n, least);
    }

    /// Adds the weights of the first `n` distances.
    fn add_block(&mut self, distances: &[f64; BLOCK], n: usize, least: u64) {
        let distances = distances.map(|distance| distance as u64);
        let mut weights = distances;
        weight::replace_by_weights(&mut weights);
        for (distance, weight) in distances.into_iter().zip(weights).take(n) {
            self.of_ranges[(distance >> RANGE_BITS) as usize] += weight;
            self.all += weight;
            self.large += if weight < least { 0 } else { weight };
        }
    }

    /// The sum of all added weights.
    pub(super) fn all(&self) -> u64 {
        self.all
    }

    /// The sum of the large weights.
    pub(super) fn large(&self) -> u64 {
        self.large
    }

    /// The first rank at which the running sum exceeds `target`, and that sum. `None` if `target`
    /// is not below the sum of all.
    pub(super) fn first_beyond(
        &self,
        target: u64,
        candidates: &mut Candidates,
        measure: Measure,
    ) -> Option<(Candidate, u64)> {
        let mut sum = 0;
        let range = self.of_ranges.iter().position(|of_range| {
            sum += of_range;
            sum > target
        })?;
        sum -= self.of_ranges[range];
        let start = (range as u64) << RANGE_BITS;
        let (start, end) = (start as f64, (start + (1 << RANGE_BITS)) as f64);
        let (mut score, mut weight) = (f32::NAN, 0);
        let mut ranks = candidates.ranked_between(
            |score| measure.distance(score) >= start,
            |score| measure.distance(score) >= end,
        );
        let found = ranks.find(|candidate| {
            if candidate.score != score {
                (score, weight) = (candidate.score, measure.weight(candidate.score));
            }
            sum += weight;
            sum > target
        });
        found.map(|candidate| (candidate, sum))
    }
}
