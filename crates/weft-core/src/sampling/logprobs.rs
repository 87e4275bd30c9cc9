//! Log-probabilities of the model's own distribution: the log-softmax of the logits before any
//! bias, penalty, temperature or filter. They mean the same under every setting.

use super::{SamplingError, candidates::Candidates};

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
        let max = f64::from(max);
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
        let log_sum = sum.ln();
        let logprob = |logit: f32| ((f64::from(logit) - max - log_sum) as f32).max(Logprobs::FLOOR);

        let ranks = self.best.ranked().take(self.n_top);
        let mut top: Vec<_> = ranks.map(|c| (c.token, logprob(c.score))).collect();
        // Different logits may round to the same log-probability. Then the id decides.
        top.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        Ok(Logprobs { chosen: logprob(logits[chosen as usize]), top })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
