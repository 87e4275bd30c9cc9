//! Compares two models by their distributions of the next token, over the same tokens.
//!
//! [`Comparison`] takes one pair of distributions after the other and keeps only their sums and
//! divergences, so a text may be long. [`BaseReader`] and [`BaseWriter`] know the file in which
//! llama.cpp keeps the distributions of the first model. Nothing here runs a model.

mod base_file;

use std::ops::Range;

use serde::Serialize;

pub use self::base_file::{BaseError, BaseHeader, BaseReader, BaseWriter};

/// The tokens of a window that are predicted and scored: those of its second half, as in llama.cpp,
/// so that each has at least half a window before it.
pub fn scored(window: usize) -> Range<usize> {
    window / 2 + 1..window
}

/// A distribution of the next token.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// The log-probability of each token, in nats.
    log_p: Vec<f64>,
    /// Tokens with this log-probability or less add nothing to a divergence.
    floor: f64,
    /// Tokens with this log-probability may have any lower one: the file holds none below it.
    cut: f64,
}

impl Distribution {
    /// The distribution that a model's logits stand for.
    pub fn of_logits(logits: &[f32]) -> Self {
        let (floor, cut) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        Self { log_p: log_softmax(logits), floor, cut }
    }

    /// Kullback-Leibler divergence of `other` from this distribution, in nats.
    pub fn divergence(&self, other: &Self) -> f64 {
        let seen = self.log_p.iter().zip(&other.log_p).filter(|(p, _)| **p > self.floor);
        seen.map(|(p, q)| p.exp() * (p - q)).sum()
    }

    /// The most likely token; the lowest id of several.
    fn top(&self) -> Option<usize> {
        argmax(&self.log_p)
    }
}

/// The index of the largest number; the lowest of several.
pub(crate) fn argmax<T: PartialOrd>(numbers: &[T]) -> Option<usize> {
    (0..numbers.len()).reduce(|best, at| if numbers[at] > numbers[best] { at } else { best })
}

/// Log-probabilities of logits, computed in f64.
pub(crate) fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let below = |logit: &f32| f64::from(*logit) - f64::from(max);
    let log_sum = logits.iter().map(|logit| below(logit).exp()).sum::<f64>().ln();
    logits.iter().map(|logit| below(logit) - log_sum).collect()
}

/// What is known of two models, A and B, after some tokens.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    divergences: Vec<f64>,
    same_top: usize,
    n_cut_a: usize,
    /// Sums of the negative log-probabilities of the text's tokens.
    nll_a: f64,
    nll_b: f64,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Tokens that were scored.
    pub tokens: usize,
    /// Mean Kullback-Leibler divergence of B from A, in nats.
    pub kl_mean: f64,
    /// Its standard error.
    pub kl_error: f64,
    /// Median divergence.
    pub kl_median: f64,
    /// 99 % of the tokens have at most this divergence.
    pub kl_p99: f64,
    /// Largest divergence.
    pub kl_max: f64,
    /// Share of tokens for which both models hold the same token most likely.
    pub same_top: f64,
    /// Tokens that are less likely for A than its file can hold; 0 if a model gave A's
    /// distributions.
    pub n_cut_a: usize,
    /// Perplexity of A on the text; unknown if tokens were cut.
    pub perplexity_a: Option<f64>,
    /// It is at least this: the same, with cut tokens as likely as the file says.
    pub perplexity_a_least: f64,
    /// Perplexity of B.
    pub perplexity_b: f64,
}

/// A model gave logits that are no numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite {
    /// The number of scored tokens before this one.
    pub after: usize,
}

impl Comparison {
    /// Adds the distributions from which the text's `token` is drawn.
    ///
    /// # Panics
    /// If the distributions have different lengths, or lack the token.
    pub fn add(&mut self, token: u32, a: &Distribution, b: &Distribution) -> Result<(), NotFinite> {
        assert_eq!(a.log_p.len(), b.log_p.len(), "one vocabulary");
        let divergence = a.divergence(b);
        let (of_a, of_b) = (a.log_p[token as usize], b.log_p[token as usize]);
        if !(divergence.is_finite() && of_a.is_finite() && of_b.is_finite()) {
            return Err(NotFinite { after: self.divergences.len() });
        }
        self.divergences.push(divergence);
        self.same_top += usize::from(a.top() == b.top());
        self.n_cut_a += usize::from(of_a <= a.cut);
        self.nll_a -= of_a;
        self.nll_b -= of_b;
        Ok(())
    }

    /// The mean divergence up to now.
    pub fn mean(&self) -> f64 {
        self.divergences.iter().sum::<f64>() / self.divergences.len().max(1) as f64
    }

