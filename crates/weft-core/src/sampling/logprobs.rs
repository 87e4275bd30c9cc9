//! Log-probabilities of the model's own distribution: the log-softmax of the logits before any
//! bias, penalty, temperature or filter. They mean the same under every setting.
//!
//! The sum over all tokens is a sum of integers: a token's weight (`weight.rs`) at temperature 1,
//! in units of 2^-40 of the likeliest one's. So it does not depend on the order of summation, and
//! a device that adds in another order reports the same bits:
//!
//! ```text
//! logprob = l - l_max - ln(sum of all weights / 2^40)        in f64, then rounded to f32
//! ```
//!
//! A weight is off by one unit at most, so the logarithm is off by less than 1.4e-7 for a
//! vocabulary of 150,000 tokens, and by far less if few tokens have most of the probability.

use super::{
    SamplingError,
    candidates::Candidates,
    weight::{self, BLOCK, NOTHING_FROM, ONE},
};

/// The log-probability of a token and of its likeliest alternatives. Every number is finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the token that was chosen.
    pub chosen: f32,
    /// The most likely tokens, by log-probability descending, then by id. The chosen token is
    /// included only if it is that likely. There are fewer than requested if fewer tokens are
    /// possible.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Reported for anything lower, including -inf. JSON has no infinities, and clients of vLLM
    /// know this number.
    pub const FLOOR: f32 = -9999.0;

    /// The log-probability of `token` and of the `n_top` most likely tokens, from the logits
    /// (`[vocab]`) that predict position `index`. An echoed prompt reports these, because no token
    /// is drawn. Fails on NaN, on +inf, and if every logit is -inf. `token` must have a logit.
    pub fn of(
        logits: &[f32],
        token: u32,
        n_top: usize,
        index: usize,
    ) -> Result<Self, SamplingError> {
        LogprobsReader::new(n_top, logits.len()).read(logits, token, index)
    }

    /// The place of `token` among all tokens, by logit descending, then by id: 1 is the most
    /// likely one. `token` must have a logit.
    pub fn rank(logits: &[f32], token: u32) -> usize {
        let (own, place) = (logits[token as usize], token as usize);
        let before =
            |(other, logit): (usize, &f32)| *logit > own || (*logit == own && other < place);
        1 + logits.iter().enumerate().filter(|entry| before(*entry)).count()
    }

    /// The same from the few numbers that it takes, which a device can gather.
    pub fn from_parts(parts: &LogprobParts) -> Self {
        let max = f64::from(parts.max);
        let log_sum = (parts.weights as f64 / ONE as f64).ln();
        let logprob = |logit: f32| ((f64::from(logit) - max - log_sum) as f32).max(Self::FLOOR);
        let mut top: Vec<_> = parts.top.iter().map(|(token, l)| (*token, logprob(*l))).collect();
        // Different logits may round to the same log-probability. Then the id decides.
        top.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        Self { chosen: logprob(parts.chosen), top }
    }
}

/// What the log-probabilities of one choice are computed from.
#[derive(Clone, Debug, PartialEq)]
pub struct LogprobParts {
    /// The sum of the weights of all tokens at temperature 1. The likeliest one weighs 2^40.
    pub weights: u64,
    /// The largest logit.
    pub max: f32,
    /// The logit of the token that was chosen.
    pub chosen: f32,
    /// The tokens with the largest logits and these logits, by logit descending, then by id.
    pub top: Vec<(u32, f32)>,
}

/// Computes [`Logprobs`] token after token; allocates only the results.
#[derive(Clone)]
pub(super) struct LogprobsReader {
    n_top: usize,
    best: Candidates,
}

impl LogprobsReader {
    pub(super) fn new(n_top: usize, vocab: usize) -> Self {
        // The largest logit is needed even without alternatives.
        Self { n_top, best: Candidates::new(n_top.max(1), vocab) }
    }

    pub(super) fn read(
        &mut self,
        logits: &[f32],
        chosen: u32,
        index: usize,
    ) -> Result<Logprobs, SamplingError> {
        self.best.gather(logits, index)?;
        let max = self.best.best().ok_or(SamplingError::NoCandidate { index })?.score;
        let ranks = self.best.ranked().take(self.n_top);
        let parts = LogprobParts {
            weights: sum_of_weights(logits, max),
            max,
            chosen: logits[chosen as usize],
            top: ranks.map(|c| (c.token, c.score)).collect(),
        };
        Ok(Logprobs::from_parts(&parts))
    }
}

