//! Errors of a request's settings, or of the logits that they apply to. Every message names the
//! setting as clients write it, its value and its limit.

/// An invalid setting, or logits from which no token can be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A number is outside its range, or NaN.
    #[error("{name} is {value}: it must be {limits}")]
    Range {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: f32,
        /// The allowed range.
        limits: &'static str,
    },
    /// The bias of a token is outside its range.
    #[error("logit_bias of token {token} is {value}: it must be from -100 to 100")]
    Bias {
        /// The token.
        token: u32,
        /// Its bias.
        value: f32,
    },
    /// The model has no token with this id.
    #[error("{name} has token {token}: ids go from 0 to {last}", last = vocab.saturating_sub(1))]
    UnknownToken {
        /// The setting.
        name: &'static str,
        /// The id.
        token: u32,
        /// The number of ids.
        vocab: usize,
    },
    /// A setting has too many entries.
    #[error("{name} has {count} entries: at most {limit} are allowed")]
    TooMany {
        /// The setting.
        name: &'static str,
        /// Number of entries.
        count: usize,
        /// Maximum.
        limit: usize,
    },
    /// The request asks for too many log-probabilities.
    #[error("logprobs is {count}: at most {limit} of the most likely tokens are reported")]
    TooManyLogprobs {
        /// Number requested.
        count: usize,
        /// Maximum.
        limit: usize,
    },
    /// A stop string is empty, and would end every answer at once.
    #[error("stop string {index} is empty: it must have at least one character")]
    EmptyStop {
        /// Which stop string, from 0.
        index: usize,
    },
    /// A stop string is too long.
    #[error("stop string {index} has {bytes} bytes: at most {limit} are allowed")]
    LongStop {
        /// Which stop string, from 0.
        index: usize,
        /// Its length.
        bytes: usize,
        /// Maximum.
        limit: usize,
    },
    /// The request asks for no tokens.
    #[error("max_tokens is 0: it must be at least 1")]
    NoTokens,
    /// `min_tokens` is larger than `max_tokens`.
    #[error("min_tokens is {min}: it must not exceed max_tokens, which is {max}")]
    MinOverMax {
        /// `min_tokens`.
        min: usize,
        /// `max_tokens`.
        max: usize,
    },
    /// A logit is NaN or +inf, from the model or from an overflow of penalties.
    #[error("logit of token {token} is {value} at generated token {index}: it must be below inf")]
    BadLogit {
        /// The index of the generated token, from 0.
        index: usize,
        /// The token.
        token: u32,
        /// NaN or +inf.
        value: f32,
    },
    /// A state or a logit that a request reads is NaN or infinite.
    #[error("value {index} of the model's output is {value}: it must be finite")]
    NotFinite {
        /// Which value, from 0.
        index: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// The constraint cannot continue.
    #[error("the answer cannot satisfy its constraint any further: {0}")]
    Constraint(String),
    /// Every token has a logit of -inf, or is masked.
    #[error("no token can be chosen at generated token {index}: every logit is -inf or masked")]
    NoCandidate {
        /// The index of the generated token, from 0.
        index: usize,
    },
}
