//! Calls that a model makes by itself and that must fit the schemas of strict tools.
//!
//! Text is free until the model opens a call. From there on its name and its arguments follow a
//! grammar, and after the call text is free again. Thoughts are free to the end: what looks like a
//! call in one is none.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use llguidance::api::TopLevelGrammar;
use serde_json::Value;
use weft_core::sampling::Constraint;
use weft_core::tokenizer::Tokenizer;

use super::calls::{self, Opening};
use super::{Grammars, bounds, refusals};
use crate::api_error::ApiError;
use crate::responses::CallStyle;

const OPEN_THOUGHT: &[u8] = b"<think>";
const CLOSE_THOUGHT: &[u8] = b"</think>";

/// Bytes of a line that may still become the opening of a call.
const MAX_OPENING_BYTES: usize = 256;
/// Calls that were completed last and may be taken back with a draft.
const MAX_TAKEN_BACK: usize = 4;

/// The tools of an answer of which some are strict.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StrictTools {
    pub(crate) tools: Vec<Value>,
    /// The names of those that are strict.
    pub(crate) strict: Vec<String>,
    pub(crate) style: CallStyle,
    /// Whether the prompt has opened a thought.
    pub(crate) in_thought: bool,
}

impl StrictTools {
    /// Those that are strict.
    pub(super) fn strict(&self) -> impl Iterator<Item = &Value> {
        let name = |tool: &Value| {
            tool.pointer("/function/name").and_then(Value::as_str).map(str::to_owned)
        };
        self.tools
            .iter()
            .filter(move |tool| name(tool).is_some_and(|name| self.strict.contains(&name)))
    }
}

impl Grammars {
    /// What makes calls of strict tools fit their schemas.
    pub(crate) fn strict(
        &self,
        tokenizer: &Arc<Tokenizer>,
        rule: &StrictTools,
        param: &'static str,
    ) -> Result<Box<dyn Constraint>, ApiError> {
        bounds::check_sizes(rule.strict())
            .map_err(|error| ApiError::invalid(error).param(param))?;
        let StrictTools { tools, strict, style, in_thought } = rule;
        let is_strict = |name: &str| strict.iter().any(|one| one == name);
        let all_strict: Vec<Value> = rule.strict().cloned().collect();
        let mut openers = Vec::new();
        for opening in Opening::of(*style) {
            let opening = *opening;
            // If no tool can be called so, there is no grammar.
            let mut is_empty = false;
            let parser = self.parser(|| {
                // One grammar has all of them, and what it may cost is bounded for all together.
                calls::schema(&all_strict, *style)?;
                let grammar = calls::after_opening(opening, *style, tools, &is_strict)?;
                is_empty = grammar.is_empty();
                Ok(TopLevelGrammar::from_lark(grammar))
            });
            let parser = match parser {
                Err(_) if is_empty => None,
                parser => Some(parser.map_err(|error| error.param(param))?),
            };
            let rest = parser.map(|parser| Matcher::new(Ok(parser)));
            openers.push(Opener { opening, rest });
        }
        let ends = |bytes: &[u8]| bytes.iter().any(|byte| matches!(byte, b'>' | b'=' | b':'));
        let completes = |id: &u32| tokenizer.token_bytes(*id).is_some_and(ends);
        Ok(Box::new(StrictCalls {
            completing: (0..tokenizer.vocab_size()).filter(completes).collect(),
            tokenizer: Arc::clone(tokenizer),
            openers,
            param,
            in_thought: *in_thought,
            text: Vec::new(),
            steps: Vec::new(),
            free_from: 0,
            closed_at: None,
            call: None,
            done: Vec::new(),
        }))
    }
}

/// How a call may be opened, and what must follow; nothing may if no tool can be called so.
struct Opener {
    opening: Opening,
    rest: Option<Matcher>,
}

/// A call that was opened.
struct Call {
    matcher: Matcher,
    /// Where the text before it began.
    free_from: usize,
}

/// What a token did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Text,
    Opened,
    Inside,
    Ended,
}

/// The state of an answer.
struct StrictCalls {
    tokenizer: Arc<Tokenizer>,
    openers: Vec<Opener>,
    /// Tokens that may complete an opening.
    completing: Arc<[u32]>,
    param: &'static str,
    in_thought: bool,
    text: Vec<u8>,
    /// What each token did, and how long the text was before it.
    steps: Vec<(Step, usize)>,
    /// Where the text begins in which a call may be opened.
    free_from: usize,
    /// How long the text was when the thought had been closed.
    closed_at: Option<usize>,
    call: Option<Call>,
    /// The calls that were completed last.
    done: Vec<Call>,
}

