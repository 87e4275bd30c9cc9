//! Checks a request's settings: every range and every limit, once, before anything is allocated for
//! the request. The sampler relies on it.

use super::{Sampling, SamplingError};

impl Sampling {
    /// Maximum temperature.
    pub const MAX_TEMPERATURE: f32 = 100.0;
    /// Maximum repetition penalty.
    pub const MAX_REPETITION_PENALTY: f32 = 10.0;
    /// Minimum repetition penalty. Logits are divided by it, and must stay finite.
    pub const MIN_REPETITION_PENALTY: f32 = 0.01;
    /// Maximum absolute presence or frequency penalty.
    pub const MAX_PENALTY: f32 = 2.0;
    /// Maximum absolute bias of one token.
    pub const MAX_LOGIT_BIAS: f32 = 100.0;
    /// Maximum number of tokens with a bias.
    pub const MAX_LOGIT_BIASES: usize = 1024;
    /// Maximum number of stop strings.
    pub const MAX_STOPS: usize = 16;
    /// Maximum length of a stop string.
    pub const MAX_STOP_BYTES: usize = 1024;
    /// Maximum number of stop tokens besides the model's.
    pub const MAX_STOP_IDS: usize = 128;
    /// Maximum number of alternatives reported for one token.
    pub const MAX_LOGPROBS: usize = 20;

    /// Checks these settings for a model of `vocab` tokens; returns the first error.
    pub fn check(&self, vocab: usize) -> Result<(), SamplingError> {
        self.check_numbers()?;
        self.check_tokens(vocab)?;
        self.check_stops()?;
        self.check_lengths()
    }

    fn check_numbers(&self) -> Result<(), SamplingError> {
        // NaN must be refused. Every comparison with NaN is false.
        let ranges = [
            (
                "temperature",
                self.temperature,
                (0.0..=Self::MAX_TEMPERATURE).contains(&self.temperature),
                "from 0 (greedy) to 100",
            ),
            (
                "top_p",
                self.top_p,
                self.top_p > 0.0 && self.top_p <= 1.0,
                "above 0 and at most 1 (off)",
            ),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 (off) to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                (Self::MIN_REPETITION_PENALTY..=Self::MAX_REPETITION_PENALTY)
                    .contains(&self.repetition_penalty),
                "from 0.01 to 10 (1 is off)",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                self.presence_penalty.abs() <= Self::MAX_PENALTY,
                "from -2 to 2",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                self.frequency_penalty.abs() <= Self::MAX_PENALTY,
                "from -2 to 2",
            ),
        ];
        match ranges.into_iter().find(|(_, _, good, _)| !good) {
            Some((name, value, _, limits)) => Err(SamplingError::Range { name, value, limits }),
            None => Ok(()),
        }
    }

    fn check_tokens(&self, vocab: usize) -> Result<(), SamplingError> {
        at_most("logit_bias", self.logit_bias.len(), Self::MAX_LOGIT_BIASES)?;
        at_most("stop_ids", self.stop_ids.len(), Self::MAX_STOP_IDS)?;
        for &(token, value) in &self.logit_bias {
            check_token("logit_bias", token, vocab)?;
            if value.is_nan() || value.abs() > Self::MAX_LOGIT_BIAS {
                return Err(SamplingError::Bias { token, value });
            }
        }
        self.stop_ids.iter().try_for_each(|&token| check_token("stop_ids", token, vocab))
    }

    fn check_stops(&self) -> Result<(), SamplingError> {
        at_most("stop", self.stop.len(), Self::MAX_STOPS)?;
        for (index, stop) in self.stop.iter().enumerate() {
            let (bytes, limit) = (stop.len(), Self::MAX_STOP_BYTES);
            if bytes == 0 {
                return Err(SamplingError::EmptyStop { index });
            }
            if bytes > limit {
                return Err(SamplingError::LongStop { index, bytes, limit });
            }
        }
        Ok(())
    }

    fn check_lengths(&self) -> Result<(), SamplingError> {
        let limit = Self::MAX_LOGPROBS;
        match self.logprobs {
            Some(count) if count > limit => {
                return Err(SamplingError::TooManyLogprobs { count, limit });
            }
            _ => at_most("prompt_logprobs", self.prompt_logprobs.unwrap_or(0), limit)?,
        }
        match self.max_tokens {
            Some(0) if !self.echo => Err(SamplingError::NoTokens),
            Some(max) if self.min_tokens > max => {
                Err(SamplingError::MinOverMax { min: self.min_tokens, max })
            }
            _ => Ok(()),
        }
    }
}

fn at_most(name: &'static str, count: usize, limit: usize) -> Result<(), SamplingError> {
    if count > limit { Err(SamplingError::TooMany { name, count, limit }) } else { Ok(()) }
}

