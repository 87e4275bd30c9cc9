//! What can be wrong with a request's settings, or with the logits they are applied to. Every
//! message names the thing, its value and its limit, in the words a client of the service used.
//! It must not know which protocol the settings arrived by.

/// A refused setting, or logits no token can be chosen from.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A number outside its range, NaN included.
    #[error("{name} is {value}: it must be {limits}")]
    Range {
        /// The setting.
        name: &'static str,
        /// What it was.
        value: f32,
        /// What it may be.
        limits: &'static str,
    },
    /// The bias of one token is outside its range.
    #[error("logit_bias of token {token} is {value}: it must be from -100 to 100")]
    Bias {
        /// The token whose bias it is.
        token: u32,
        /// What it was.
        value: f32,
    },
    /// A token id the model does not have.
    #[error("{name} has token {token}: ids go from 0 to {last}", last = vocab.saturating_sub(1))]
    UnknownToken {
        /// The setting.
        name: &'static str,
        /// The id.
        token: u32,
        /// The number of ids there are.
        vocab: usize,
    },
    /// More entries than one request may have.
    #[error("{name} has {count} entries: at most {limit} are allowed")]
    TooMany {
        /// The setting.
        name: &'static str,
        /// How many there were.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// More top log-probabilities than one request may ask for.
    #[error("logprobs is {count}: at most {limit} of the most likely tokens are reported")]
    TooManyLogprobs {
        /// How many were asked for.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A stop string without text would end every answer at once.
    #[error("stop string {index} is empty: it must have at least one character")]
    EmptyStop {
        /// Which stop string, from 0.
        index: usize,
    },
    /// A stop string longer than is held back.
    #[error("stop string {index} has {bytes} bytes: at most {limit} are allowed")]
    LongStop {
        /// Which stop string, from 0.
        index: usize,
        /// Its length.
        bytes: usize,
        /// The longest allowed.
        limit: usize,
    },
    /// A request for nothing.
    #[error("max_tokens is 0: it must be at least 1, or 0 together with echo")]
    NoTokens,
    /// More tokens demanded than allowed.
    #[error("min_tokens is {min}: it must not exceed max_tokens, which is {max}")]
    MinOverMax {
        /// The fewest tokens asked for.
        min: usize,
        /// The most tokens asked for.
        max: usize,
    },
    /// A logit that says nothing: NaN or +inf, from the model or from an overflow of penalties.
    #[error("logit of token {token} is {value} at generated token {index}: it must be below inf")]
    BadLogit {
        /// The index of the generated token, from 0.
        index: usize,
        /// The token whose logit it is.
        token: u32,
        /// NaN or +inf.
        value: f32,
    },
    /// The rule that the answer follows cannot go on.
    #[error("the answer cannot follow its rule any further: {0}")]
    Constraint(String),
    /// Every token has a logit of -inf, or is an end token that may not be chosen yet.
    #[error("no token can be chosen at generated token {index}: every logit is -inf or masked")]
    NoCandidate {
        /// The index of the generated token, from 0.
        index: usize,
    },
}