impl StrictCalls {
    fn is_thinking(&self) -> bool {
        let opens = || self.text.trim_ascii_start().starts_with(OPEN_THOUGHT);
        self.closed_at.is_none() && (self.in_thought || opens())
    }

    /// The bytes that a token adds to the text. Special tokens add none, except the one that opens
    /// a call.
    fn bytes(&self, token: u32) -> &[u8] {
        let bytes = self.tokenizer.token_bytes(token).unwrap_or_default();
        let opens = || self.openers.iter().any(|opener| opener.opening.text() == Some(bytes));
        if self.tokenizer.is_special(token) && !opens() { &[] } else { bytes }
    }

    /// The opening that `more` completes after the text so far, and what follows the opening.
    fn opened<'m>(&self, more: &'m [u8]) -> Option<(&Opener, &'m [u8])> {
        let free = &self.text[self.free_from.min(self.text.len())..];
        let tail = &free[free.len().saturating_sub(MAX_OPENING_BYTES)..];
        let joined = [tail, more].concat();
        let found = |opener: &Opener| {
            let end = match opener.opening.text() {
                Some(text) => {
                    let from = tail.len().saturating_sub(text.len() - 1);
                    let at = joined[from..].windows(text.len()).position(|part| part == text)?;
                    from + at + text.len()
                }
                None => end_of_name(&joined, free.len() > tail.len())?,
            };
            (end > tail.len()).then_some(end)
        };
        let ends = self.openers.iter().filter_map(|opener| Some((found(opener)?, opener)));
        let (end, opener) = ends.min_by_key(|(end, _)| *end)?;
        Some((opener, &more[end - tail.len()..]))
    }

    /// Whether the text may be about to open a call.
    fn may_open(&self) -> bool {
        let free = &self.text[self.free_from.min(self.text.len())..];
        self.openers.iter().any(|opener| match opener.opening.text() {
            Some(text) => (1..text.len()).any(|n| free.ends_with(&text[..n])),
            None => last_line(free).trim_ascii_start().starts_with(b"{"),
        })
    }

    /// Whether a token opens a call in a way that cannot go on: with more than white space after
    /// the opening, which the grammar has not seen, or where no tool can be called.
    fn is_forbidden(&self, token: u32) -> bool {
        let Some((opener, rest)) = self.opened(self.bytes(token)) else { return false };
        opener.rest.is_none() || !rest.trim_ascii().is_empty() || rest.len() > 4
    }

    fn refusal(&self, error: &impl fmt::Display) -> String {
        format!("{}: {}", self.param, refusals::in_plain_words(&error.to_string()))
    }

    /// Notes the end of a thought in the text from `from` on.
    fn find_end_of_thought(&mut self, before: usize) {
        let from = before.saturating_sub(CLOSE_THOUGHT.len() - 1);
        let mut ends = self.text[from..].windows(CLOSE_THOUGHT.len());
        if let Some(at) = ends.position(|part| part == CLOSE_THOUGHT) {
            self.closed_at = Some(self.text.len());
            self.free_from = from + at + CLOSE_THOUGHT.len();
        }
    }

    fn accept_text(&mut self, token: u32) -> Result<Step, String> {
        let bytes = self.bytes(token).to_vec();
        let before = self.text.len();
        if self.is_thinking() {
            self.text.extend(bytes);
            self.find_end_of_thought(before);
            return Ok(Step::Text);
        }
        let opened = self.opened(&bytes).and_then(|(opener, rest)| {
            let mut matcher = opener.rest.as_ref()?.deep_clone();
            let white = self.tokenizer.encode_text(std::str::from_utf8(rest).ok()?).ok()?;
            let begun = matcher.consume_tokens(&white).map(|()| matcher);
            Some(begun.map_err(|error| self.refusal(&error)))
        });
        self.text.extend(bytes);
        let Some(matcher) = opened.transpose()? else { return Ok(Step::Text) };
        self.call = Some(Call { matcher, free_from: self.free_from });
        Ok(Step::Opened)
    }

    fn take_back_one(&mut self) -> Result<(), String> {
        let Some((step, length)) = self.steps.pop() else { return Ok(()) };
        let too_far = || "a call was taken back too late".to_owned();
        match step {
            Step::Text => {
                if self.closed_at.is_some_and(|closed| closed > length) {
                    (self.closed_at, self.free_from) = (None, 0);
                }
            }
            Step::Opened => self.call = None,
            Step::Ended => {
                let call = self.done.pop().ok_or_else(too_far)?;
                self.free_from = call.free_from;
                self.call = Some(call);
            }
            Step::Inside => {}
        }
        self.text.truncate(length);
        if let (Step::Inside | Step::Ended, Some(call)) = (step, &mut self.call) {
            call.matcher.rollback(1).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl fmt::Debug for StrictCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StrictCalls")
    }
}

