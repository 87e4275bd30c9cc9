//! The tokens that may still be chosen, ranked by score descending and then by id.
//!
//! The vocabulary is never sorted: one pass keeps the best `k`, and only the ranks that a caller
//! asks for are sorted.

use super::SamplingError;

/// A token and its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: u32,
    pub(super) score: f32,
}

/// A candidate as one integer; better candidates are smaller. The score, transformed so that larger
/// floats give smaller integers, comes first, then the id. Selecting and sorting spend their time
/// in comparisons, and integers compare without branches. Scores here are never NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

impl Key {
    fn new(token: u32, score: f32) -> Self {
        // Adding zero turns -0 into 0, because the two are a tie.
        let bits = (score + 0.0).to_bits();
        // The bits of negative floats ascend as their values fall, which is the order wanted. The
        // bits of positive floats are inverted and sorted before them.
        let falling = if bits >> 31 == 1 { bits } else { !bits & !(1 << 31) };
        Self(u64::from(falling) << 32 | u64::from(token))
    }

    /// The smallest key of a candidate whose score satisfies a condition. All lower scores must
    /// satisfy the condition too.
    fn first(condition: impl Fn(f32) -> bool) -> Self {
        let upper_half = |score| Self::new(0, score).0 >> 32;
        let (mut start, mut end) = (upper_half(f32::MAX), upper_half(f32::MIN) + 1);
        while start < end {
            let middle = start.midpoint(end);
            if condition(Self(middle << 32).candidate().score) {
                end = middle;
            } else {
                start = middle + 1;
            }
        }
        Self(start << 32)
    }

    fn candidate(self) -> Candidate {
        let falling = (self.0 >> 32) as u32;
        let bits = if falling >> 31 == 1 { falling } else { !falling & !(1 << 31) };
        Candidate { token: self.0 as u32, score: f32::from_bits(bits) }
    }
}

/// Reused for every token; only [`Candidates::new`] allocates.
#[derive(Clone)]
pub(super) struct Candidates {
    /// Number of best candidates to keep.
    k: usize,
    /// At this many candidates, all but the best `k` are dropped.
    room: usize,
    items: Vec<Key>,
}

impl Candidates {
    /// Space for the best `k` of `vocab` tokens; `k` = 0 keeps all.
    pub(super) fn new(k: usize, vocab: usize) -> Self {
        let k = if k == 0 { vocab } else { k.min(vocab) };
        // With twice as much room as is kept, each selection is shared by k new candidates.
        let room = k.saturating_mul(2).max(128).min(vocab.max(1));
        Self { k, room, items: Vec::with_capacity(room) }
    }

    /// Replaces the candidates by the best `k` of `scores` (one per token), without those at -inf.
    /// Fails on NaN, on +inf, and if nothing is left; `index` is for the message.
    pub(super) fn gather(&mut self, scores: &[f32], index: usize) -> Result<(), SamplingError> {
        self.items.clear();
        // Ids ascend, so a score equal to the worst kept one loses the tie: `<=` drops it.
        let mut worst = f32::NEG_INFINITY;
        for (token, &score) in scores.iter().enumerate() {
            if score <= worst {
                continue;
            }
            let token = token as u32;
            if score.is_nan() || score == f32::INFINITY {
                return Err(SamplingError::BadLogit { index, token, value: score });
            }
            if self.items.len() == self.room {
                worst = self.keep_best();
                if score <= worst {
                    continue;
                }
            }
            self.items.push(Key::new(token, score));
        }
        if self.items.len() > self.k {
            self.keep_best();
        }
        if self.items.is_empty() { Err(SamplingError::NoCandidate { index }) } else { Ok(()) }
    }

    /// Drops all but the best `k`, and returns the worst score of these.
    fn keep_best(&mut self) -> f32 {
        let (_, &mut worst, _) = self.items.select_nth_unstable(self.k - 1);
        self.items.truncate(self.k);
        worst.candidate().score
    }

    /// Drops all candidates whose scores are not wanted. The order is unspecified.
    pub(super) fn keep(&mut self, mut is_wanted: impl FnMut(f32) -> bool) {
        let mut n = 0;
        for i in 0..self.items.len() {
            let key = self.items[i];
            // Without a branch, which would be unpredictable. An unwanted candidate is overwritten
            // by the next.
            self.items[n] = key;
            n += usize::from(is_wanted(key.candidate().score));
        }
        self.items.truncate(n);
    }

    /// The best candidate.
    pub(super) fn best(&self) -> Option<Candidate> {
        self.items.iter().min().map(|key| key.candidate())
    }

    /// All candidates, by rank.
    pub(super) fn ranked(&mut self) -> impl Iterator<Item = Candidate> {
        self.ranked_between(|_| true, |_| false)
    }