    /// The result. All zeros if there were no tokens.
    pub fn summary(&self) -> Summary {
        let n = self.divergences.len().max(1) as f64;
        let mut sorted = self.divergences.clone();
        sorted.sort_by(f64::total_cmp);
        let mean = self.mean();
        let perplexity_a_least = (self.nll_a / n).exp();
        let variance = sorted.iter().map(|kl| (kl - mean).powi(2)).sum::<f64>() / n;
        Summary {
            tokens: sorted.len(),
            kl_mean: mean,
            kl_error: (variance / (n - 1.0).max(1.0)).sqrt(),
            kl_median: percentile(&sorted, 0.5),
            kl_p99: percentile(&sorted, 0.99),
            kl_max: percentile(&sorted, 1.0),
            same_top: self.same_top as f64 / n,
            n_cut_a: self.n_cut_a,
            perplexity_a: (self.n_cut_a == 0).then_some(perplexity_a_least),
            perplexity_a_least,
            perplexity_b: (self.nll_b / n).exp(),
        }
    }
}

/// The number below which a share of the sorted numbers lies, interpolated as llama.cpp does.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = share * last as f64;
    let (below, part) = (at as usize, at.fract());
    sorted[below] * (1.0 - part) + sorted[(below + 1).min(last)] * part
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn figures_are_those_of_the_definition() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): KL = 1/2 ln 2 - 1/4 ln 2.
        let of = |p: [f32; 3]| Distribution::of_logits(&p.map(f32::ln));
        let (p, q) = (of([0.5, 0.25, 0.25]), of([0.25, 0.5, 0.25]));
        let ln2 = std::f64::consts::LN_2;
        let mut comparison = Comparison::default();
        comparison.add(0, &p, &q).unwrap();
        comparison.add(2, &p, &p).unwrap();
        let summary = comparison.summary();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-7, "{a} is not {b}");
        assert_eq!(summary.tokens, 2);
        near(summary.kl_mean, ln2 / 8.0);
        near(summary.kl_max, ln2 / 4.0);
        near(summary.kl_median, ln2 / 8.0);
        near(summary.kl_p99, ln2 / 4.0 * 0.99);
        near(summary.kl_error, ln2 / 8.0);
        near(summary.same_top, 0.5);
        near(summary.perplexity_a.unwrap(), 8f64.sqrt());
        near(summary.perplexity_b, 4.0);
    }

    #[test]
    fn percentiles_interpolate() {
        let numbers: Vec<f64> = (0..=10).map(f64::from).collect();
        assert_eq!(percentile(&numbers, 0.99), 9.9);
        assert_eq!(percentile(&numbers, 1.0), 10.0);
        assert_eq!(percentile(&[3.0], 0.99), 3.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn logits_that_are_no_numbers_are_found() {
        let good = Distribution::of_logits(&[1.0, 2.0]);
        let mut comparison = Comparison::default();
        comparison.add(0, &good, &good).unwrap();
        for bad in [[f32::NAN, 0.0], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            let bad = Distribution::of_logits(&bad);
            assert_eq!(comparison.add(0, &good, &bad), Err(NotFinite { after: 1 }));
        }
        assert_eq!(comparison.summary().tokens, 1);
    }

    #[test]
    fn the_second_half_of_a_window_is_scored() {
        assert_eq!((scored(512), scored(512).len()), (257..512, 255));
        assert_eq!((scored(5), scored(2).len()), (3..5, 0));
    }

    /// The divergence as written in a book, without a step for the largest logit.
    fn plain_divergence(p: &[f32], q: &[f32]) -> f64 {
        let softmax = |logits: &[f32]| -> Vec<f64> {
            let exp: Vec<f64> = logits.iter().map(|logit| f64::from(*logit).exp()).collect();
            let sum: f64 = exp.iter().sum();
            exp.into_iter().map(|one| one / sum).collect()
        };
        softmax(p).iter().zip(softmax(q)).map(|(p, q)| p * (p / q).ln()).sum()
    }

    proptest! {
        #[test]
        fn divergences_are_those_of_f64(
            pairs in proptest::collection::vec((-20f32..20.0, -20f32..20.0), 1..40),
            shift in -1000f32..1000.0,
        ) {
            let (p, q): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let (a, b) = (Distribution::of_logits(&p), Distribution::of_logits(&q));
            let kl = a.divergence(&b);
            prop_assert!((kl - plain_divergence(&p, &q)).abs() < 1e-9 * (1.0 + kl.abs()));
            prop_assert!(kl >= -1e-12);
            prop_assert_eq!(a.divergence(&a), 0.0);
            // Only differences of logits count; the sum rounds the shifted ones.
            let shifted: Vec<f32> = q.iter().map(|logit| logit + shift).collect();
            let moved = a.divergence(&Distribution::of_logits(&shifted));
            prop_assert!((moved - kl).abs() < 1e-3 * (1.0 + kl.abs()));
        }
    }
}
