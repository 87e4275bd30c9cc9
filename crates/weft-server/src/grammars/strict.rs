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
use serde_json::Value;
use weft_core::sampling::Constraint;
use weft_core::tokenizer::Tokenizer;

use super::calls::{self, Opening};
use super::{Grammars, bounds, of_lark, refusals};
use crate::api_error::ApiError;
use crate::responses::{CallStyle, MAX_BARE_OPENING};

const OPEN_THOUGHT: &[u8] = b"<think>";
const CLOSE_THOUGHT: &[u8] = b"</think>";

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
        for (index, opening) in Opening::of(*style).iter().copied().enumerate() {
            // If no tool can be called so, there is no grammar.
            let mut is_empty = false;
            let parser = self.parser(|| {
                if index == 0 {
                    // A grammar has all of them, and what it may cost is bounded for all together.
                    calls::schema(&all_strict, *style)?;
                }
                let grammar = calls::after_opening(opening, *style, tools, &is_strict)?;
                is_empty = grammar.is_empty();
                Ok(of_lark(grammar))
            });
            let parser = match parser {
                Err(_) if is_empty => None,
                parser => Some(parser.map_err(|error| error.param(param))?),
            };
            let rest = parser.map(|parser| Matcher::new(Ok(parser)));
            openers.push(Opener { opening, rest });
        }
        let ends: Vec<u8> = openers.iter().map(|opener| opener.opening.last_byte()).collect();
        let completes = |id: &u32| {
            let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
            bytes.iter().any(|byte| ends.contains(byte))
        };
        let mut calls = StrictCalls {
            completing: (0..tokenizer.vocab_size()).filter(completes).collect(),
            whole: Arc::default(),
            names: tools.iter().map(|tool| calls::name(tool).to_string().into_bytes()).collect(),
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
        };
        let whole = calls.completing.iter().copied().filter(|token| calls.is_forbidden(*token));
        calls.whole = whole.collect();
        Ok(Box::new(calls))
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

/// An opening that was found.
struct Opened<'c> {
    opener: &'c Opener,
    /// What the grammar of the call has to read of the text so far.
    begun: Vec<u8>,
    /// How much of that follows the opening.
    n_after: usize,
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
    /// Those of them that contain a whole opening and more than that.
    whole: Arc<[u32]>,
    /// The tools' names, as JSON.
    names: Arc<[Vec<u8>]>,
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

    /// The last bytes of the text in which a call may be opened.
    fn tail(&self) -> &[u8] {
        let free = &self.text[self.free_from.min(self.text.len())..];
        &free[free.len().saturating_sub(MAX_BARE_OPENING)..]
    }

    /// The opening that `more` completes after the text so far.
    fn opened(&self, more: &[u8]) -> Option<Opened<'_>> {
        let tail = self.tail();
        let joined = [tail, more].concat();
        // Where what the grammar reads begins, and where the opening ends.
        let found = |opener: &Opener| {
            let (begin, end) = match opener.opening.text() {
                Some(text) => {
                    let from = tail.len().saturating_sub(text.len() - 1);
                    let at = joined[from..].windows(text.len()).position(|part| part == text)?;
                    (from + at + text.len(), from + at + text.len())
                }
                None => find_name(&joined, &self.names, tail.len())?,
            };
            (end > tail.len()).then_some((begin, end))
        };
        let found = self.openers.iter().filter_map(|opener| Some((found(opener)?, opener)));
        let ((begin, end), opener) = found.min_by_key(|((_, end), _)| *end)?;
        Some(Opened { opener, begun: joined[begin..].to_vec(), n_after: joined.len() - end })
    }

    /// Whether the text may be about to open a call.
    fn may_open(&self) -> bool {
        let tail = self.tail();
        self.openers.iter().any(|opener| match opener.opening.text() {
            Some(text) => (1..text.len()).any(|n| tail.ends_with(&text[..n])),
            None => may_name(tail, &self.names),
        })
    }

    /// Whether a token opens a call in a way that cannot go on: with more than white space after
    /// the opening, which the grammar has not seen, or where no tool can be called.
    fn is_forbidden(&self, token: u32) -> bool {
        let Some(Opened { opener, begun, n_after }) = self.opened(self.bytes(token)) else {
            return false;
        };
        let after = &begun[begun.len() - n_after..];
        opener.rest.is_none() || !after.trim_ascii().is_empty() || n_after > 4
    }

    fn refusal(&self, error: &impl fmt::Display) -> String {
        format!("{}: {}", self.param, refusals::in_plain_words(error.to_string()))
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
        let opened = self.opened(&bytes).and_then(|Opened { opener, begun, .. }| {
            let mut matcher = opener.rest.as_ref()?.deep_clone();
            let begun = self.tokenizer.encode_text(std::str::from_utf8(&begun).ok()?).ok()?;
            let begun = matcher.consume_tokens(&begun).map(|()| matcher);
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
        if !self.is_thinking() {
            let tokens = if self.may_open() { &self.completing } else { &self.whole };
            for token in tokens.iter().filter(|token| self.is_forbidden(**token)) {
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
            whole: Arc::clone(&self.whole),
            names: Arc::clone(&self.names),
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

/// What stands before the name in the bare JSON of a call.
const NAMED: [&[&[u8]]; 2] = [
    &[b"{", b"\"name\"", b":"],
    &[b"{", b"\"type\"", b":", b"\"function\"", b",", b"\"name\"", b":"],
];

/// The name of a tool in the bare JSON of a call, where it begins and where it ends. What ends
/// within the first `n_known` bytes was found before. The reader of calls wants such JSON at the
/// beginning of a line or after another call; here it may stand anywhere, so that none is missed.
fn find_name(text: &[u8], names: &[Vec<u8>], n_known: usize) -> Option<(usize, usize)> {
    let braces = (0..text.len()).filter(|at| text[*at] == b'{');
    let named = braces.flat_map(|at| NAMED.map(|tokens| after_tokens(&text[at..], tokens)));
    named.flatten().find_map(|rest| {
        let name = names.iter().find(|name| rest.starts_with(name))?;
        let begin = text.len() - rest.len();
        Some((begin, begin + name.len())).filter(|(_, end)| *end > n_known)
    })
}

/// What follows these tokens and white space around them, if the text begins with them.
fn after_tokens<'t>(text: &'t [u8], tokens: &[&[u8]]) -> Option<&'t [u8]> {
    let mut rest = text;
    for token in tokens {
        rest = rest.trim_ascii_start().strip_prefix(*token)?;
    }
    Some(rest.trim_ascii_start())
}

/// Whether the text may be about to name a tool in bare JSON.
fn may_name(text: &[u8], names: &[Vec<u8>]) -> bool {
    let Some(brace) = text.iter().rposition(|byte| *byte == b'{') else { return false };
    NAMED.iter().any(|tokens| {
        let mut rest = &text[brace..];
        for token in *tokens {
            rest = rest.trim_ascii_start();
            match rest.strip_prefix(*token) {
                Some(after) => rest = after,
                None => return token.starts_with(rest),
            }
        }
        names.iter().any(|name| name.starts_with(rest.trim_ascii_start()))
    })
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