    /// The candidates from the first one that `is_in` to the last one before one that `is_past`, by
    /// rank. The others are not sorted. Both conditions must also hold for all lower scores.
    pub(super) fn ranked_between(
        &mut self,
        is_in: impl Fn(f32) -> bool,
        is_past: impl Fn(f32) -> bool,
    ) -> impl Iterator<Item = Candidate> {
        let (start, end) = (Key::first(is_in).0, Key::first(is_past).0);
        let mut n = 0;
        // Moves the wanted candidates to the front in the order in which they are found. Equal ones
        // were gathered in rank order, so sorting many of them is cheap.
        for i in 0..self.items.len() {
            // One comparison for both ends, because two branches would be unpredictable.
            if self.items[i].0.wrapping_sub(start) < end - start {
                self.items.swap(n, i);
                n += 1;
            }
        }
        self.items[..n].sort_unstable();
        self.items[..n].iter().map(|key| key.candidate())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranked(candidates: &mut Candidates) -> Vec<u32> {
        candidates.ranked().map(|c| c.token).collect()
    }

    #[test]
    fn ties_go_to_the_lower_id_also_at_the_border() {
        let mut candidates = Candidates::new(3, 6);
        candidates.gather(&[0.0, 1.0, 2.0, 1.0, 1.0, 2.0], 0).unwrap();
        assert_eq!(ranked(&mut candidates), [2, 5, 1]);
        let mut candidates = Candidates::new(2, 3);
        candidates.gather(&[-0.0, 0.0, -0.0], 0).unwrap();
        assert_eq!(ranked(&mut candidates), [0, 1]);
    }

    #[test]
    fn keys_order_candidates_and_keep_them() {
        let ranked = [f32::MAX, 2.5, 1.0, 1e-45, 0.0, -1e-45, -1.0, -2.5, f32::MIN];
        let keys = ranked.map(|score| Key::new(u32::MAX, score));
        assert!(keys.is_sorted_by(|a, b| a < b));
        assert_eq!(keys.map(|key| key.candidate().score), ranked);
        assert_eq!(Key::new(7, -0.0), Key::new(7, 0.0));
        assert!(Key::new(7, 1.0) < Key::new(8, 1.0));
        assert_eq!(Key::new(8, -3.5).candidate(), Candidate { token: 8, score: -3.5 });
    }

    #[test]
    fn some_are_ranked_without_the_others_and_again() {
        let mut candidates = Candidates::new(0, 8);
        candidates.gather(&[3.0, 1.0, 2.0, 5.0, 2.0, f32::NEG_INFINITY, 4.0, 1.0], 0).unwrap();
        assert_eq!(candidates.best(), Some(Candidate { token: 3, score: 5.0 }));
        for _ in 0..2 {
            let some = candidates.ranked_between(|score| score < 4.0, |score| score < 2.0);
            assert_eq!(some.map(|c| c.token).collect::<Vec<_>>(), [0, 2, 4]);
            let others = candidates.ranked_between(|score| score <= 2.0, |_| false);
            assert_eq!(others.map(|c| c.token).collect::<Vec<_>>(), [2, 4, 1, 7]);
        }
        assert_eq!(ranked(&mut candidates), [3, 6, 0, 2, 4, 1, 7]);
        candidates.keep(|score| score < 2.5);
        assert_eq!(ranked(&mut candidates), [2, 4, 1, 7]);
    }

    #[test]
    fn bad_scores_are_named() {
        let mut candidates = Candidates::new(1, 300);
        let mut scores = [0.0; 300];
        scores[299] = f32::NAN;
        let error = candidates.gather(&scores, 7).unwrap_err().to_string();
        assert_eq!(error, "logit of token 299 is NaN at generated token 7: it must be below inf");
        scores[200] = f32::INFINITY;
        assert!(matches!(
            candidates.gather(&scores, 0),
            Err(SamplingError::BadLogit { token: 200, .. })
        ));
        assert_eq!(
            candidates.gather(&[f32::NEG_INFINITY; 300], 5),
            Err(SamplingError::NoCandidate { index: 5 })
        );
        candidates.gather(&[1.0; 300], 0).unwrap();
        assert_eq!(ranked(&mut candidates), [0], "an error leaves nothing behind");
    }

    #[test]
    fn memory_is_taken_once() {
        let mut candidates = Candidates::new(20, 10_000);
        let capacity = candidates.items.capacity();
        // Ascending scores are the worst case: every token is better than all before it.
        let ascending: Vec<f32> = (0..10_000).map(|i| i as f32).collect();
        candidates.gather(&ascending, 0).unwrap();
        assert_eq!(ranked(&mut candidates), (9_980..10_000).rev().collect::<Vec<_>>());
        assert_eq!(candidates.items.capacity(), capacity);
        assert!(capacity < 1_000);
    }

    proptest! {
        /// Scores from a small grid, so that ties are everywhere.
        #[test]
        fn ranks_equal_a_full_sort(
            grid in prop::collection::vec(-20i8..=20, 1..1500),
            k in 0usize..200,
        ) {
            let scores: Vec<f32> = grid
                .iter()
                .map(|&s| if s == -20 { f32::NEG_INFINITY } else { f32::from(s) })
                .collect();
            let mut expected: Vec<u32> = (0..grid.len() as u32)
                .filter(|&t| grid[t as usize] != -20)
                .collect();
            expected.sort_by_key(|&t| (-i32::from(grid[t as usize]), t));
            if k > 0 {
                expected.truncate(k);
            }
            let mut candidates = Candidates::new(k, scores.len());
            match candidates.gather(&scores, 0) {
                Ok(()) => prop_assert_eq!(ranked(&mut candidates), expected),
                Err(_) => prop_assert!(expected.is_empty()),
            }
        }
    }
}
