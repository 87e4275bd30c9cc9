//! A rendered prompt, with the template's text and the conversation's text kept apart.
//!
//! It encodes each kind in its own way, and refuses prompts in which they could not be kept apart.

use std::collections::BTreeSet;

use super::{Content, Conversation, PromptError};
use crate::tokenizer::Tokenizer;

/// A part of a prompt, never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Text of the template. Added tokens in it are recognised.
    Scaffold(String),
    /// Text of the conversation. It is encoded as plain text.
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
    /// Strings of the conversation that may occur in the scaffold.
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

    /// Removes the template's text after the text of the last message. Only scaffold follows that
    /// text, so it is the last content, unless the template left it out or changed it.
    pub(super) fn end_with_last_of(&mut self, said: &Conversation) -> Result<(), PromptError> {
        let is_content = |segment: &Segment| matches!(segment, Segment::Content(_));
        let last = self.segments.iter().rposition(is_content).ok_or(PromptError::NotContinued)?;
        let wanted = said.messages.last().and_then(|message| message.content.as_ref());
        let wanted = wanted.map(Content::text).ok_or(PromptError::NotContinued)?;
        // A content of several pieces becomes several segments. The last segment must end the
        // content.
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

    /// The tokens of each segment. Each is encoded separately, so no token crosses a border. Texts
    /// whose tokens are `known` are not encoded again.
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

/// The first added token in `string`, if it were encoded as markup.
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
