//! `weft ask [MODEL] [FILE]... QUESTION`: one answer over chunks.
//!
//! Each document is a context chunk. Its rows are saved after the answer, so that the next question
//! about the same documents reuses them.

mod words;

use std::process::ExitCode;

use weft_core::chunk::{Prompt, Repair, Reuse};

use self::words::{STDIN, Words};
use super::reply::{Reply, finish, reply};
use super::{sampling, verify};
use crate::answer::Style;
use crate::args::AskArgs;
use crate::context_report;
use crate::error::CliError;
use crate::interrupt;
use crate::load::{self, Loaded};
use crate::models;
use crate::sources::{self, ChunkResolver, Source};
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
    let mut loaded = load::load_after(&args.model, &args.cache, |model| {
        sources::check_documents(&asked.documents, &args.cache, &model.tokenizer)
    })?;
    asked.introduce(args);
    let mut resolver = ChunkResolver::open(&args.cache, &mut loaded);
    let prompt = asked.prompt(args, &mut resolver, &mut loaded)?;
    let style = Style { stream: !args.json, quiet: args.model.quiet };
    let thinking = args.prompt.thinking();
    let composition = loaded.engine.compose(&prompt)?;
    let how = Reply { thinking, sampling: &args.sampling, style, use_cache: !args.cache.no_cache };
    let answer = reply(&mut loaded, composition, &how)?;
    if args.stats {
        let name = |id: &_| resolver.name(id);
        eprint!("{}", context_report::draw(&answer.finished.report, &name, terminal::has_colour()));
    }
    keep(args, &mut resolver, &mut loaded);
    let verification = args.verify.then(|| verify::verify(&mut loaded, &answer)).transpose()?;
    finish(&answer, args.json, verification.as_ref())
}

/// Saves the rows of chunks for the next question, and prints warnings.
fn keep(args: &AskArgs, resolver: &mut ChunkResolver, loaded: &mut Loaded) {
    if !args.cache.no_cache {
        loaded.engine.save(false);
    }
    resolver.save_use_counts(&loaded.engine);
    loaded.print_warnings();
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
        let system = args.prompt.system.as_deref().filter(|text| !text.trim().is_empty());
        let system = system.map(Source::system).transpose()?;
        let names: Vec<&str> = args.context.iter().map(String::as_str).chain(files).collect();
        let n_stdin = names.iter().filter(|name| **name == STDIN).count();
        if n_stdin > 1 {
            return Err(CliError::Usage("`-` is given twice; stdin can be read only once".into()));
        }
        let read = |name| if name == STDIN { Source::stdin() } else { Source::document(name) };
        let mut documents = names.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        // The last document, so that rows of the others are found again if it changes.
        if n_stdin == 0 {
            documents.extend(Source::piped(!documents.is_empty(), args.model.quiet)?);
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

    fn prompt(
        &self,
        args: &AskArgs,
        resolver: &mut ChunkResolver,
        loaded: &mut Loaded,
    ) -> Result<Prompt, CliError> {
        let engine = &mut loaded.engine;
        let mut prompt = Prompt::new().query(&self.question).reuse(args.reuse).repair(args.repair);
        if let Some(system) = &self.system {
            prompt = prompt.system(&resolver.system(engine, system)?);
        }
        for document in &self.documents {
            prompt = prompt.context(&resolver.document(engine, document)?);
        }
        Ok(prompt.thinking(args.prompt.thinking()))
    }
}
