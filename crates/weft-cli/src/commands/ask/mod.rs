//! `weft ask [MODEL] [FILE]... QUESTION`: one answer over chunks.
//!
//! Each document is a context chunk. Its rows are saved after the answer, so that the next question
//! about the same documents reuses them.

mod words;

use std::process::ExitCode;

use weft_core::chunk::{Asked as Prompt, Repair, Reuse};
use weft_server::resident::protocol::Question;

use self::words::{STDIN, Words};
use super::reply::finish;
use super::sampling;
use crate::answer::Style;
use crate::args::AskArgs;
use crate::context_report;
use crate::error::CliError;
use crate::interrupt;
use crate::load;
use crate::models;
use crate::session::Session;
use crate::sources::{self, Source};
use crate::terminal;

pub(crate) fn run(mut args: AskArgs) -> Result<ExitCode, CliError> {
    let asked = Asked::read(&mut args)?;
    let args = &args;
    sampling::check(&args.sampling)?;
    if args.reuse == Reuse::Exact && args.repair != Repair::None {
        terminal::warn(
            "--repair does nothing with --reuse exact, which needs no repair; give --reuse \
             anchored or isolated, or leave it out",
        );
    }
    interrupt::install();
    let mut session =
        Session::open_for(&args.model, &args.cache, &sources::named(&asked.documents))?;
    asked.introduce(args);
    let style = Style { stream: !args.json, quiet: args.model.quiet };
    let answer = session.answer(&asked.question(args), style)?;
    if args.stats {
        let name = |id: &_| answer.names.get(id).cloned();
        eprint!("{}", context_report::draw(&answer.finished.report, &name, terminal::has_colour()));
    }
    session.save();
    let verification = args.verify.then(|| session.verify(&answer)).transpose()?;
    finish(&answer, args.json, verification.as_ref())
}

/// The question and its documents, with files read.
struct Asked {
    system: Option<Source>,
    documents: Vec<Source>,
    question: String,
}

impl Asked {
    /// Runs before a model is loaded, so that a missing file is reported at once.
    fn read(args: &mut AskArgs) -> Result<Self, CliError> {
        let Words { model, files, question } = Words::sort(&args.words, args.model_by_flag)?;
        if question.trim().is_empty() {
            return Err(CliError::Usage("the question is empty; give one in quotes".to_owned()));
        }
        let system = args.prompt.system.as_deref().filter(|text| !text.trim().is_empty());
        let system = system.map(sources::system).transpose()?;
        let names: Vec<&str> = args.context.iter().map(String::as_str).chain(files).collect();
        let n_stdin = names.iter().filter(|name| **name == STDIN).count();
        if n_stdin > 1 {
            return Err(CliError::Usage("`-` is given twice; stdin can be read only once".into()));
        }
        let read = |name| if name == STDIN { sources::stdin() } else { sources::document(name) };
        let mut documents = names.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        // Beside other documents, stdin may be the list of a loop, which must not be read.
        if documents.is_empty() {
            documents.extend(sources::piped(args.model.quiet)?);
        }
        if let Some(model) = model.map(str::to_owned) {
            args.model.model = Some(model);
        }
        Ok(Self { system, documents, question })
    }

    /// Says what the bundled model can do, before it answers without a document.
    fn introduce(&self, args: &AskArgs) {
        if !self.documents.is_empty() {
            return load::introduce(&args.model, args.model.quiet || args.json);
        }
        if models::is_bundled(args.model.model.as_deref()) && !args.model.quiet {
            terminal::warn(&format!(
                "no document is given, and {}, the bundled demo model, answers only about \
                 documents; add `--context FILE`, or `-m {}` for a real model",
                models::BUNDLED,
                models::SMALL
            ));
        }
    }

    fn question(self, args: &AskArgs) -> Question {
        Question {
            asked: Prompt::Documents {
                system: self.system,
                documents: self.documents,
                question: self.question,
                reuse: args.reuse,
                repair: args.repair,
            },
            thinking: args.prompt.thinking(),
            sampling: sampling::overrides(&args.sampling),
            use_cache: !args.cache.no_cache,
            speculate: args.speculate.speculate,
        }
    }
}