/// The sum of the weights of all logits at temperature 1.
fn sum_of_weights(logits: &[f32], max: f32) -> u64 {
    let (max, scale) = (f64::from(max), weight::scale(1.0));
    let (mut near, mut n, mut sum) = ([0; BLOCK], 0, 0);
    let mut add_block = |distances: &[u64; BLOCK], n: usize| {
        let mut weights = *distances;
        weight::replace_by_weights(&mut weights);
        sum += weights[..n].iter().sum::<u64>();
    };
    for &logit in logits {
        let distance = (max - f64::from(logit)) * scale;
        // One without weight is overwritten by the next.
        near[n] = distance as u64;
        n += usize::from(distance < NOTHING_FROM as f64);
        if n == BLOCK {
            add_block(&near, n);
            n = 0;
        }
    }
    near[n..].fill(0);
    add_block(&near, n);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights do not depend on their order, so neither do log-probabilities.
    #[test]
    fn the_order_of_tokens_does_not_matter() {
        let mut logits: Vec<f32> = (0..5000).map(|i| (i * 7919 % 5003) as f32 / 333.0).collect();
        let parts = |logits: &[f32]| sum_of_weights(logits, 15.021_021);
        let sum = parts(&logits);
        logits.reverse();
        assert_eq!(parts(&logits), sum);
        let one_by_one = |logit: &f32| {
            weight::weight(f64::from(15.021_021_f32) - f64::from(*logit), weight::scale(1.0))
        };
        assert_eq!(logits.iter().map(one_by_one).sum::<u64>(), sum);
    }

    /// Even if a vocabulary is flat, the error is less than that of the largest logit's rounding.
    #[test]
    fn log_probabilities_are_close_to_those_of_exact_sums() {
        let shapes: [fn(usize) -> f32; 3] = [
            |i| (i * 7919 % 151_936) as f32 / 151_936.0,
            |i| ((i * 7919 % 151_936) as f32 / 151_936.0).ln() * 3.0,
            |i| (i % 1000) as f32 / -40.0,
        ];
        for logit in shapes {
            let logits: Vec<f32> = (0..151_936).map(|i| logit(i).max(-99.0)).collect();
            let max = logits.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = logits.iter().map(|l| (f64::from(*l) - f64::from(max)).exp()).sum();
            let ours = Logprobs::of(&logits, 5, 1, 0).unwrap();
            let exact = f64::from(logits[5]) - f64::from(max) - sum.ln();
            assert!((f64::from(ours.chosen) - exact).abs() < 1e-6, "{} {exact}", ours.chosen);
        }
    }

    #[test]
    fn logprobs_are_the_log_softmax() {
        // Probabilities 1/2, 1/8, 1/4, 1/8.
        let logits = [8f32.ln(), 2f32.ln(), 4f32.ln(), 2f32.ln()];
        let Logprobs { chosen, top } = Logprobs::of(&logits, 3, 3, 0).unwrap();
        assert!((chosen - 0.125f32.ln()).abs() < 1e-6);
        assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 2, 1]);
        for ((_, logprob), p) in top.into_iter().zip([0.5f32, 0.25, 0.125]) {
            assert!((logprob - p.ln()).abs() < 1e-6);
        }
    }

    #[test]
    fn alternatives_may_be_none_or_fewer_than_asked_for() {
        let logits = [0.0, f32::NEG_INFINITY, 0.0];
        let none = Logprobs::of(&logits, 0, 0, 0).unwrap();
        assert_eq!(none, Logprobs { chosen: -std::f32::consts::LN_2, top: vec![] });
        let top = Logprobs::of(&logits, 0, 20, 0).unwrap().top;
        assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn nothing_is_below_the_floor_or_above_zero() {
        let logits = [3e38, -3e38, f32::NEG_INFINITY, -3e38];
        for token in [1, 2] {
            let Logprobs { chosen, top } = Logprobs::of(&logits, token, 4, 0).unwrap();
            assert_eq!(chosen, Logprobs::FLOOR);
            assert_eq!(top, [(0, 0.0), (1, -9999.0), (3, -9999.0)]);
        }
    }

    #[test]
    fn equal_logprobs_are_ordered_by_id() {
        // 1 and 1 - 2^-24 are different logits; beside one of 10,000 both round to -9999.
        let logits = [1.0 - f32::EPSILON / 2.0, 1.0, 10_000.0];
        let top = Logprobs::of(&logits, 0, 3, 0).unwrap().top;
        assert_eq!(top, [(2, 0.0), (0, -9999.0), (1, -9999.0)]);
    }

    #[test]
    fn bad_logits_are_errors() {
        let bad = |logits: &[f32]| Logprobs::of(logits, 0, 1, 4).unwrap_err().to_string();
        assert!(bad(&[0.0, f32::NAN]).starts_with("logit of token 1 is NaN at generated token 4"));
        assert!(bad(&[f32::INFINITY]).starts_with("logit of token 0 is inf"));
        assert!(bad(&[f32::NEG_INFINITY; 2]).starts_with("no token can be chosen"));
    }
}
