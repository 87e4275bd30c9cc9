//! What decides a token besides its logits, as plain numbers, for devices that choose by themselves. Owns
//! nothing but the numbers; what they mean is written in the description of [`Sampler`](super::Sampler).

use super::weight;

/// The numbers of one choice. Two choices from the same logits with equal draws, and equal
/// [adjustments](super::Sampler::adjustments) where there are any, are the same token.
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
    /// Of tokens that an adjustment calls seen.
    pub repetition_penalty: f32,
    /// Of tokens that the output has.
    pub frequency_penalty: f32,
    /// Of tokens that the output has.
    pub presence_penalty: f32,
    /// Decides the draw together with the index.
    pub seed: u64,
    /// Tokens generated before this one.
    pub index: usize,
    /// Until so many are generated, some tokens are ruled out.
    pub min_tokens: usize,
    /// Tokens that can be chosen: ids below this.
    pub vocab: usize,
    /// Whether the logits of some tokens are adjusted.
    pub adjusts: bool,
}

impl Draw {
    /// What a difference of logits is multiplied by for the logarithm of a weight: half the weight is 2^32.
    pub fn scale(&self) -> f64 {
        weight::scale(self.temperature)
    }

    /// The least weight that `min_p` leaves, where the first rank's is 2^40.
    pub fn least_weight(&self) -> u64 {
        weight::least(self.min_p)
    }

    /// `top_p` in units of 2^-32.
    pub fn share(&self) -> u64 {
        weight::share(self.top_p)
    }
}

/// A token whose logit is not taken as it comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjustment {
    /// The token.
    pub token: u32,
    /// Added to its logit.
    pub bias: f32,
    /// How often the output has it, where penalties know it at all.
    pub seen: Option<u32>,
    /// Whether it may be chosen.
    pub ruled_out: RuledOut,
}

/// When a token may not be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuledOut {
    /// It may always be.
    #[default]
    Never,
    /// While fewer than `min_tokens` are generated.
    Early,
    /// It may never be.
    Always,
}
