//! From logits to text: a request's settings, the token that they choose, and the text that may be
//! shown.
//!
//! This is the definition of sampling; the samplers of devices are compared with it.

mod candidates;
mod check;
mod constraint;
mod draw;
mod error;
mod generation_config;
mod logprobs;
mod overrides;
mod penalties;
mod random;
mod sampler;
mod sums;
mod text_stream;
mod weight;

pub use constraint::Constraint;
pub use draw::{Adjustment, Draw, RuledOut};
pub use error::SamplingError;
pub use generation_config::{GenerationConfig, GenerationConfigError};
pub use logprobs::{LogprobParts, Logprobs};
pub use overrides::Overrides;
pub use random::{choice_seed, random_seed, uniform};
pub use sampler::{Choice, Sampler};
pub use text_stream::{TextPiece, TextStream};

/// The settings of one request. [`Sampler`] defines each step and their order.
///
/// The default leaves the model's own distribution unchanged: temperature 1, every filter and
/// penalty off, no limit but the context.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits: below 1 sharper, above 1 flatter. 0 takes the most likely token.
    pub temperature: f32,
    /// Only the `top_k` most likely tokens may be drawn. 0 is off.
    pub top_k: usize,
    /// Only the smallest set of most likely tokens with at least this total probability may be
    /// drawn. 1 is off.
    pub top_p: f32,
    /// Only tokens at least this likely, relative to the most likely one, may be drawn. 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the output.
    /// 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token in the output. 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once per occurrence in the output. 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens. A token named twice gets both.
    pub logit_bias: Vec<(u32, f32)>,
    /// Determines every draw, together with the index of the generated token. A caller without a
    /// seed should pick one at random.
    pub seed: u64,
    /// Texts that end the answer. The answer contains neither them nor what follows.
    pub stop: Vec<String>,
    /// Tokens that end the answer, besides the model's end tokens.
    pub stop_ids: Vec<u32>,
    /// Maximum number of generated tokens. `None`: as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Minimum number of tokens before an end token of the model or of
    /// [`stop_ids`](Self::stop_ids).
    pub min_tokens: usize,
    /// The model's end tokens are never chosen. `stop_ids` still end the answer.
    pub ignore_eos: bool,
    /// `Some(k)`: report the log-probability of each chosen token and of the `k` most likely ones.
    pub logprobs: Option<usize>,
    /// Whether the answer starts with the prompt.
    pub echo: bool,
    /// `Some(k)`: report the log-probability of each token of the prompt and of the `k` most likely
    /// ones in its place. The prompt is then computed without cached rows, which have no logits.
    pub prompt_logprobs: Option<usize>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            stop: Vec::new(),
            stop_ids: Vec::new(),
            max_tokens: None,
            min_tokens: 0,
            ignore_eos: false,
            logprobs: None,
            echo: false,
            prompt_logprobs: None,
        }
    }
}

impl Sampling {
    /// Qwen3's recommendation with reasoning. Greedy reasoning can loop. A model's
    /// [`GenerationConfig`] overrides it, and the request overrides both.
    pub fn thinking() -> Self {
        Self { temperature: 0.6, top_k: 20, top_p: 0.95, ..Self::default() }
    }

    /// Qwen3's recommendation without reasoning. A model's [`GenerationConfig`] overrides it, and
    /// the request overrides both.
    pub fn non_thinking() -> Self {
        Self { temperature: 0.7, top_k: 20, top_p: 0.8, ..Self::default() }
    }

    /// The default settings of a request: Qwen3's recommendation, then the model's own.
    pub fn defaults(thinks: bool, own: &GenerationConfig) -> Self {
        let mut sampling = if thinks { Self::thinking() } else { Self::non_thinking() };
        own.apply(&mut sampling);
        sampling
    }

    /// Whether something is reported of each token of the prompt.
    pub(crate) fn reports_prompt(&self) -> bool {
        self.echo || self.prompt_logprobs.is_some()
    }

    /// The settings of each of a request's `n` choices. They differ only in the seed, which is
    /// [`choice_seed`], and the first alone reports the log-probabilities of the prompt that they
    /// share. The first choice keeps the seed, so it equals the result of a request for
    /// one choice. A larger `n` does not change the earlier choices. Lazy: a huge `n` costs
    /// nothing.
    pub fn samples(&self, n: usize) -> impl Iterator<Item = Sampling> {
        (0..n as u64).map(|choice| Self {
            seed: choice_seed(self.seed, choice),
            prompt_logprobs: self.prompt_logprobs.filter(|_| choice == 0),
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_and_the_advice_for_qwen3_pass_the_check() {
        for settings in [Sampling::default(), Sampling::thinking(), Sampling::non_thinking()] {
            settings.check(151_936).unwrap();
        }
        let Sampling { temperature, top_k, top_p, min_p, .. } = Sampling::thinking();
        assert_eq!((temperature, top_k, top_p, min_p), (0.6, 20, 0.95, 0.0));
        let Sampling { temperature, top_k, top_p, min_p, .. } = Sampling::non_thinking();
        assert_eq!((temperature, top_k, top_p, min_p), (0.7, 20, 0.8, 0.0));
    }

    #[test]
    fn choices_differ_only_in_their_seeds() {
        let settings = Sampling { seed: 42, stop: vec!["x".into()], ..Sampling::thinking() };
        let choices: Vec<_> = settings.samples(4).collect();
        assert_eq!(choices.len(), 4);
        assert_eq!(choices[0], settings);
        for (i, choice) in choices.iter().enumerate() {
            assert_eq!(Sampling { seed: settings.seed, ..choice.clone() }, settings);
            assert!(choices[..i].iter().all(|earlier| earlier.seed != choice.seed));
        }
        assert_eq!(settings.samples(2).collect::<Vec<_>>(), choices[..2]);
    }

    #[test]
    fn a_huge_number_of_choices_is_lazy() {
        assert_eq!(Sampling::default().samples(usize::MAX).take(2).count(), 2);
        assert_eq!(Sampling::default().samples(0).count(), 0);
    }
}
