//! `weft embed TEXT...`: the embedding of each text, one list of numbers per line.

use std::io::{BufWriter, IsTerminal, Write, stdin, stdout};
use std::process::ExitCode;

use weft_core::chunk::ChunkError;
use weft_core::engine::Reading;
use weft_core::retrieval::{Passage, compose, embedding};

use crate::args::EmbedArgs;
use crate::error::CliError;
use crate::input::read_stdin;
use crate::load::{self, Loaded};

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
    let passage = |text: &String| Passage::of_text(&model.tokenizer, text);
    let passages: Result<Vec<Passage>, _> = texts.iter().map(passage).collect();
    let passages = passages.map_err(ChunkError::from).map_err(weft::Error::from)?;
    let states = engine.read_batch(compose(passages), &Reading::State);
    let states = states.map_err(weft::Error::from)?;
    let mut out = BufWriter::new(stdout().lock());
    let print = |out: &mut dyn Write, state: &Vec<f32>| {
        let values = serde_json::to_string(&embedding(state, args.dimensions))?;
        writeln!(out, "{values}")
    };
    states
        .iter()
        .try_for_each(|state| print(&mut out, state))
        .and_then(|()| out.flush())
        .map_err(CliError::io("stdout"))?;
    drop(out);
    loaded.print_warnings();
    Ok(ExitCode::SUCCESS)
}

/// The texts on the command line, or the lines of a file or a pipe.
fn texts(args: &mut EmbedArgs) -> Result<Vec<String>, CliError> {
    let mut texts = std::mem::take(&mut args.texts);
    if texts.is_empty() && !stdin().is_terminal() {
        let lines = read_stdin()?;
        texts = lines.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    }
    if texts.is_empty() {
        let message = "there is no text to embed; give some in quotes, or lines on stdin";
        return Err(CliError::Usage(message.to_owned()));
    }
    if let Some(index) = texts.iter().position(String::is_empty) {
        return Err(CliError::Usage(format!("text {index} is empty; leave it out")));
    }
    Ok(texts)
}
