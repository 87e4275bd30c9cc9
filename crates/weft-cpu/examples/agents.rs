//! Two agents with different system prompts over the same documents, side by side.
//!
//!     cargo run --release --example agents
//!
//! Documents are isolated, so both agents read the same rows, in one batch.

#[path = "held_out/mod.rs"]
mod held_out;

use std::error::Error;

use held_out::{HeldOut, folder};
use weft_core::chunk::{Kind, Prompt, Reuse};
use weft_core::model::Model;
use weft_core::sampling::Sampling;

/// One question, asked of both agents.
pub struct Round {
    /// What each agent said.
    pub answers: Vec<String>,
    /// Prompt tokens of both agents.
    pub tokens: usize,
    /// Those of them that nobody had computed.
    pub computed: usize,
}

/// Both agents are asked about the documents of the first `n` held-out questions.
pub fn run(n: usize) -> Result<Vec<Round>, Box<dyn Error>> {
    let model = Model::open(&folder())?;
    let mut engine = held_out::engine(&model, 6)?;
    let HeldOut { documents, triples } = HeldOut::read()?;
    let agents = ["Answer in one word.", "Answer in a full sentence."];
    let mut rounds = Vec::new();
    for triple in triples.iter().take(n) {
        let mut requests = Vec::new();
        for agent in agents {
            let system = engine.chunk(Kind::System, agent)?;
            let mut prompt = Prompt::new().system(&system).reuse(Reuse::Isolated);
            for index in &triple.documents {
                prompt = prompt.context(&engine.chunk(Kind::Context, &documents[*index])?);
            }
            let sampling =
                Sampling { temperature: 0.0, max_tokens: Some(40), ..Sampling::default() };
            requests.push(engine.request(&prompt.query(&triple.question), sampling)?);
        }
        let (mut tokens, mut computed) = (0, 0);
        let mut answers = Vec::new();
        for completion in engine.generate_batch(requests)? {
            let stats = completion.ending.as_ref().map_err(ToString::to_string)?.stats;
            tokens += stats.prompt_tokens;
            computed += stats.prompt_tokens - stats.cached_tokens;
            answers.push(completion.text());
        }
        println!("{} {answers:?} ({computed} of {tokens} tokens computed)", triple.question);
        rounds.push(Round { answers, tokens, computed });
    }
    Ok(rounds)
}

#[allow(dead_code, reason = "a test includes this file for the functions above")]
fn main() -> Result<(), Box<dyn Error>> {
    run(5).map(|_| ())
}
