//! One question, one answer.
//!
//!     cargo run --release -p weft --example answer -- Qwen/Qwen3-0.6B "Why is the sky blue?"

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(question)) = (args.next(), args.next()) else {
        return Err("give a model and a question".into());
    };
    let mut llm = weft::open(&model)?;
    let answer = llm.ask(question)?;
    println!("{answer}");
    eprintln!(
        "{} tokens, first after {:?}",
        answer.stats.generated_tokens, answer.stats.first_token
    );
    Ok(())
}
