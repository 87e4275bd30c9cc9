//! A retrieval loop: for each question the documents that mention its words are put before it.
//!
//!     cargo run --release --example rag
//!
//! Documents are anchored to the system prompt, so each is computed once, whatever stands beside it.

#[path = "held_out/mod.rs"]
mod held_out;

use std::error::Error;

use held_out::{HeldOut, folder};
use weft_core::chunk::{Kind, Prompt, Reuse};
use weft_core::engine::{Engine, Finished};
use weft_core::model::Model;
use weft_core::sampling::Sampling;

/// One question of the loop.
pub struct Answered {
    /// Whether the text is the expected one.
    pub is_right: bool,
    /// Tokens of the prompt, and those of them that were kept.
    pub tokens: (usize, usize),
}

/// Asks the first `n` held-out questions twice over.
pub fn run(n: usize) -> Result<Vec<Answered>, Box<dyn Error>> {
    let model = Model::open(&folder())?;
    let mut engine = held_out::engine(&model, 4)?;
    let HeldOut { documents, triples } = HeldOut::read()?;
    let mut answered = Vec::new();
    for triple in triples[..n].iter().chain(&triples[..n]) {
        let system = engine.chunk(Kind::System, &triple.system)?;
        let mut prompt = Prompt::new().system(&system).reuse(Reuse::Anchored);
        for text in retrieve(&documents, &triple.question, 4) {
            prompt = prompt.context(&engine.chunk(Kind::Context, text)?);
        }
        let (text, tokens) = ask(&mut engine, &prompt.query(&triple.question))?;
        println!("{} {text} ({} of {} tokens kept)", triple.question, tokens.1, tokens.0);
        answered.push(Answered { is_right: text == triple.answer, tokens });
    }
    Ok(answered)
}

/// The documents that have most of the question's words, rare ones counting more.
fn retrieve<'d>(documents: &'d [String], question: &str, n: usize) -> Vec<&'d str> {
    let words = question.split(|c: char| !c.is_alphanumeric()).filter(|word| word.len() > 2);
    let weighed: Vec<(&str, f64)> = words
        .map(|word| (word, documents.iter().filter(|text| text.contains(word)).count()))
        .map(|(word, n_with)| (word, (documents.len() as f64 / (n_with.max(1) as f64)).ln()))
        .collect();
    let score = |text: &str| -> f64 {
        weighed.iter().filter(|(word, _)| text.contains(word)).map(|(_, weight)| weight).sum()
    };
    let mut ranked: Vec<&str> = documents.iter().map(String::as_str).collect();
    ranked.sort_by(|a, b| score(b).total_cmp(&score(a)));
    ranked.truncate(n);
    ranked
}

fn ask(engine: &mut Engine, prompt: &Prompt) -> Result<(String, (usize, usize)), Box<dyn Error>> {
    let sampling = Sampling { temperature: 0.0, max_tokens: Some(40), ..Sampling::default() };
    let request = engine.request(prompt, sampling)?;
    let (text, Finished { stats, .. }) = held_out::answer(engine, request)?;
    Ok((text, (stats.prompt_tokens, stats.cached_tokens)))
}

#[allow(dead_code, reason = "a test includes this file for the functions above")]
fn main() -> Result<(), Box<dyn Error>> {
    let answered = run(10)?;
    let right = answered.iter().filter(|answer| answer.is_right).count();
    println!("{right} of {} right", answered.len());
    Ok(())
}
