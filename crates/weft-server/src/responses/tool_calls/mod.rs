//! Splits streamed text into tool calls and other text.
//!
//! `form` knows the forms in which models write calls. Once the text has named the tool and begun
//! its arguments, these are sent as they come; `mender` makes valid JSON of them. Calls that begin
//! in another way are sent when they are complete, and text that only resembles a call stays text.
//! Text that may still turn out to be a call is held back. How the text is cut changes nothing.

mod form;
mod found;
mod mender;
mod pieces;
mod tags;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::form::{
    CLOSE, END_FUNCTION, FUNCTION, OPEN, Opening, is_closed, is_named, is_plain, opening,
    read_calls,
};
pub(super) use self::found::{Found, append};
use self::mender::{JsonMender, MAX_DEPTH};
use self::tags::TagCall;
use super::response_id;

pub(crate) use self::form::{CallStyle, MAX_BARE_OPENING, ToolForm, is_text_parameter};
pub(crate) use self::found::{Beginning, CallDelta};
pub(crate) use self::pieces::calls_in_pieces;

/// What the next text belongs to.
#[derive(Debug)]
enum State {
    Text,
    /// What may become a call.
    Call(Opener),
    Arguments(JsonMender, Opener),
    Tags(TagCall, Opener),
    /// The rest of a call whose arguments are complete.
    Rest(Opener, Skipped),
}

/// How much of the rest of a call was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skipped {
    Nothing,
    /// The braces around the arguments.
    Braces,
    /// What ends the call itself.
    End,
}

/// What a call began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opener {
    /// A tag, which is no longer held.
    Tag(&'static str),
    /// `<function=`, which is held until it has its name.
    Function,
    /// The brace of its JSON, which is held.
    Brace,
}

impl Opener {
    /// The text that was taken from what is held.
    const fn text(self) -> &'static str {
        match self {
            Self::Tag(tag) => tag,
            Self::Function | Self::Brace => "",
        }
    }

    /// The tag that ends a call.
    fn close(self) -> Option<&'static str> {
        match self {
            Self::Tag(OPEN) => Some(CLOSE),
            Self::Function => Some(END_FUNCTION),
            Self::Tag(_) | Self::Brace => None,
        }
    }
}

/// Finds calls in streamed text.
#[derive(Debug)]
pub(super) struct ToolCallStream {
    form: Arc<ToolForm>,
    held: String,
    state: State,
    /// White space before a call. It is text only if the call does not become one.
    gap: String,
    n_begun: usize,
    n_complete: usize,
    /// Whether a brace may begin a call: nothing but white space stands before it in its line.
    begins_line: bool,
    /// Whether the text is one call and nothing else.
    is_call: bool,
    /// The tool that the one call must name; reported before the text names it.
    only_tool: Option<String>,
}

impl ToolCallStream {
    pub(super) fn new(form: Arc<ToolForm>) -> Self {
        Self {
            form,
            held: String::new(),
            state: State::Text,
            gap: String::new(),
            n_begun: 0,
            n_complete: 0,
            begins_line: true,
            is_call: false,
            only_tool: None,
        }
    }

    /// For a text that must be one call; of `only_tool`, if there is no choice.
    pub(super) fn required(form: Arc<ToolForm>, only_tool: Option<String>) -> Self {
        Self { is_call: true, only_tool, ..Self::new(form) }
    }

    /// Takes more text; returns what is certain.
    pub(super) fn push(&mut self, text: &str) -> Found {
        self.held.push_str(text);
        let mut found = Found::default();
        if self.n_begun == 0
            && let Some(name) = self.only_tool.clone()
        {
            self.begin(name, &mut found);
        }
        while self.advance(&mut found) {}
        found
    }