impl Constraint for StrictCalls {
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), String> {
        if let Some(call) = &mut self.call {
            let allowed = call.matcher.compute_mask_or_eos();
            let allowed = allowed.map_err(|error| self.refusal(&error))?;
            for (word, allowed) in mask.iter_mut().zip(allowed.as_slice()) {
                *word = *allowed;
            }
            return Ok(());
        }
        mask.fill(u32::MAX);
        if !self.is_thinking() && self.may_open() {
            for token in self.completing.iter().filter(|token| self.is_forbidden(**token)) {
                mask[*token as usize / 32] &= !(1 << (token % 32));
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        let before = self.text.len();
        let step = match &mut self.call {
            None => self.accept_text(token)?,
            Some(call) => {
                let consumed = call.matcher.consume_token(token);
                let is_over = call.matcher.is_stopped();
                consumed.map_err(|error| self.refusal(&error))?;
                let bytes = self.bytes(token).to_vec();
                self.text.extend(bytes);
                if is_over {
                    self.free_from = self.text.len();
                    self.done.extend(self.call.take());
                    let n_old = self.done.len().saturating_sub(MAX_TAKEN_BACK);
                    self.done.drain(..n_old);
                    Step::Ended
                } else {
                    Step::Inside
                }
            }
        };
        self.steps.push((step, before));
        Ok(())
    }

    fn roll_back(&mut self, n: usize) -> Result<(), String> {
        (0..n).try_for_each(|_| self.take_back_one())
    }

    fn boxed_clone(&self) -> Box<dyn Constraint> {
        let call =
            |call: &Call| Call { matcher: call.matcher.deep_clone(), free_from: call.free_from };
        let opener = |opener: &Opener| Opener {
            opening: opener.opening,
            rest: opener.rest.as_ref().map(Matcher::deep_clone),
        };
        Box::new(Self {
            tokenizer: Arc::clone(&self.tokenizer),
            openers: self.openers.iter().map(opener).collect(),
            completing: Arc::clone(&self.completing),
            param: self.param,
            in_thought: self.in_thought,
            text: self.text.clone(),
            steps: self.steps.clone(),
            free_from: self.free_from,
            closed_at: self.closed_at,
            call: self.call.as_ref().map(call),
            done: self.done.iter().map(call).collect(),
        })
    }
}

/// The text after the last line feed.
fn last_line(text: &[u8]) -> &[u8] {
    let begin = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    &text[begin..]
}

/// Where `{"name":` ends that begins a line of the text, or that follows a call.
fn end_of_name(text: &[u8], is_cut: bool) -> Option<usize> {
    let mut begin = 0;
    loop {
        let line = &text[begin..];
        // The beginning of a line that is cut was too long ago.
        if begin > 0 || !is_cut {
            let named: [&[&[u8]]; 2] = [
                &[b"{", b"\"name\"", b":"],
                &[b"{", b"\"type\"", b":", b"\"function\"", b",", b"\"name\"", b":"],
            ];
            if let Some(end) = named.iter().find_map(|tokens| end_of(line, tokens)) {
                return Some(begin + end);
            }
        }
        begin += 1 + line.iter().position(|byte| *byte == b'\n')?;
    }
}

/// Where these tokens end, with white space between them, if the text begins with them.
fn end_of(text: &[u8], tokens: &[&[u8]]) -> Option<usize> {
    let mut rest = text;
    // What may stand between two calls.
    while let [b' ' | b'\t' | b'\r' | b'\n' | b';' | b',', after @ ..] = rest {
        rest = after;
    }
    for token in tokens {
        rest = rest.trim_ascii_start().strip_prefix(*token)?;
    }
    Some(text.len() - rest.len())
}

/// Two constraints at once.
#[derive(Clone, Debug)]
pub(crate) struct Both(pub(crate) Box<dyn Constraint>, pub(crate) Box<dyn Constraint>);

impl Constraint for Both {
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), String> {
        let mut other = vec![0; mask.len()];
        self.0.allow(mask)?;
        self.1.allow(&mut other)?;
        mask.iter_mut().zip(other).for_each(|(word, other)| *word &= other);
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.0.accept(token)?;
        self.1.accept(token)
    }

    fn roll_back(&mut self, n: usize) -> Result<(), String> {
        self.0.roll_back(n)?;
        self.1.roll_back(n)
    }

    fn boxed_clone(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}
