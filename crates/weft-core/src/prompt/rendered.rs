//! A rendered prompt: what the template wrote and what the conversation said, apart.
//!
//! Owns how each is encoded, and the refusal where they could not be kept apart. It knows nothing
//! of how they were told apart.

use std::collections::BTreeSet;

use super::{Content, Conversation, PromptError};
use crate::tokenizer::Tokenizer;

/// A part of a prompt. None is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Written by the template: added tokens in it are recognised.
    Scaffold(String),
    /// Said in the conversation: all of it is text.
    Content(String),
}

impl Segment {
    /// The text.
    pub fn text(&self) -> &str {
        match self {
            Self::Scaffold(text) | Self::Content(text) => text,
        }
    }
}

/// A conversation that a template has rendered.
#[derive(Clone, Debug)]
pub struct Rendered {
    pub(super) segments: Vec<Segment>,
    /// Strings of the conversation that may be in the scaffold.
    pub(super) unmarked: BTreeSet<String>,
}

impl Rendered {
    /// The whole prompt as one text.
    pub fn text(&self) -> String {
        self.segments.iter().map(Segment::text).collect()
    }

    /// The parts of the prompt.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Cuts off what the template wrote after the text of the last message. Nothing follows that text
    /// but scaffold, so it is the last content, unless the template left it out or changed it.
    pub(super) fn end_with_last_of(&mut self, said: &Conversation) -> Result<(), PromptError> {
        let is_content = |segment: &Segment| matches!(segment, Segment::Content(_));
        let last = self.segments.iter().rposition(is_content).ok_or(PromptError::NotContinued)?;
        let wanted = said.messages.last().and_then(|message| message.content.as_ref());
        let wanted = wanted.map(Content::text).ok_or(PromptError::NotContinued)?;
        // A content of several pieces is as many segments; its end has to be there.
        if !wanted.trim().ends_with(self.segments[last].text().trim()) {
            return Err(PromptError::NotContinued);
        }
        self.segments.truncate(last + 1);
        Ok(())
    }

    /// The prompt's tokens.
    pub fn tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, PromptError> {
        Ok(self.encode(tokenizer, |_| None)?.concat())
    }

    /// The tokens of each segment. Each is encoded on its own, so no token crosses a border. A text
    /// whose tokens are `known` is not encoded again.
    pub fn encode<'t>(
        &self,
        tokenizer: &Tokenizer,
        known: impl Fn(&str) -> Option<&'t [u32]>,
    ) -> Result<Vec<Vec<u32>>, PromptError> {
        for string in &self.unmarked {
            if let Some(token) = added_token_in(tokenizer, string)? {
                return Err(PromptError::Inseparable { token });
            }
        }
        let encode = |segment: &Segment| match segment {
            Segment::Scaffold(text) => tokenizer.encode_markup(text),
            Segment::Content(text) => match known(text) {
                Some(tokens) => Ok(tokens.to_vec()),
                None => tokenizer.encode_text(text),
            },
        };
        Ok(self.segments.iter().map(encode).collect::<Result<_, _>>()?)
    }
}

/// The first added token that `string` would be read to contain, were it markup.
fn added_token_in(tokenizer: &Tokenizer, string: &str) -> Result<Option<String>, PromptError> {
    let (markup, text) = (tokenizer.encode_markup(string)?, tokenizer.encode_text(string)?);
    if markup == text {
        return Ok(None);
    }
    for id in markup {
        let token = tokenizer.decode(&[id], false);
        if tokenizer.encode_text(&token)? != [id] && tokenizer.encode_markup(&token)? == [id] {
            return Ok(Some(token));
        }
    }
    Ok(Some(string.to_owned()))
}
