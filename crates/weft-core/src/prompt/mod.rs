//! Chat templates: a conversation to the tokens of a prompt.
//!
//! Owns the conversation as clients write it, the Jinja environment that model folders expect, and
//! the border between what a template wrote and what the conversation said. It knows the
//! tokenizer's two ways to encode, and neither models nor requests.
//!
//! Each string of the conversation is rendered between two marks, noncharacters that occur nowhere
//! else; string methods and filters see through them. What ends up between marks is
//! [`Segment::Content`] and is encoded as data, the rest is [`Segment::Scaffold`]: a user's
//! `<|im_end|>` stays text. The same rendering without marks is the truth: if the two texts differ
//! (the template slices or compares contents), the short words of tools are left unmarked, and
//! if that does not help either, the whole prompt is one scaffold. What stayed unmarked (roles
//! always do, being compared) may then hold no text of an added token: [`Rendered::tokens`] refuses.
//!
//! Fuel, the size of the output and the bytes that string methods and `{{ }}` touch are limited;
//! what operators and literals build inside the interpreter (`x ~ x`, `[[[x]]]`, in a loop) is not,
//! which is bearable because templates come from the model's folder and never from a request.

mod clock;
mod environment;
mod folder;
mod json;
mod marks;
mod message;
mod methods;
mod rendered;
mod source;
mod template;
mod values;

use std::path::PathBuf;

use thiserror::Error;

pub use message::{Content, Conversation, Message, Part};
pub use rendered::{Rendered, Segment};
pub use template::Template;

use crate::tokenizer::TokenizerError;

/// Why a template could not be loaded or a conversation not rendered.
#[derive(Debug, Error)]
pub enum PromptError {
    /// A file of the model's folder could not be read.
    #[error("cannot read {path}: {source}; check the model's folder")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of the model's folder has another form than it should.
    #[error("{path} is malformed: {reason}; download the model again or repair the file")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The template is not Jinja.
    #[error("the chat template is malformed in line {line}: {reason}; repair the model's template")]
    Syntax {
        /// Line of the template, from 1.
        line: usize,
        /// What the parser said.
        reason: String,
    },
    /// The template called `raise_exception`.
    #[error("the chat template refuses this conversation: {0}")]
    Raised(String),
    /// The template failed on this conversation.
    #[error(
        "the chat template failed in line {line}: {reason}; check that the messages have the \
         roles and fields that the model's template expects"
    )]
    Failed {
        /// Line of the template, from 1.
        line: usize,
        /// What the interpreter said.
        reason: String,
    },
    /// Something is larger, or goes on for longer, than it may.
    #[error("{what} exceeds the limit of {limit}; shorten the conversation or check the template")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// The limit, in the unit that `what` names.
        limit: u64,
    },
    /// No two noncharacters are left to mark contents with.
    #[error(
        "the conversation uses all Unicode noncharacters (U+FDD0 and so on), so its contents \
         cannot be told apart from the template; remove them"
    )]
    NoMarks,
    /// Content that cannot be kept apart from the template has the text of an added token.
    #[error(
        "the text {token:?} is a token of the model, and where it occurs in the conversation this \
         chat template cannot keep it apart from its own tokens; remove it from the conversation"
    )]
    Inseparable {
        /// The token's text.
        token: String,
    },
    /// What the template writes after the last message's text cannot be told apart from it.
    #[error(
        "the last message cannot be continued: it has no text, or this chat template changes it; \
         leave out continue_final_message"
    )]
    NotContinued,
    /// The rendered prompt could not be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}
