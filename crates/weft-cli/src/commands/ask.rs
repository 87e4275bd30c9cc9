//! `weft ask --context FILE… QUESTION`: one answer over documents.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use weft::engine::Request;
use weft::prompt::{Conversation, Message};

use super::run::read_text;
use super::sampling;
use crate::answer::{self, Answer, Style, print};
use crate::args::{AskArgs, SamplingArgs};
use crate::error::{CliError, INTERRUPTED};
use crate::interrupt;
use crate::load::{self, Loaded};

pub(crate) fn run(args: &AskArgs) -> Result<ExitCode, CliError> {
    let (files, question) = split_words(&args.words);
    let files: Vec<&Path> = args.context.iter().map(PathBuf::as_path).chain(files).collect();
    let question = Question {
        system: args.prompt.system.as_deref(),
        documents: read_documents(&files)?,
        question,
    };
    sampling::check(&args.sampling)?;
    interrupt::install();
    let mut loaded = load::load(&args.model)?;
    let style = Style { stream: !args.json, quiet: args.model.quiet };
    let answer = question.answer(&mut loaded, args.prompt.thinking(), &args.sampling, style)?;
    if args.json {
        print(&format!("{}\n", answer.json()))?;
    }
    Ok(if answer.was_interrupted() { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// A shell turns `--context docs/*.txt "question"` into several words after the first file: words
/// that are files, and not the last, are documents too.
fn split_words(words: &[String]) -> (Vec<&Path>, String) {
    let before_last = &words[..words.len().saturating_sub(1)];
    let n_files = before_last.iter().take_while(|word| Path::new(word).is_file()).count();
    let files = words[..n_files].iter().map(Path::new).collect();
    (files, words[n_files..].join(" "))
}

fn read_documents(files: &[&Path]) -> Result<Vec<String>, CliError> {
    let read = |path: &&Path| {
        let name = path.display().to_string();
        read_text(std::fs::File::open(path).map_err(CliError::io(&name))?, &name)
    };
    files.iter().map(read).collect()
}

/// A composition: system prompt, documents in their order, question.
pub(crate) struct Question<'a> {
    pub(crate) system: Option<&'a str>,
    pub(crate) documents: Vec<String>,
    pub(crate) question: String,
}

impl Question<'_> {
    /// Answers it.
    pub(crate) fn answer(
        &self,
        loaded: &mut Loaded,
        thinking: Option<bool>,
        flags: &SamplingArgs,
        style: Style,
    ) -> Result<Answer, CliError> {
        let Loaded { model, engine } = loaded;
        let Some(template) = &model.template else {
            return Err(CliError::Usage(
                "this model has no chat template; `weft run --raw` continues a text".to_owned(),
            ));
        };
        let rendered = template.render(&self.conversation(thinking))?;
        let tokens = rendered.tokens(&model.tokenizer)?;
        let settings = sampling::settings(flags, model, sampling::thinks(model, thinking));
        answer::answer(engine, &rendered.text(), Request::new(tokens, settings), style)
    }

    /// One user turn: each document and a blank line, then the question, tokenised apart.
    fn conversation(&self, thinking: Option<bool>) -> Conversation {
        let documents = self.documents.iter().map(|text| format!("{}\n\n", text.trim_end()));
        let pieces = documents.chain([self.question.clone()]).collect();
        let system = self.system.iter().map(|text| Message::system(text));
        Conversation::new(system.chain([Message::user_pieces(pieces)]).collect(), thinking)
    }
}
