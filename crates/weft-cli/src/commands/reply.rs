//! What the commands that answer share: a conversation rendered, sampled and shown.

use std::process::ExitCode;

use weft::engine::Request;
use weft::model::Model;
use weft::prompt::{Conversation, Template};

use super::sampling;
use crate::answer::{self, Answer, Style, print};
use crate::args::SamplingArgs;
use crate::error::{CliError, INTERRUPTED};
use crate::load::Loaded;

/// Answers a conversation, rendered by the model's own template.
pub(crate) fn reply(
    loaded: &mut Loaded,
    conversation: &Conversation,
    flags: &SamplingArgs,
    style: Style,
) -> Result<Answer, CliError> {
    let Loaded { model, engine } = loaded;
    let rendered = template(model)?.render(conversation)?;
    let thinks = sampling::thinks(model, conversation.enable_thinking);
    let settings = sampling::settings(flags, model, thinks);
    let request = Request::new(rendered.tokens(&model.tokenizer)?, settings);
    answer::answer(engine, &rendered.text(), request, style)
}

/// The model's chat template, or what to do without one.
pub(crate) fn template(model: &Model) -> Result<&Template, CliError> {
    model.template.as_deref().ok_or_else(|| {
        CliError::Usage(
            "this model has no chat template; `weft run --raw` continues a text".to_owned(),
        )
    })
}

/// Ends a command with its one answer: as JSON where that was asked for.
pub(crate) fn finish(answer: &Answer, as_json: bool) -> Result<ExitCode, CliError> {
    if as_json {
        print(&format!("{}\n", answer.json()))?;
    }
    Ok(if answer.was_interrupted() { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}
