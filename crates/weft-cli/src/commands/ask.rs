//! `weft ask --context FILE… QUESTION`: one answer over chunks.
//!
//! Each document is a context chunk. Its rows are saved after the answer, so that the next question
//! about the same documents reuses them.

use std::path::Path;
use std::process::ExitCode;

use weft_core::chunk::Prompt;

use super::reply::{Reply, finish, reply};
use super::{sampling, verify};
use crate::answer::Style;
use crate::args::AskArgs;
use crate::context_report;
use crate::error::CliError;
use crate::interrupt;
use crate::load::{self, Loaded};
use crate::sources::{ChunkResolver, Source};
use crate::terminal;

pub(crate) fn run(args: &AskArgs) -> Result<ExitCode, CliError> {
    let asked = Asked::read(args)?;
    sampling::check(&args.sampling)?;
    interrupt::install();
    let mut loaded = load::load(&args.model, &args.cache)?;
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
    fn read(args: &AskArgs) -> Result<Self, CliError> {
        let (files, question) = split_words(&args.words);
        let system = args.prompt.system.as_deref().filter(|text| !text.trim().is_empty());
        let documents = args.context.iter().map(String::as_str).chain(files);
        Ok(Self {
            system: system.map(Source::system).transpose()?,
            documents: documents.map(Source::document).collect::<Result<_, _>>()?,
            question,
        })
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

/// A shell turns `--context docs/*.txt "question"` into several words after the first file. Words
/// that are files, except the last word, are documents too.
fn split_words(words: &[String]) -> (impl Iterator<Item = &str>, String) {
    let before_last = &words[..words.len().saturating_sub(1)];
    let n_files = before_last.iter().take_while(|word| Path::new(word).is_file()).count();
    let files = words[..n_files].iter().map(String::as_str);
    (files, words[n_files..].join(" "))
}
