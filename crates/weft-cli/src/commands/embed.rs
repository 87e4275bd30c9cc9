//! `weft embed TEXT...`: the embedding of each text, one list of numbers per line.
//!
//! All texts are checked before the first is computed, and each is printed soon after it is.

use std::io::{IsTerminal, Write, stdin, stdout};
use std::process::ExitCode;

use weft_core::chunk::ChunkError;
use weft_core::engine::{Engine, Reading};
use weft_core::model::Model;
use weft_core::retrieval::{Passage, compose, embedding};

use crate::args::EmbedArgs;
use crate::error::CliError;
use crate::input::read_stdin;
use crate::load::{self, Loaded};
use crate::size;
use crate::terminal;

/// Texts that are computed together before they are printed.
const BATCH: usize = 64;

pub(crate) fn run(mut args: EmbedArgs) -> Result<ExitCode, CliError> {
    let texts = texts(&mut args)?;
    let mut loaded = load::load_after(&args.model, &args.cache, |model| {
        let hidden = model.config.hidden;
        match args.dimensions.filter(|n| !(1..=hidden).contains(n)) {
            Some(n) => Err(CliError::Usage(format!(
                "--dimensions {n}: this model's vectors have {hidden} values; give 1 to {hidden}"
            ))),
            None => Ok(()),
        }
    })?;
    let Loaded { model, engine } = &mut loaded;
    let passages = passages(&texts, model, engine)?;
    let n_tokens: usize = passages.iter().map(Passage::len).sum();
    let bar = terminal::bar(args.model.quiet, n_tokens as u64, "embedding");
    for batch in passages.chunks(BATCH) {
        let states = engine.read_batch(compose(batch.to_vec()), &Reading::State);
        let states = states.map_err(weft::Error::from)?;
        bar.suspend(|| print(&states, args.dimensions)).map_err(CliError::io("stdout"))?;
        bar.inc(batch.iter().map(Passage::len).sum::<usize>() as u64);
    }
    bar.finish_and_clear();
    loaded.print_warnings();
    Ok(ExitCode::SUCCESS)
}

fn print(states: &[Vec<f32>], dimensions: Option<usize>) -> std::io::Result<()> {
    let mut lines = String::new();
    for state in states {
        lines += &serde_json::to_string(&embedding(state, dimensions))?;
        lines.push('\n');
    }
    let mut out = stdout().lock();
    out.write_all(lines.as_bytes())?;
    out.flush()
}

/// A text and what the user calls it.
struct Text {
    text: String,
    name: String,
}

/// The texts as tokens, if the context has room for each.
fn passages(texts: &[Text], model: &Model, engine: &Engine) -> Result<Vec<Passage>, CliError> {
    // One row stays free, as for answers.
    let most = engine.context() - 1;
    let passage = |Text { text, name }: &Text| {
        let passage = Passage::of_text(&model.tokenizer, text);
        let passage = passage.map_err(ChunkError::from).map_err(weft::Error::from)?;
        if passage.len() > most {
            return Err(CliError::Usage(format!(
                "{name} has {}; the limit is {most}; cut it, or raise --ctx-size if the model has \
                 more positions",
                size::plural(passage.len(), "token")
            )));
        }
        Ok(passage)
    };
    texts.iter().map(passage).collect()
}

/// The texts on the command line, or the lines of a file or a pipe.
fn texts(args: &mut EmbedArgs) -> Result<Vec<Text>, CliError> {
    let numbered = |text, name| Text { text, name };
    let given = std::mem::take(&mut args.texts).into_iter().enumerate();
    let mut texts: Vec<Text> =
        given.map(|(index, text)| numbered(text, format!("text {}", index + 1))).collect();
    if texts.is_empty() && !stdin().is_terminal() {
        let lines = read_stdin()?;
        let lines = lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let name = |index| format!("line {} of stdin", index + 1);
        texts = lines.map(|(index, line)| numbered(line.to_owned(), name(index))).collect();
    }
    if texts.is_empty() {
        let message = "there is no text to embed; give some in quotes, or lines on stdin";
        return Err(CliError::Usage(message.to_owned()));
    }
    if let Some(Text { name, .. }) = texts.iter().find(|text| text.text.is_empty()) {
        return Err(CliError::Usage(format!("{name} is empty; leave it out")));
    }
    Ok(texts)
}
