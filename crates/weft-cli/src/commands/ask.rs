//! `weft ask --context FILE… QUESTION`: one answer over documents.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use weft::prompt::{Conversation, Message};

use super::reply::{finish, reply};
use super::run::read_file;
use super::sampling;
use crate::answer::Style;
use crate::args::AskArgs;
use crate::error::CliError;
use crate::interrupt;
use crate::load;

pub(crate) fn run(args: &AskArgs) -> Result<ExitCode, CliError> {
    let (files, question) = split_words(&args.words);
    let files: Vec<&Path> = args.context.iter().map(PathBuf::as_path).chain(files).collect();
    let question = Question {
        system: args.prompt.system.as_deref(),
        documents: files.into_iter().map(read_file).collect::<Result<_, _>>()?,
        question,
    };
    sampling::check(&args.sampling)?;
    interrupt::install();
    let mut loaded = load::load(&args.model)?;
    let style = Style { stream: !args.json, quiet: args.model.quiet };
    let conversation = question.conversation(args.prompt.thinking());
    finish(&reply(&mut loaded, &conversation, &args.sampling, style)?, args.json)
}

/// A shell turns `--context docs/*.txt "question"` into several words after the first file: words
/// that are files, and not the last, are documents too.
fn split_words(words: &[String]) -> (Vec<&Path>, String) {
    let before_last = &words[..words.len().saturating_sub(1)];
    let n_files = before_last.iter().take_while(|word| Path::new(word).is_file()).count();
    let files = words[..n_files].iter().map(Path::new).collect();
    (files, words[n_files..].join(" "))
}

/// A composition: system prompt, documents in their order, question.
pub(crate) struct Question<'a> {
    pub(crate) system: Option<&'a str>,
    pub(crate) documents: Vec<String>,
    pub(crate) question: String,
}

impl Question<'_> {
    /// One user turn: each document and a blank line, then the question, tokenised apart.
    pub(crate) fn conversation(&self, thinking: Option<bool>) -> Conversation {
        let documents = self.documents.iter().map(|text| format!("{}\n\n", text.trim_end()));
        let pieces = documents.chain([self.question.clone()]).collect();
        let system = self.system.iter().map(|text| Message::system(text));
        Conversation::new(system.chain([Message::user_pieces(pieces)]).collect(), thinking)
    }
}
