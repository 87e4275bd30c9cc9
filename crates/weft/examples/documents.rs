//! Asks two questions about one document. The second one reuses the document's KV rows.
//!
//!     cargo run --release -p weft --example documents

use weft::Question;

const SYSTEM: &str = "Answer in one word.";
const DOCUMENT: &str = "Piranul has 49 bridges. The river of Piranul is the Gukatror. \
                        On the flag of Piranul there is a cat. Piranul was founded in 1535.";

fn main() -> Result<(), weft::Error> {
    let mut llm = weft::open_bundled()?;
    let document = llm.document(DOCUMENT)?;
    for text in ["How many bridges does Piranul have?", "When was Piranul founded?"] {
        let answer = llm.ask(Question::new(text).system(SYSTEM).document(&document))?;
        let (cached, all) = (answer.stats.cached_tokens, answer.stats.prompt_tokens);
        println!("{text} {answer} ({cached} of {all} tokens cached)");
    }
    Ok(())
}
