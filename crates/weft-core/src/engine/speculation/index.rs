//! An index of a text's tokens that finds the longest match of a suffix.
//!
//! Two chains link the places that end with the same tokens: with the same [`SHORT`] tokens, and
//! with the same [`LONG`] ones. A look-up follows the long chain, and the short one if that finds
//! nothing, from the most recent place back, over a bounded number of places. The index grows token
//! by token and takes at most 16 bytes for each, its copy of the text included.

/// Tokens that a match has at least.
pub(super) const SHORT: usize = 3;
/// Tokens of a long match. Matches of this length are found even if their last tokens are common.
const LONG: usize = 10;
/// Places that a look-up compares at most, in each chain.
const MAX_PLACES: usize = 24;
/// Matches of this many tokens and longer ones count as equally long.
const MAX_MATCH: usize = 64;
/// Places for each bucket of a chain on average, at most.
const LOAD: usize = 4;

/// The tokens before `end` that equal the end of another text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// The place of the token that follows.
    pub(super) end: usize,
    /// Tokens that are equal; [`MAX_MATCH`] stands for more, too.
    pub(super) len: usize,
}

/// The index.
#[derive(Clone, Debug)]
pub(super) struct SuffixIndex {
    tokens: Vec<u32>,
    long: Chain,
    short: Chain,
}

/// Places in the text by the hash of the tokens before them.
#[derive(Clone, Debug)]
struct Chain {
    /// The number of tokens that are hashed.
    order: usize,
    /// The last place of each hash; 0 if there is none.
    heads: Vec<u32>,
    /// For each place from `order` on, the place before with the same hash.
    previous: Vec<u32>,
}

impl SuffixIndex {
    /// An index of a text.
    pub(super) fn new(tokens: &[u32]) -> Self {
        let mut index = Self::with_room(tokens.len());
        tokens.iter().for_each(|token| index.push(*token));
        index
    }

    /// An empty index that can grow to `n` tokens without moving.
    pub(super) fn with_room(n: usize) -> Self {
        let tokens = Vec::with_capacity(n);
        Self { tokens, long: Chain::with_room(LONG, n), short: Chain::with_room(SHORT, n) }
    }

    /// Adds a token to the end of the text.
    pub(super) fn push(&mut self, token: u32) {
        let Self { tokens, long, short } = self;
        tokens.push(token);
        long.add_last(tokens);
        short.add_last(tokens);
    }

    /// The text.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        let chain = |chain: &Chain| chain.heads.capacity() + chain.previous.capacity();
        (self.tokens.capacity() + chain(&self.long) + chain(&self.short)) * size_of::<u32>()
    }

    /// The longest match of the end of `text` that another token follows; of several, the most
    /// recent.
    pub(super) fn find(&self, text: &[u32]) -> Option<Match> {
        let in_chain = |chain: &Chain| chain.find(&self.tokens, text);
        in_chain(&self.long).or_else(|| in_chain(&self.short))
    }
}

impl Chain {
    fn with_room(order: usize, n: usize) -> Self {
        let heads = vec![0; (n / LOAD).next_power_of_two()];
        Self { order, heads, previous: Vec::with_capacity((n + 1).saturating_sub(order)) }
    }

    /// Adds the place after the last token.
    fn add_last(&mut self, tokens: &[u32]) {
        if tokens.len() > 2 * LOAD * self.heads.len() {
            *self = Self::with_room(self.order, 2 * tokens.len());
            (1..tokens.len()).for_each(|end| self.add(&tokens[..end]));
        }
        self.add(tokens);
    }

    fn add(&mut self, tokens: &[u32]) {
        if let Some(bucket) = self.bucket(tokens) {
            // Positions are bounded by `Config`.
            let before = std::mem::replace(&mut self.heads[bucket], tokens.len() as u32);
            self.previous.push(before);
        }
    }

