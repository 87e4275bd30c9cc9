//! Flags of speculation: how much is drafted, and by which model.

use clap::Args;
use weft_core::engine::Speculate;

/// How answers are drafted. This changes their speed and nothing else.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SpeculateArgs {
    /// Tokens that are drafted and then verified in one step: auto (as many as pay), off, or 1 to 7
    /// whenever there is a guess. The answer is the same, bit for bit (default: auto)
    #[arg(long, value_name = "HOW")]
    pub(crate) speculate: Option<Speculate>,
    /// A small model with the same tokenizer. It drafts if documents and conversation give no guess
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft: Option<String>,
}
