//! Sampling settings: the family's defaults, then the model's own, then the flags.

use weft_core::model::Model;
use weft_core::sampling::{Sampling, random_seed};

use crate::args::SamplingArgs;
use crate::error::CliError;

/// Checks the flags alone, so that an invalid one is reported before a model is loaded.
pub(crate) fn check(args: &SamplingArgs) -> Result<(), CliError> {
    let mut sampling = Sampling::default();
    set_flags(&mut sampling, args);
    sampling.check(usize::MAX).map_err(|error| CliError::Usage(error.to_string()))
}

/// The settings for one answer. `thinking` chooses between the family's two sets of defaults.
pub(crate) fn settings(args: &SamplingArgs, model: &Model, thinking: bool) -> Sampling {
    let mut sampling = Sampling::defaults(thinking, &model.generation);
    set_flags(&mut sampling, args);
    sampling.seed = args.seed.unwrap_or_else(random_seed);
    sampling
}

fn set_flags(sampling: &mut Sampling, args: &SamplingArgs) {
    let set = |to: &mut f32, flag: Option<f32>| *to = flag.unwrap_or(*to);
    set(&mut sampling.temperature, args.temperature);
    set(&mut sampling.top_p, args.top_p);
    set(&mut sampling.min_p, args.min_p);
    set(&mut sampling.repetition_penalty, args.repetition_penalty);
    set(&mut sampling.presence_penalty, args.presence_penalty);
    set(&mut sampling.frequency_penalty, args.frequency_penalty);
    sampling.top_k = args.top_k.unwrap_or(sampling.top_k);
    sampling.max_tokens = args.max_tokens.or(sampling.max_tokens);
    sampling.stop.clone_from(&args.stop);
    sampling.ignore_eos = args.ignore_eos;
}