/// Checks that `token` is one of the model's ids.
pub(super) fn check_token(
    name: &'static str,
    token: u32,
    vocab: usize,
) -> Result<(), SamplingError> {
    if token as usize >= vocab {
        return Err(SamplingError::UnknownToken { name, token, vocab });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCAB: usize = 100;

    fn refusal(change: impl Fn(&mut Sampling)) -> String {
        let mut settings = Sampling::default();
        change(&mut settings);
        settings.check(VOCAB).expect_err("must be refused").to_string()
    }

    fn accept(change: impl Fn(&mut Sampling)) {
        let mut settings = Sampling::default();
        change(&mut settings);
        settings.check(VOCAB).expect("must be accepted");
    }

    #[test]
    fn each_number_is_refused_outside_its_range_and_accepted_at_its_ends() {
        type Field = fn(&mut Sampling) -> &mut f32;
        let fields: [(&str, Field, [f32; 2], [f32; 2]); 6] = [
            ("temperature", |s| &mut s.temperature, [0.0, 100.0], [-0.1, 100.1]),
            ("top_p", |s| &mut s.top_p, [1e-6, 1.0], [0.0, 1.1]),
            ("min_p", |s| &mut s.min_p, [0.0, 1.0], [-0.1, 1.1]),
            ("repetition_penalty", |s| &mut s.repetition_penalty, [0.01, 10.0], [0.009, 10.1]),
            ("presence_penalty", |s| &mut s.presence_penalty, [-2.0, 2.0], [-2.1, 2.1]),
            ("frequency_penalty", |s| &mut s.frequency_penalty, [-2.0, 2.0], [-2.1, 2.1]),
        ];
        for (name, field, good, bad) in fields {
            for value in good {
                accept(|s| *field(s) = value);
            }
            for value in bad.into_iter().chain([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]) {
                let message = refusal(|s| *field(s) = value);
                assert!(message.starts_with(&format!("{name} is {value}: ")), "{message}");
            }
        }
    }

    #[test]
    fn token_ids_must_be_in_the_vocabulary() {
        accept(|s| s.logit_bias = vec![(99, -100.0), (0, 100.0)]);
        accept(|s| s.stop_ids = vec![0, 99]);
        assert_eq!(
            refusal(|s| s.logit_bias = vec![(100, 1.0)]),
            "logit_bias has token 100: ids go from 0 to 99"
        );
        assert_eq!(
            refusal(|s| s.stop_ids = vec![3, u32::MAX]),
            "stop_ids has token 4294967295: ids go from 0 to 99"
        );
        for bias in [f32::NAN, f32::NEG_INFINITY, 100.5, -101.0] {
            let message = refusal(|s| s.logit_bias = vec![(7, bias)]);
            assert_eq!(
                message,
                format!("logit_bias of token 7 is {bias}: it must be from -100 to 100")
            );
        }
    }

    #[test]
    fn counts_are_capped() {
        accept(|s| s.logit_bias = vec![(1, 0.0); 1024]);
        accept(|s| s.stop = vec!["x".repeat(1024); 16]);
        accept(|s| s.stop_ids = vec![1; 128]);
        accept(|s| s.logprobs = Some(20));
        accept(|s| s.prompt_logprobs = Some(20));
        assert!(refusal(|s| s.prompt_logprobs = Some(21)).contains("prompt_logprobs"));
        assert_eq!(
            refusal(|s| s.logit_bias = vec![(1, 0.0); 1025]),
            "logit_bias has 1025 entries: at most 1024 are allowed"
        );
        assert_eq!(
            refusal(|s| s.stop = vec!["x".into(); 17]),
            "stop has 17 entries: at most 16 are allowed"
        );
        assert_eq!(
            refusal(|s| s.stop_ids = vec![1; 129]),
            "stop_ids has 129 entries: at most 128 are allowed"
        );
        assert_eq!(
            refusal(|s| s.logprobs = Some(21)),
            "logprobs is 21: at most 20 of the most likely tokens are reported"
        );
    }

    #[test]
    fn stop_strings_have_text_and_an_end() {
        assert_eq!(
            refusal(|s| s.stop = vec!["a".into(), String::new()]),
            "stop string 1 is empty: it must have at least one character"
        );
        assert_eq!(
            refusal(|s| s.stop = vec!["é".repeat(513)]),
            "stop string 0 has 1026 bytes: at most 1024 are allowed"
        );
    }

    #[test]
    fn lengths_agree() {
        accept(|s| (s.min_tokens, s.max_tokens) = (5, Some(5)));
        accept(|s| (s.min_tokens, s.max_tokens) = (5, None));
        accept(|s| (s.echo, s.max_tokens) = (true, Some(0)));
        assert_eq!(
            refusal(|s| (s.min_tokens, s.max_tokens) = (6, Some(5))),
            "min_tokens is 6: it must not exceed max_tokens, which is 5"
        );
        assert_eq!(refusal(|s| s.max_tokens = Some(0)), "max_tokens is 0: it must be at least 1");
    }
}
