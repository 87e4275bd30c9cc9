//! A conversation of several turns over documents, whose answers are kept.
//!
//!     cargo run --release --example conversation
//!
//! Each turn computes only what is new; an answer becomes a chunk that another prompt has among its
//! contexts.

#[path = "held_out/mod.rs"]
mod held_out;

use std::error::Error;

use held_out::{HeldOut, folder};
use weft_core::chunk::{ChunkId, Composition, Kind, Prompt};
use weft_core::engine::{Engine, Finished, Request};
use weft_core::model::Model;
use weft_core::prompt::{Conversation, Message};
use weft_core::sampling::Sampling;

/// What the turns needed.
pub struct Talk {
    /// Prompt tokens of each turn, and those of them that were kept.
    pub turns: Vec<(usize, usize)>,
    /// The first answer, as a chunk, and what a prompt over it was answered.
    pub kept: (ChunkId, String),
}

/// Asks the questions of the first held-out documents, turn by turn.
pub fn run(n_turns: usize) -> Result<Talk, Box<dyn Error>> {
    let model = Model::open(&folder())?;
    let mut engine = held_out::engine(&model, 4)?;
    let HeldOut { documents, triples } = HeldOut::read()?;
    let triple = &triples[0];
    let first = triple.documents.iter().take(3).map(|index| format!("{}\n\n", documents[*index]));
    let first = first.chain([triple.question.clone()]).collect();
    let mut messages = vec![Message::system(&triple.system), Message::user_pieces(first)];
    let (mut turns, mut answers) = (Vec::new(), Vec::new());
    for turn in 0..n_turns {
        let conversation = Conversation::new(messages.clone(), None);
        let composition = engine.compose_chat(&conversation)?;
        let (text, tokens) = ask(&mut engine, &composition)?;
        println!("turn {turn}: {text} ({} of {} tokens kept)", tokens.1, tokens.0);
        turns.push(tokens);
        messages.push(Message::assistant(&text));
        messages.push(Message::user(&triples[turn + 1].question));
        answers.push(text);
    }
    let id = engine.keep_output(&answers[0])?;
    let prompt = Prompt::new().context(&id).query(&triple.question);
    let composition = engine.compose(&prompt)?;
    assert!(composition.pieces.iter().any(|piece| piece.kind == Kind::Output));
    Ok(Talk { turns, kept: (id, ask(&mut engine, &composition)?.0) })
}

fn ask(
    engine: &mut Engine,
    prompt: &Composition,
) -> Result<(String, (usize, usize)), Box<dyn Error>> {
    let sampling = Sampling { temperature: 0.0, max_tokens: Some(20), ..Sampling::default() };
    let (text, Finished { stats, .. }) =
        held_out::answer(engine, Request::new(prompt.clone(), sampling))?;
    Ok((text, (stats.prompt_tokens, stats.cached_tokens)))
}

#[allow(dead_code, reason = "a test includes this file for the functions above")]
fn main() -> Result<(), Box<dyn Error>> {
    run(4).map(|_| ())
}
