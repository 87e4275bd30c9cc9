//! `weft run [MODEL] PROMPT`: one answer.

use std::io::{IsTerminal, Read, stdin};
use std::path::Path;
use std::process::ExitCode;

use weft::engine::Request;
use weft::model::Model;
use weft::prompt::{Conversation, Message, PromptError};

use super::{chat, sampling};
use crate::answer::{self, Style, print};
use crate::args::{ChatArgs, RunArgs};
use crate::error::{CliError, INTERRUPTED};
use crate::interrupt;
use crate::load::{self, Loaded};

/// Bytes of a prompt's file or pipe; more than any context holds.
const INPUT_LIMIT: u64 = 64 << 20;

pub(crate) fn run(mut args: RunArgs) -> Result<ExitCode, CliError> {
    let words = take_model(&mut args);
    let Some(text) = prompt(&words, &args)? else {
        return chat_instead(args);
    };
    sampling::check(&args.sampling)?;
    interrupt::install();
    let Loaded { model, mut engine } = load::load(&args.model)?;
    let prompt = Prompt::new(&model, &args, &text)?;
    let sampling = sampling::settings(&args.sampling, &model, prompt.thinks);
    let request = Request::new(prompt.tokens, sampling);
    let style = Style { stream: !args.json, quiet: args.model.quiet };
    let answer = answer::answer(&mut engine, &prompt.text, request, style)?;
    if args.json {
        print(&format!("{}\n", answer.json()))?;
    }
    Ok(if answer.was_interrupted() { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// The first word is the model where it can be one, whatever else names a model by default; where
/// `-m` names one too, the word is part of the prompt.
fn take_model(args: &mut RunArgs) -> Vec<String> {
    let mut words = std::mem::take(&mut args.words);
    if !args.model_by_flag && words.first().is_some_and(|word| looks_like_model(word)) {
        args.model.model = Some(words.remove(0));
    }
    words
}

/// A folder, or `org/name`: a word of a prompt is hardly ever either.
fn looks_like_model(word: &str) -> bool {
    let is_path = word.starts_with(['/', '.', '~']) && word.contains('/');
    let parts = word.split_once('/');
    Path::new(word).join("config.json").exists()
        || is_path
        || (!word.contains(char::is_whitespace)
            && parts.is_some_and(|(org, name)| !org.is_empty() && !name.is_empty()))
}

/// The prompt's text: what a file or a pipe holds, a blank line, what the command line says.
fn prompt(words: &[String], args: &RunArgs) -> Result<Option<String>, CliError> {
    let mut parts = Vec::new();
    if let Some(path) = &args.file {
        let name = path.display().to_string();
        let file = std::fs::File::open(path).map_err(CliError::io(&name))?;
        parts.push(read_text(file, &name)?);
    }
    if !stdin().is_terminal() {
        parts.push(read_text(stdin().lock(), "stdin")?);
    }
    parts.push(words.join(" "));
    parts.retain(|part| !part.trim().is_empty());
    Ok((!parts.is_empty()).then(|| parts.join("\n\n")))
}

pub(crate) fn read_text(from: impl Read, name: &str) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    from.take(INPUT_LIMIT + 1).read_to_end(&mut bytes).map_err(CliError::io(name))?;
    if bytes.len() as u64 > INPUT_LIMIT {
        return Err(CliError::Usage(format!("{name} has more than {INPUT_LIMIT} bytes of text")));
    }
    String::from_utf8(bytes).map_err(|_| CliError::Usage(format!("{name} is not UTF-8 text")))
}

/// `weft run MODEL` without a prompt, at a terminal, is a chat.
fn chat_instead(args: RunArgs) -> Result<ExitCode, CliError> {
    if !stdin().is_terminal() {
        return Err(CliError::Usage("the prompt is empty; give one after the model".to_owned()));
    }
    chat::run(ChatArgs {
        name: None,
        model: args.model,
        prompt: args.prompt,
        sampling: args.sampling,
    })
}

/// A prompt in tokens.
struct Prompt {
    tokens: Vec<u32>,
    /// The text the tokens stand for.
    text: String,
    thinks: bool,
}

impl Prompt {
    fn new(model: &Model, args: &RunArgs, text: &str) -> Result<Self, CliError> {
        let Some(template) = model.template.as_ref().filter(|_| !args.raw) else {
            if !args.raw {
                crate::terminal::note(
                    args.model.quiet,
                    "no chat template: the prompt is continued as it is",
                );
            }
            let tokens = model.tokenizer.encode_with_bos(text).map_err(PromptError::from)?;
            return Ok(Self { tokens, text: text.to_owned(), thinks: false });
        };
        let system = args.prompt.system.iter().map(|system| Message::system(system));
        let messages = system.chain([Message::user(text)]).collect();
        let conversation = Conversation::new(messages, args.prompt.thinking());
        let rendered = template.render(&conversation)?;
        Ok(Self {
            tokens: rendered.tokens(&model.tokenizer)?,
            text: rendered.text(),
            thinks: sampling::thinks(model, args.prompt.thinking()),
        })
    }
}
