//! The tokens that may still be chosen, ranked by score descending and then by id, found without
//! sorting the vocabulary: one pass keeps the best `k`, and ranks are sorted only as far as someone
//! asks. It must not know what a score means or how a rank is picked.

use super::SamplingError;

/// A token and its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: u32,
    pub(super) score: f32,
}

/// A candidate as one integer, the better one less: its score turned so that larger floats are
/// smaller integers, then its id. Selecting and sorting spend their time in comparisons, and those
/// of integers need no branches. Scores here are never NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

impl Key {
    fn new(token: u32, score: f32) -> Self {
        // Adding zero makes -0 to 0, as the two are a tie.
        let bits = (score + 0.0).to_bits();
        // The bits of negative floats rise as these fall, which is the order wanted; those of
        // positive floats are turned round and put before.
        let falling = if bits >> 31 == 1 { bits } else { !bits & !(1 << 31) };
        Self(u64::from(falling) << 32 | u64::from(token))
    }

    fn candidate(self) -> Candidate {
        let falling = (self.0 >> 32) as u32;
        let bits = if falling >> 31 == 1 { falling } else { !falling & !(1 << 31) };
        Candidate { token: self.0 as u32, score: f32::from_bits(bits) }
    }
}

/// Reused for every token: memory is taken by [`Candidates::new`] only.
#[derive(Clone)]
pub(super) struct Candidates {
    /// How many of the best are kept.
    k: usize,
    /// When so many have been gathered, all but the best `k` are thrown away.
    room: usize,
    items: Vec<Key>,
    /// `items[..n_ranked]` are the best ones, in rank order; the rest is worse and in no order.
    n_ranked: usize,
}

impl Candidates {
    /// Room for the best `k` of `vocab` tokens; `k` = 0 keeps all.
    pub(super) fn new(k: usize, vocab: usize) -> Self {
        let k = if k == 0 { vocab } else { k.min(vocab) };
        // Gathering twice as many as are kept makes each selection pay for k new ones.
        let room = k.saturating_mul(2).max(128).min(vocab.max(1));
        Self { k, room, items: Vec::with_capacity(room), n_ranked: 0 }
    }

    /// Replaces the candidates by the best `k` of `scores` (one per token), leaving out -inf.
    /// Fails on NaN, on +inf, and if nothing is left; `index` is for the message.
    pub(super) fn gather(&mut self, scores: &[f32], index: usize) -> Result<(), SamplingError> {
        self.items.clear();
        self.n_ranked = 0;
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

    /// Throws away all but the best `k`; returns the score of the worst of these.
    fn keep_best(&mut self) -> f32 {
        let (_, &mut worst, _) = self.items.select_nth_unstable(self.k - 1);
        self.items.truncate(self.k);
        worst.candidate().score
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Candidate> {
        self.items.iter().map(|key| key.candidate())
    }

    /// The candidate of this rank, from 0.
    pub(super) fn rank(&mut self, rank: usize) -> Option<Candidate> {
        if rank >= self.items.len() {
            return None;
        }
        while rank >= self.n_ranked {
            self.rank_more();
        }
        Some(self.items[rank].candidate())
    }

    /// Ranks the next ones: few at first, as most draws end there, then four times as many as
    /// before, so that ranking everything costs little more than one sort.
    fn rank_more(&mut self) {
        let rest = &mut self.items[self.n_ranked..];
        let n = (self.n_ranked * 3).max(64).min(rest.len());
        if n < rest.len() {
            rest.select_nth_unstable(n - 1);
        }
        rest[..n].sort_unstable();
        self.n_ranked += n;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranked(candidates: &mut Candidates) -> Vec<u32> {
        (0..).map_while(|rank| candidates.rank(rank)).map(|c| c.token).collect()
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