    /// Takes the end. A call that was begun is completed, unless the answer was cut off in it. What
    /// was not begun is read as a whole, or is text if nothing else may be.
    pub(super) fn finish(&mut self, is_cut: bool) -> Found {
        let mut found = Found::default();
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Call(opener) => {
                let may_be = match opener {
                    Opener::Function => false,
                    Opener::Brace => is_named(&held),
                    Opener::Tag(_) => true,
                };
                let calls = read_calls(&held).filter(|_| !is_cut && may_be);
                match calls
                    .filter(|calls| calls.iter().all(|(name, _)| self.may_call(opener, name)))
                {
                    Some(calls) => self.add_whole(calls, &mut found),
                    None => found.text(&format!("{}{}{held}", self.gap, opener.text())),
                }
            }
            State::Arguments(mut mender, _) if !is_cut => {
                mender.close();
                self.more(mender.take(), &mut found);
                self.n_complete += 1;
            }
            State::Tags(mut call, _) if !is_cut => {
                self.more(call.advance(&held, true).0, &mut found);
                self.n_complete += 1;
            }
            State::Text if self.n_begun > 0 && held.trim().is_empty() => {}
            State::Text => found.text(&held),
            State::Arguments(..) | State::Tags(..) | State::Rest(..) => {}
        }
        if self.is_call {
            (found.before, found.after) = <_>::default();
        }
        found
    }

    /// The number of calls that are complete.
    pub(super) fn n_complete(&self) -> usize {
        self.n_complete
    }

    /// Whether there are calls and none was cut off.
    pub(super) fn has_complete_calls(&self) -> bool {
        self.n_begun > 0 && self.n_complete == self.n_begun
    }

    /// Processes held text; returns whether there may be more to process.
    fn advance(&mut self, found: &mut Found) -> bool {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.find_call(found),
            State::Call(opener) => self.begin_call(opener, found),
            State::Arguments(mender, opener) => self.read_arguments(mender, opener, found),
            State::Tags(mut call, opener) => {
                let (json, held, is_over) = call.advance(&self.held, false);
                self.held = held;
                self.more(json, found);
                self.n_complete += usize::from(is_over);
                self.state = if is_over {
                    State::Rest(opener, Skipped::Nothing)
                } else {
                    State::Tags(call, opener)
                };
                is_over
            }
            State::Rest(opener, skipped) => self.skip_rest(opener, skipped),
        }
    }

    /// Finds the next place at which a call may begin, and releases the text before it.
    fn find_call(&mut self, found: &mut Found) -> bool {
        let openers = self.form.style.openers();
        let tag = openers.iter().filter_map(|tag| Some((self.held.find(tag)?, *tag))).min();
        let brace = self.find_brace();
        let (at, opener) = match (tag, brace) {
            (Some((at, _)), Some(brace)) if brace < at => (brace, Opener::Brace),
            (None, Some(brace)) => (brace, Opener::Brace),
            (Some((at, FUNCTION)), _) => (at, Opener::Function),
            (Some((at, tag)), _) => (at, Opener::Tag(tag)),
            (None, None) => {
                self.release(found);
                return false;
            }
        };
        let before = self.held[..at].to_owned();
        let text = before.trim_end();
        self.gap = before[text.len()..].to_owned();
        self.release_text(text, found);
        self.held.drain(..at + opener.text().len());
        self.state = State::Call(opener);
        true
    }

    /// The first brace that may begin the bare JSON of a call.
    fn find_brace(&self) -> Option<usize> {
        if self.form.style != CallStyle::Bare {
            return None;
        }
        let mut begins_line = self.begins_line;
        for (at, character) in self.held.char_indices() {
            match character {
                '{' if begins_line => return Some(at),
                '\n' => begins_line = true,
                _ if character.is_ascii_whitespace() => {}
                _ => begins_line = false,
            }
        }
        None
    }

    /// Releases the text in which no call can begin. White space before a call belongs to the
    /// call's format, so it is held until the next text is known.
    fn release(&mut self, found: &mut Found) {
        let may_begin = |tag: &&str| (1..tag.len()).rev().find(|n| self.held.ends_with(&tag[..*n]));
        let n_held = self.form.style.openers().iter().filter_map(may_begin).max().unwrap_or(0);
        let certain = self.held[..self.held.len() - n_held].trim_end().len();
        let rest = self.held.split_off(certain);
        let text = std::mem::replace(&mut self.held, rest);
        self.release_text(&text, found);
    }

    fn release_text(&mut self, text: &str, found: &mut Found) {
        if !text.is_empty() {
            let line = text.rsplit('\n').next().unwrap_or_default();
            self.begins_line =
                line.trim_ascii().is_empty() && (line.len() < text.len() || self.begins_line);
        }
        found.text(text);
    }

    /// Begins a call if the text has reached its arguments; gives it up if it is none.
    fn begin_call(&mut self, opener: Opener, found: &mut Found) -> bool {
        let inner = self.held.trim_start();
        if let Some(rest) = inner.strip_prefix(FUNCTION) {
            let rest = rest.to_owned();
            return self.begin_function(&rest, opener, found);
        }
        if FUNCTION.starts_with(inner) {
            self.state = State::Call(opener);
            return false;
        }
        let waits_for_tag = opener == Opener::Tag(OPEN);
        let is_bare = opener == Opener::Brace;
        match opening(inner) {
            Opening::Call(_, rest) if is_bare && !is_plain(inner, rest) => {
                self.give_up(opener, found)
            }
            Opening::Open if is_bare && !is_plain(inner, "") => self.give_up(opener, found),
            // A tag in the name ends the call, as it does if the rest has not come yet.
            Opening::Call(_, rest) if waits_for_tag && is_closed(inner, rest) => {
                self.read_whole(opener, found)
            }
            Opening::Call(name, arguments) if self.may_call(opener, &name) => {
                self.held = arguments.to_owned();
                self.begin_named(name, found);
                self.state = State::Arguments(JsonMender::new(MAX_DEPTH), opener);
                true
            }
            _ if waits_for_tag => self.read_whole(opener, found),
            Opening::Open => {
                self.state = State::Call(opener);
                false
            }
            Opening::Call(..) | Opening::No => self.give_up(opener, found),
        }
    }

    /// Whether a call may have this name. What has no tag around it must name a tool that there is.
    fn may_call(&self, opener: Opener, name: &str) -> bool {
        opener != Opener::Brace || self.form.has(name)
    }

    /// Begins a call in tags, or in JSON after such a tag.
    fn begin_function(&mut self, rest: &str, opener: Opener, found: &mut Found) -> bool {
        let (name, after) = rest.split_once('>').unwrap_or((rest, ""));
        let is_named = name.len() < rest.len();
        let inner = after.trim_start();
        if name.contains(['<', '\n']) || is_named && name.trim().is_empty() {
            return self.give_up(opener, found);
        }
        if inner.is_empty() {
            self.state = State::Call(opener);
            return false;
        }
        let name = name.trim().to_owned();
        let is_json = inner.starts_with('{');
        self.held = inner.to_owned();
        self.begin_named(name.clone(), found);
        self.state = match is_json {
            true => State::Arguments(JsonMender::new(MAX_DEPTH), Opener::Function),
            false => State::Tags(TagCall::new(Arc::clone(&self.form), name), opener),
        };
        true
    }

    fn begin_named(&mut self, name: String, found: &mut Found) {
        if self.only_tool.is_none() || self.n_complete > 0 {
            self.begin(name, found);
        }
    }

    fn begin(&mut self, name: String, found: &mut Found) {
        let beginning = Some(Beginning { id: response_id("call"), name });
        found.calls.push(CallDelta { index: self.n_begun, beginning, arguments: String::new() });
        self.n_begun += 1;
    }

    fn more(&self, arguments: String, found: &mut Found) {
        if !arguments.is_empty() {
            let index = self.n_begun - 1;
            append(&mut found.calls, vec![CallDelta { index, beginning: None, arguments }]);
        }
    }

    fn read_arguments(
        &mut self,
        mut mender: JsonMender,
        opener: Opener,
        found: &mut Found,
    ) -> bool {
        let mut at = 0;
        let mut is_over = false;
        while let Some(character) = self.held[at..].chars().next().filter(|_| !is_over) {
            if let Some(close) = opener.close() {
                // A raw line feed ends no string, but with the tag after it, it ends the call.
                let rest = &self.held[at..];
                let is_quoted = mender.is_in_string();
                let tag = if is_quoted { rest.strip_prefix('\n') } else { Some(rest) };
                match tag {
                    Some(tag) if tag.starts_with(close) => {
                        mender.close();
                        at += rest.len() - tag.len();
                        is_over = true;
                        break;
                    }
                    Some(tag) if close.starts_with(tag) => break,
                    _ => {}
                }
            }
            is_over = mender.push(character);
            at += character.len_utf8();
        }
        self.held.drain(..at);
        self.more(mender.take(), found);
        if is_over {
            self.n_complete += 1;
            self.state = State::Rest(opener, Skipped::Nothing);
        } else {
            self.state = State::Arguments(mender, opener);
        }
        is_over
    }

    /// Reads a call of another form as a whole.
    fn read_whole(&mut self, opener: Opener, found: &mut Found) -> bool {
        let Some((call, rest)) = self.held.split_once(CLOSE) else {
            self.state = State::Call(opener);
            return false;
        };
        let (call, rest) = (call.to_owned(), rest.to_owned());
        match read_calls(&call) {
            Some(calls) => self.add_whole(calls, found),
            None => found.text(&format!("{}{}{call}{CLOSE}", self.gap, opener.text())),
        }
        self.held = rest;
        true
    }

    fn add_whole(&mut self, calls: Vec<(String, String)>, found: &mut Found) {
        for (name, arguments) in calls {
            self.begin_named(name, found);
            self.more(arguments, found);
            self.n_complete += 1;
        }
    }

    /// What looked like a call is text.
    fn give_up(&mut self, opener: Opener, found: &mut Found) -> bool {
        let mut text = format!("{}{}", std::mem::take(&mut self.gap), opener.text());
        if opener.text().is_empty() {
            text.extend(self.held.drain(..1));
        }
        self.release_text(&text, found);
        self.begins_line = false;
        true
    }

    /// Skips what follows the arguments of a call, up to its end.
    fn skip_rest(&mut self, opener: Opener, mut at: Skipped) -> bool {
        let mut rest = self.held.trim_start();
        let has_tag = opener.close().is_some();
        if at == Skipped::Nothing && rest.starts_with(',') && opener != Opener::Function {
            // Fields after the arguments.
            let end = if has_tag { rest.find(CLOSE) } else { rest.find('}') };
            let Some(end) = end else {
                self.state = State::Rest(opener, at);
                return false;
            };
            rest = &rest[end..];
        }
        if at != Skipped::End {
            let after = rest.trim_start_matches(|c: char| c == '}' || c.is_whitespace());
            at = if after.len() < rest.len() { Skipped::Braces } else { at };
            rest = after;
        }
        if has_tag
            && at != Skipped::End
            && let Some(after) = rest.strip_prefix(END_FUNCTION)
        {
            (rest, at) = (after.trim_start(), Skipped::End);
        }
        let is_over = match has_tag {
            true => match rest.strip_prefix(CLOSE) {
                Some(after) => {
                    rest = after;
                    true
                }
                None => {
                    let tags =
                        if at == Skipped::End { &[CLOSE][..] } else { &[END_FUNCTION, CLOSE] };
                    !tags.iter().any(|tag| tag.starts_with(rest))
                }
            },
            false => {
                let is_separator = |c: char| c.is_whitespace() || matches!(c, ';' | ',');
                let after = rest.trim_start_matches(is_separator);
                at = if after.len() < rest.len() { Skipped::End } else { at };
                rest = after;
                !rest.is_empty()
            }
        };
        self.held = rest.to_owned();
        self.begins_line = true;
        self.state = if is_over { State::Text } else { State::Rest(opener, at) };
        is_over
    }
}
