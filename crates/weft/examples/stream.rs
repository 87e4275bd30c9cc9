//! Answers each line of standard input by itself, and prints the answer while the model generates
//! it.
//!
//!     cargo run --release -p weft --example stream -- Qwen/Qwen3-0.6B

use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).ok_or("give a model")?;
    let mut llm = weft::open(&model)?;
    for line in std::io::stdin().lines() {
        for piece in llm.stream(line?)? {
            print!("{}", piece?);
            std::io::stdout().flush()?;
        }
        println!();
    }
    Ok(())
}
