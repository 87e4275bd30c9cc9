//! A compiled chat template.
//!
//! It renders a conversation first without marks, which gives the correct text, and then with marks
//! until a rendering agrees with that text.

use std::collections::BTreeSet;
use std::time::SystemTime;

use minijinja::{Environment, Value};

use super::checks;
use super::compiled::Compiled;
use super::environment::{self, SESSION, Session};
use super::marks::{Marked, Marks, is_nonchar};
use super::message::Conversation;
use super::rendered::{Rendered, Segment};
use super::values::{Values, View};
use super::{PromptError, source};

/// Maximum bytes of a prompt.
const MAX_OUTPUT_BYTES: usize = 64 << 20;
/// Bytes that a template may add to those of the conversation, which it may write twice.
const MAX_SCAFFOLD_BYTES: usize = 1 << 20;
/// Bytes that string methods may process, in addition to 64 times those of the conversation.
const MAX_WORK_BYTES: usize = 64 << 20;

/// A chat template. Immutable and shared freely between threads.
#[derive(Debug)]
pub struct Template {
    source: String,
    env: Environment<'static>,
    compiled: Compiled,
    /// The special tokens that templates refer to by name.
    tokens: Vec<(&'static str, String)>,
    /// Noncharacters in the template itself.
    nonchars: BTreeSet<char>,
}

/// The result of one rendering.
struct Output {
    text: String,
    unmarked: BTreeSet<String>,
}

impl Template {
    /// Compiles a template. `bos_token` and `eos_token` are the variables of these names.
    pub fn new(
        source: &str,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
    ) -> Result<Self, PromptError> {
        let syntax = environment::syntax().map_err(|error| environment::explain(&error))?;
        let prepared = source::prepare(source, syntax.clone())?;
        let compiled = Compiled::new(&prepared, syntax)?;
        let env = environment::environment();
        let tokens = [("bos_token", bos_token), ("eos_token", eos_token)];
        let tokens: Vec<_> = tokens
            .into_iter()
            .filter_map(|(name, token)| Some((name, token?.to_owned())))
            .collect();
        let texts = tokens.iter().flat_map(|(_, token)| token.chars());
        let nonchars = source.chars().chain(texts).filter(|&char| is_nonchar(char)).collect();
        Ok(Self { source: source.to_owned(), env, compiled, tokens, nonchars })
    }

    /// The template as its file has it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation.
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered, PromptError> {
        let mut rendered = self.render_whole(conversation)?;
        if conversation.continue_last {
            rendered.end_with_last_of(conversation)?;
        }
        Ok(rendered)
    }

    fn render_whole(&self, conversation: &Conversation) -> Result<Rendered, PromptError> {
        let now = SystemTime::now();
        let mut view = View { marks: None, mark_words: true, fill_content: false };
        let mut plain = self.render_once(conversation, view, now);
        // Clients send a null content if the assistant only called tools. Some templates test for
        // it, others expect every content to be a string.
        if plain.is_err() && conversation.messages.iter().any(|m| m.content.is_none()) {
            view.fill_content = true;
            plain = self.render_once(conversation, view, now).or(plain);
        }
        let plain = plain?;
        let mut taken = self.nonchars.clone();
        let strings = plain.unmarked.iter().flat_map(|string| string.chars());
        taken.extend(strings.filter(|&char| is_nonchar(char)));
        view.marks = Some(Marks::choose(&taken).ok_or(PromptError::NoMarks)?);
        for mark_words in [true, false] {
            view.mark_words = mark_words;
            let marked = self.render_once(conversation, view, now);
            if let Ok(Output { text, unmarked }) = marked
                && let Ok(marked) = Marked::parse(&text, view.marks)
                && marked.text == plain.text
            {
                let segments = marked.pieces(marked.all()).map(segment).collect();
                return Ok(Rendered { segments, unmarked });
            }
        }
        let segments = [(&*plain.text, false)].into_iter().filter(|(text, _)| !text.is_empty());
        Ok(Rendered { segments: segments.map(segment).collect(), unmarked: plain.unmarked })
    }

    fn render_once(
        &self,
        conversation: &Conversation,
        view: View,
        now: SystemTime,
    ) -> Result<Output, PromptError> {
        let mut values = Values::new(view);
        let mut variables = values.variables(conversation);
        for (name, token) in &self.tokens {
            variables.push(((*name).to_owned(), Value::from(&**token)));
        }
        let max_work_bytes = values.n_bytes.saturating_mul(64).saturating_add(MAX_WORK_BYTES);
        checks::begin(max_work_bytes);
        let session = Session { marks: view.marks, now };
        variables.push((SESSION.to_owned(), Value::from_object(session)));
        let limit = values.n_bytes.saturating_mul(4).saturating_add(MAX_SCAFFOLD_BYTES);
        let limit = limit.min(MAX_OUTPUT_BYTES);
        let (text, error) = self.compiled.render(&self.env, Value::from_pairs(variables));
        if text.len() > limit {
            let limit = limit as u64;
            return Err(PromptError::Limit { what: "the rendered prompt's size in bytes", limit });
        }
        if let Some(error) = error {
            return Err(environment::explain(&error));
        }
        Ok(Output { text, unmarked: values.unmarked })
    }
}

fn segment((text, is_content): (&str, bool)) -> Segment {
    let text = text.to_owned();
    if is_content { Segment::Content(text) } else { Segment::Scaffold(text) }
}
