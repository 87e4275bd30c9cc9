//! Chat templates: from a conversation to the tokens of a prompt.
//!
//! This module defines the conversation as clients write it and the Jinja environment that model
//! folders expect. It separates the template's own text from the text of the conversation.
//!
//! Each string of the conversation is rendered between two marks, noncharacters that occur nowhere
//! else. String methods and filters see through the marks. Text between marks becomes
//! [`Segment::Content`] and is encoded as data; all other text is [`Segment::Scaffold`]. So a
//! user's `<|im_end|>` stays text.
//!
//! A second rendering without marks checks the result. If the two texts differ (because the
//! template slices or compares contents), the short words of tools are left unmarked. If they still
//! differ, the whole prompt becomes one scaffold. Unmarked strings (roles are always unmarked,
//! because templates compare them) may not contain the text of an added token: [`Rendered::tokens`]
//! refuses it.
//!
//! There are limits on fuel, on the size of the output, on the depth and size of every value, on
//! the bytes and items that a template makes, writes and compares, and on its constants. So a
//! template that was written to do harm ends with an error.

mod checks;
mod clock;
mod compiled;
mod constants;
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

/// Why a template could not be loaded, or a conversation could not be rendered.
#[derive(Debug, Error)]
pub enum PromptError {
    /// A file of the model's folder could not be read.
    #[error("cannot read {path}: {source}; check the model's folder")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file of the model's folder is malformed.
    #[error("{path} is malformed: {reason}; download the model again or repair the file")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why it is malformed.
        reason: String,
    },
    /// The template is not valid Jinja.
    #[error("the chat template is malformed in line {line}: {reason}; repair the model's template")]
    Syntax {
        /// Line of the template, from 1.
        line: usize,
        /// The parser's message.
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
        /// The interpreter's message.
        reason: String,
    },
    /// A limit was exceeded.
    #[error("{what} exceeds the limit of {limit}; shorten the conversation or check the template")]
    Limit {
        /// The quantity that is too large.
        what: &'static str,
        /// The limit, in the unit that `what` names.
        limit: u64,
    },
    /// There are too few unused noncharacters to mark contents.
    #[error(
        "the conversation uses all Unicode noncharacters (U+FDD0 and so on), so its contents \
         cannot be separated from the template; remove them"
    )]
    NoMarks,
    /// Content that cannot be separated from the template contains the text of an added token.
    #[error(
        "the text {token:?} is a token of the model, and this chat template cannot keep the \
         conversation's text apart from its own tokens; remove it from the conversation"
    )]
    Inseparable {
        /// The token's text.
        token: String,
    },
    /// The text of the last message cannot be separated from the template's text after it.
    #[error(
        "the last message cannot be continued: it has no text, or this chat template changes it; \
         leave out continue_final_message"
    )]
    NotContinued,
    /// The rendered prompt could not be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}
