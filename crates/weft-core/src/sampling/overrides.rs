//! The settings that a user gives. The model's own hold for all others.

use serde::{Deserialize, Serialize};

use super::{Sampling, random_seed};

/// Settings of one request; `None` leaves the model's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overrides {
    /// See [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// See [`Sampling::top_k`].
    pub top_k: Option<usize>,
    /// See [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// See [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// See [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// See [`Sampling::presence_penalty`].
    pub presence_penalty: Option<f32>,
    /// See [`Sampling::frequency_penalty`].
    pub frequency_penalty: Option<f32>,
    /// See [`Sampling::max_tokens`].
    pub max_tokens: Option<usize>,
    /// See [`Sampling::seed`]; random if absent.
    pub seed: Option<u64>,
    /// See [`Sampling::stop`].
    pub stop: Vec<String>,
    /// See [`Sampling::ignore_eos`].
    pub ignore_eos: bool,
}

impl Overrides {
    /// The model's settings with these in their place.
    pub fn over(&self, mut sampling: Sampling) -> Sampling {
        let set = |to: &mut f32, wanted: Option<f32>| *to = wanted.unwrap_or(*to);
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.repetition_penalty, self.repetition_penalty);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        sampling.top_k = self.top_k.unwrap_or(sampling.top_k);
        sampling.max_tokens = self.max_tokens.or(sampling.max_tokens);
        sampling.stop.clone_from(&self.stop);
        sampling.ignore_eos = self.ignore_eos;
        sampling.seed = self.seed.unwrap_or_else(random_seed);
        sampling
    }
}
