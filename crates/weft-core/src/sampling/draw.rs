//! The parameters of one choice, as plain numbers, for devices that choose tokens themselves.
//! [`Sampler`](super::Sampler) defines their meaning.

use super::weight;

/// The parameters of one choice. Two choices from the same logits with equal draws, and with equal
/// [adjustments](super::Sampler::adjustments) and [masks](super::Sampler::read_mask_after) if there
/// are any, give the same token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 0 takes the first rank.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: usize,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    /// Applies to tokens that an adjustment calls seen.
    pub repetition_penalty: f32,
    /// Applies to tokens in the output.
    pub frequency_penalty: f32,
    /// Applies to tokens in the output.
    pub presence_penalty: f32,
    /// Determines the draw, together with the index.
    pub seed: u64,
    /// Tokens generated before this one.
    pub index: usize,
    /// Some tokens are masked until this many are generated.
    pub min_tokens: usize,
    /// Number of tokens that can be chosen: ids below this.
    pub vocab: usize,
    /// Whether the logits of some tokens are adjusted.
    pub adjusts: bool,
    /// Whether only some tokens are allowed: those of
    /// [`Sampler::read_mask_after`](super::Sampler::read_mask_after).
    pub is_masked: bool,
    /// The number of likeliest tokens to report, if log-probabilities are reported.
    pub n_logprobs: Option<usize>,
}

impl Draw {
    /// The factor from a difference of logits to the logarithm of a weight: 2^32 is half the
    /// weight.
    pub fn scale(&self) -> f64 {
        weight::scale(self.temperature)
    }

    /// The minimum weight that `min_p` keeps; the first rank weighs 2^40.
    pub fn least_weight(&self) -> u64 {
        weight::least(self.min_p)
    }

    /// `top_p` in units of 2^-32.
    pub fn share(&self) -> u64 {
        weight::share(self.top_p)
    }
}

/// A token whose logit is changed before the choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjustment {
    /// The token.
    pub token: u32,
    /// Added to its logit.
    pub bias: f32,
    /// Number of occurrences in the output, if penalties apply to the token.
    pub seen: Option<u32>,
    /// When it is masked.
    pub ruled_out: RuledOut,
}

/// When a token is masked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuledOut {
    /// It is never masked.
    #[default]
    Never,
    /// It is masked while fewer than `min_tokens` are generated.
    Early,
    /// It is always masked.
    Always,
}
