//! `weft run [MODEL] PROMPT`: one answer.

use std::io::{IsTerminal, stdin};
use std::path::Path;
use std::process::ExitCode;

use weft_core::chunk::{Asked, Turn};
use weft_server::resident::protocol::Question;

use super::reply::finish;
use super::{chat, sampling};
use crate::answer::Style;
use crate::args::{ChatArgs, RunArgs};
use crate::error::CliError;
use crate::input::{self, read_file, read_stdin};
use crate::interrupt;
use crate::load;
use crate::models;
use crate::session::Session;
use crate::sources;
use crate::terminal;

pub(crate) fn run(mut args: RunArgs) -> Result<ExitCode, CliError> {
    let words = take_model(&mut args)?;
    let Some(text) = prompt(&words, &args)? else {
        return chat_instead(args);
    };
    sampling::check(&args.sampling)?;
    let system = args.prompt.system.as_deref().map(sources::system).transpose()?;
    interrupt::install();
    let mut session = Session::open(&args.model, &args.cache)?;
    load::introduce(&args.model, args.model.quiet || args.json);
    let style = Style { stream: !args.json, quiet: args.model.quiet };
    let asked = if args.raw || !session.has_template() {
        if !args.raw {
            terminal::note(style.quiet, "no chat template: the prompt is continued as it is");
        }
        Asked::Text(text)
    } else {
        let system = system.map(|system| session.system_text(&system)).transpose()?;
        Asked::Chat { system, turns: vec![Turn { documents: Vec::new(), text, answer: None }] }
    };
    let question = Question {
        asked,
        thinking: args.prompt.thinking(),
        sampling: sampling::overrides(&args.sampling),
        use_cache: !args.cache.no_cache,
        speculate: args.speculate.speculate,
    };
    let answer = session.answer(&question, style)?;
    session.print_warnings();
    finish(&answer, args.json, None)
}

/// Takes the model from the words. Of several words, the first must be one; a single word is the
/// model if it looks like one, else the prompt. If `-m` names a model, all words are the prompt.
fn take_model(args: &mut RunArgs) -> Result<Vec<String>, CliError> {
    let mut words = std::mem::take(&mut args.words);
    if args.model_by_flag || words.is_empty() {
        return Ok(words);
    }
    let first = &words[0];
    let is_model = looks_like_model(first) || models::is_family(first) || first == models::BUNDLED;
    if is_model || (words.len() > 1 && models::is_model(first)) {
        args.model.model = Some(words.remove(0));
    } else if words.len() > 1 {
        return Err(models::not_a_model(&words[0]));
    }
    Ok(words)
}

/// Whether a word is a model's folder, a path or `org/name`. Words of a prompt rarely are.
fn looks_like_model(word: &str) -> bool {
    let is_path = word.starts_with(['/', '.', '~']) && word.contains('/');
    let parts = word.split_once('/');
    Path::new(word).join("config.json").exists()
        || is_path
        || (!word.contains(char::is_whitespace)
            && parts.is_some_and(|(org, name)| !org.is_empty() && !name.is_empty()))
}

/// The prompt's text: the content of a file or a pipe, a blank line, the text on the command line.
fn prompt(words: &[String], args: &RunArgs) -> Result<Option<String>, CliError> {
    let mut parts = Vec::new();
    let is_stdin = args.file.as_deref() == Some(Path::new("-"));
    if is_stdin {
        parts.push(read_stdin()?);
    } else if let Some(path) = &args.file {
        parts.push(read_file(path)?);
    }
    let text = words.join(" ");
    let has_prompt = !text.trim().is_empty() || !parts.is_empty();
    if is_stdin {
        // It has been read.
    } else if has_prompt && input::is_list_of_a_loop() {
        terminal::note(args.model.quiet, input::LEFT_TO_LOOP);
    } else if !stdin().is_terminal() {
        parts.push(read_stdin()?);
    }
    parts.push(text);
    parts.retain(|part| !part.trim().is_empty());
    Ok((!parts.is_empty()).then(|| parts.join("\n\n")))
}

/// At a terminal, `weft run MODEL` without a prompt starts a chat.
fn chat_instead(args: RunArgs) -> Result<ExitCode, CliError> {
    if !stdin().is_terminal() {
        return Err(CliError::Usage("the prompt is empty; give one after the model".to_owned()));
    }
    chat::run(ChatArgs {
        words: Vec::new(),
        context: Vec::new(),
        model: args.model,
        cache: args.cache,
        remote: args.remote,
        prompt: args.prompt,
        sampling: args.sampling,
        speculate: args.speculate,
    })
}
