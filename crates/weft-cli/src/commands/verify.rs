//! `weft verify`: answers like `ask`, then compares with an answer computed from scratch.
//!
//! The engine runs the answer's tokens twice, over the context as it was used and over the same
//! tokens without the cache, and compares the distributions of the next token.

use std::process::ExitCode;

use serde_json::{Value, json};
use weft_core::engine::Verification;

use super::ask;
use crate::args::AskArgs;
use crate::error::CliError;
use crate::size;

pub(crate) fn run(args: AskArgs) -> Result<ExitCode, CliError> {
    ask::run(AskArgs { verify: true, ..args })
}

/// The comparison as text.
pub(crate) fn describe(verification: &Verification) -> String {
    let Verification { tokens, differing, mean_difference, max_difference, divergence, .. } =
        verification;
    let verdict = match differing {
        0 if verification.is_exact() => "same answer, bit for bit".to_owned(),
        0 => "same answer".to_owned(),
        _ => format!("differs in {differing} of {}", size::plural(*tokens, "token")),
    };
    format!(
        "{verdict} · |Δlogprob| mean {mean_difference:.2e}, max {max_difference:.2e} · KL \
         {divergence:.2e}"
    )
}

/// The comparison as JSON.
pub(crate) fn facts(verification: &Verification) -> Value {
    json!({
        "exact": verification.is_exact(),
        "tokens": verification.tokens,
        "differing_tokens": verification.differing,
        "mean_abs_logprob_difference": verification.mean_difference,
        "max_abs_logprob_difference": verification.max_difference,
        "kl": verification.divergence,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_comes_first() {
        let same = Verification { tokens: 31, ..Verification::default() };
        assert!(describe(&same).starts_with("same answer, bit for bit · "));
        let close = Verification { changed: 9, max_difference: 1e-3, ..same };
        assert!(describe(&close).starts_with("same answer · "));
        let other = Verification { differing: 2, ..close };
        assert!(describe(&other).starts_with("differs in 2 of 31 tokens · "));
    }
}