    /// The bucket of the last `order` tokens, if there are so many.
    fn bucket(&self, tokens: &[u32]) -> Option<usize> {
        let last = &tokens[tokens.len().checked_sub(self.order)?..];
        let mix = |hash: u64, token: &u32| {
            (hash.rotate_left(29) ^ u64::from(*token)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        };
        let hash = last.iter().fold(0, mix);
        Some((hash >> 20) as usize & (self.heads.len() - 1))
    }

    fn find(&self, tokens: &[u32], text: &[u32]) -> Option<Match> {
        let mut end = self.heads[self.bucket(text)?] as usize;
        let mut best: Option<Match> = None;
        for _ in 0..MAX_PLACES {
            if end == 0 {
                break;
            }
            let pairs = tokens[..end].iter().rev().zip(text.iter().rev()).take(MAX_MATCH);
            let len = pairs.take_while(|(a, b)| a == b).count();
            let is_followed = end < tokens.len();
            if is_followed && len >= self.order && best.is_none_or(|best| len > best.len) {
                best = Some(Match { end, len });
                if len == MAX_MATCH {
                    break;
                }
            }
            end = self.previous[end - self.order] as usize;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    /// The same by comparing every place.
    fn slow(tokens: &[u32], text: &[u32]) -> Option<Match> {
        let of_end = |end: usize| {
            let pairs = tokens[..end].iter().rev().zip(text.iter().rev()).take(MAX_MATCH);
            Match { end, len: pairs.take_while(|(a, b)| a == b).count() }
        };
        let all = (1..tokens.len()).map(of_end).filter(|found| found.len >= SHORT);
        all.max_by_key(|found| (found.len, found.end))
    }

    #[test]
    fn the_longest_match_is_found_and_of_several_the_most_recent() {
        // Some matches are equally long; fewer tokens would have more places than are compared.
        let tokens = prop::collection::vec(0_u32..5, 0..90);
        let cases = (tokens, any::<prop::sample::Index>(), prop_oneof![0..6, 0..40]);
        proptest!(|((tokens, from, len) in cases)| {
            let index = SuffixIndex::new(&tokens);
            let from = from.index(tokens.len() + 1);
            let text = &tokens[from..tokens.len().min(from + len as usize)];
            let found = index.find(text);
            prop_assert_eq!(found, slow(&tokens, text));
            let mut growing = SuffixIndex::with_room(0);
            tokens.iter().for_each(|token| growing.push(*token));
            prop_assert_eq!(growing.find(text), found);
        });
    }

    #[test]
    fn a_match_at_the_end_has_nothing_to_say() {
        let index = SuffixIndex::new(&[1, 2, 3, 4, 5]);
        assert_eq!(index.find(&[3, 4, 5]), None);
        assert_eq!(index.find(&[9, 2, 3, 4]), Some(Match { end: 4, len: 3 }));
        assert_eq!((index.find(&[3, 4]), index.find(&[])), (None, None));
    }

    /// Prints what an index of a long document costs; bounds that hold in any build.
    #[test]
    fn an_index_is_small_and_fast() {
        let n = 32_768;
        let random = |i: u32| i.wrapping_mul(2_654_435_761) >> 9;
        let texts: [(&str, Vec<u32>); 3] = [
            ("words", (0..n).map(|i| random(random(i) % 3000) % 1500).collect()),
            ("one token", vec![7; n as usize]),
            ("lines", (0..n).map(|i| if i % 11 < 6 { i % 11 } else { random(i) }).collect()),
        ];
        for (name, text) in texts {
            let start = Instant::now();
            let index = SuffixIndex::new(&text);
            let build_ms = start.elapsed().as_secs_f64() * 1e3;
            let per_token = index.bytes() as f64 / f64::from(n);
            let start = Instant::now();
            let ends = (1000..n as usize).step_by(61);
            let lookups = ends.len();
            let found = ends.filter(|end| index.find(&text[end - 64..*end]).is_some()).count();
            let look_up_us = start.elapsed().as_secs_f64() * 1e6 / lookups as f64;
            println!(
                "{name}: built in {build_ms:.2} ms, {per_token:.1} bytes a token, \
                 look-up {look_up_us:.2} µs, {found} of {lookups} found"
            );
            assert!(per_token < 16.0);
            // A slow machine, other tests beside it, no optimisation: far above the usual.
            assert!(build_ms < 2000.0 && look_up_us < 1000.0, "{build_ms} ms, {look_up_us} µs");
        }
    }
}
