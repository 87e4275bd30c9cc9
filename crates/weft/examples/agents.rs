//! Agents side by side: different system prompts, the same documents, one batch.
//!
//!     cargo run --release -p weft --example agents

use weft::{Question, Reuse};

const AGENTS: [&str; 2] = ["Answer in one word.", "Answer in a full sentence."];
const DOCUMENTS: [&str; 2] = [
    "Piranul has 49 bridges. The river that flows through Piranul is the Gukatror.",
    "The Papokro is commanded by Trihudre. The home port of the Papokro is Presuvet.",
];

fn main() -> Result<(), weft::Error> {
    let mut llm = weft::open_bundled()?;
    let documents: Vec<_> =
        DOCUMENTS.iter().map(|text| llm.document(text)).collect::<Result<_, _>>()?;
    // Isolated documents share their KV rows between all system prompts.
    let question = Question::new("Who is the captain of the Papokro?")
        .documents(&documents)
        .reuse(Reuse::Isolated);
    let answers = llm.ask_all(AGENTS.map(|agent| question.clone().system(agent)))?;
    for (agent, answer) in AGENTS.iter().zip(answers) {
        println!("{agent} {answer}");
    }
    Ok(())
}
