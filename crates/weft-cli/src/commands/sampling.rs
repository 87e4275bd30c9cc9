//! The sampling settings that the flags give.

use weft_core::sampling::{Overrides, Sampling};

use crate::args::SamplingArgs;
use crate::error::CliError;
use crate::size;

/// Checks the flags alone, so that an invalid one is reported before a model is loaded.
pub(crate) fn check(args: &SamplingArgs) -> Result<(), CliError> {
    let sampling = overrides(args).over(Sampling::default());
    sampling.check(usize::MAX).map_err(|error| CliError::Usage(error.to_string()))
}

/// The settings that the flags give.
pub(crate) fn overrides(args: &SamplingArgs) -> Overrides {
    Overrides {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repetition_penalty,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        max_tokens: args.max_tokens.filter(|limit| *limit != size::NO_LIMIT),
        seed: args.seed.and_then(|seed| seed.0),
        stop: args.stop.clone(),
        ignore_eos: args.ignore_eos,
    }
}
