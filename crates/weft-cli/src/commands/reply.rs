//! Samples and shows the answer to a composition, for all commands that answer.

use std::process::ExitCode;

use weft_core::chunk::Composition;
use weft_core::engine::{Request, Verification};
use weft_core::model::Model;
use weft_core::prompt::Template;

use super::{sampling, verify};
use crate::answer::{self, Answer, Style, print};
use crate::args::SamplingArgs;
use crate::error::{CliError, INTERRUPTED};
use crate::load::Loaded;
use crate::terminal;

/// The settings of an answer.
pub(crate) struct Reply<'a> {
    pub(crate) thinking: Option<bool>,
    pub(crate) sampling: &'a SamplingArgs,
    pub(crate) style: Style,
    /// Whether cached rows are used, and new ones cached.
    pub(crate) use_cache: bool,
}

/// Answers a prompt that was rendered by the model's template.
pub(crate) fn reply(
    loaded: &mut Loaded,
    prompt: Composition,
    how: &Reply<'_>,
) -> Result<Answer, CliError> {
    let Loaded { model, engine } = loaded;
    let thinks = model.thinks(how.thinking);
    let settings = sampling::settings(how.sampling, model, thinks);
    let end = prompt.end_text(&model.tokenizer);
    let request = Request { use_cache: how.use_cache, ..Request::new(prompt, settings) };
    answer::answer(engine, &end, request, how.style)
}

/// The model's chat template, or an error that says what to do without one.
pub(crate) fn template(model: &Model) -> Result<&Template, CliError> {
    model.template.as_deref().ok_or_else(|| {
        CliError::Usage(
            "this model has no chat template; `weft run --raw` continues a text".to_owned(),
        )
    })
}

/// Ends a command with its one answer, as JSON if requested.
pub(crate) fn finish(
    answer: &Answer,
    as_json: bool,
    verification: Option<&Verification>,
) -> Result<ExitCode, CliError> {
    if as_json {
        let mut json = answer.json();
        if let Some(verification) = verification {
            json["verification"] = verify::facts(verification);
        }
        print(&format!("{json}\n"))?;
    } else if let Some(verification) = verification {
        terminal::note(false, &verify::describe(verification));
    }
    Ok(if answer.was_interrupted() { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}
