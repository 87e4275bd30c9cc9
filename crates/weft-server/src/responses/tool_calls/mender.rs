//! Turns the JSON that a model writes into valid JSON, while it comes.
//!
//! Valid JSON stays as it is, without the white space between its values. What is broken is mended
//! in the way that changes least: brackets and quotes that are missing are added, commas too many
//! are left out, bare words and single quotes become strings, raw line feeds are escaped. A list or
//! object that is nested too deep for JSON readers becomes null. Whatever the text, what was
//! returned so far can be completed to one valid value by [`JsonMender::close`].

use serde_json::Value;

/// Levels of lists and objects that a call's arguments may have. A client that sends a call back
/// puts up to 6 levels around them, and weft must be able to read that body.
pub(super) const MAX_DEPTH: usize = 100;
/// Levels that weft's JSON reader accepts.
const MAX_READ_DEPTH: usize = 127;

/// Mends one object or list.
#[derive(Debug)]
pub(super) struct JsonMender {
    max_depth: usize,
    /// The brackets that are open; true for an object.
    open: Vec<bool>,
    expects: Expects,
    /// Whether the innermost bracket has a member already.
    has_members: bool,
    text: Text,
    json: String,
}

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expects {
    Start,
    /// A key or the end of an object.
    Key,
    Colon,
    /// The value of a key.
    Value,
    /// A value or the end of a list.
    Item,
    /// A comma, or the end of the innermost bracket.
    End,
    /// Nothing: the value is complete.
    Nothing,
}

/// A text that is being read.
#[derive(Debug, Default)]
enum Text {
    #[default]
    None,
    Bare(String),
    Quoted {
        quote: char,
        is_key: bool,
        escape: Escape,
        /// The first half of a character that takes two escapes.
        high: Option<u16>,
    },
}

#[derive(Debug, Default)]
enum Escape {
    #[default]
    None,
    Slash,
    Digits(String),
}

impl JsonMender {
    /// `max_depth` is the number of brackets that may be open at once, at least 1.
    pub(super) fn new(max_depth: usize) -> Self {
        Self {
            max_depth,
            open: Vec::new(),
            expects: Expects::Start,
            has_members: false,
            text: Text::None,
            json: String::new(),
        }
    }

    /// Takes a character. Returns whether the value is complete with it.
    pub(super) fn push(&mut self, character: char) -> bool {
        match std::mem::take(&mut self.text) {
            Text::Quoted { quote, is_key, escape, high } => {
                self.in_string(character, quote, is_key, escape, high);
            }
            Text::Bare(mut word) => match is_bare(character) {
                true => {
                    word.push(character);
                    self.text = Text::Bare(word);
                }
                false => {
                    self.end_bare(&word);
                    self.outside(character);
                }
            },
            Text::None => self.outside(character),
        }
        self.is_complete()
    }

    /// Whether the value is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.expects == Expects::Nothing
    }

    /// Whether the next character belongs to a string.
    pub(super) fn is_in_string(&self) -> bool {
        matches!(self.text, Text::Quoted { .. })
    }

    /// The JSON since the last call.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.json)
    }

    /// Completes the value.
    pub(super) fn close(&mut self) {
        match std::mem::take(&mut self.text) {
            Text::Bare(word) => self.end_bare(&word),
            Text::Quoted { is_key, high, .. } => self.end_string(is_key, high),
            Text::None => {}
        }
        while let Some(is_object) = self.open.last().copied() {
            self.end_bracket(is_object);
        }
    }

    /// Adds to the JSON. Lists and objects that are too deep are read, but not written.
    fn write(&mut self, json: &str) {
        if self.open.len() <= self.max_depth {
            self.json.push_str(json);
        }
    }

    fn outside(&mut self, character: char) {
        match (character, self.expects) {
            (_, Expects::Nothing) => {}
            ('{' | '[', Expects::Start) => self.begin_bracket(character),
            (_, Expects::Start) => {}
            ('{' | '[', _) if !self.expects_key() => {
                self.begin_value();
                self.begin_bracket(character);
            }
            // A key cannot begin like this: a bracket too many.
            ('{' | '[', _) => {}
            ('}' | ']', _) => self.close_to(character == '}'),
            (':', Expects::Colon) => {
                self.write(":");
                self.expects = Expects::Value;
            }
            (':', _) => {}
            (',', Expects::Key | Expects::Item) => {}
            (',', _) => self.end_member(),
            ('"' | '\'', _) => {
                let is_key = self.expects_key();
                self.begin_value();
                self.write("\"");
                let (escape, high) = (Escape::None, None);
                self.text = Text::Quoted { quote: character, is_key, escape, high };
            }
            _ if character.is_whitespace() || character.is_control() => {}
            _ => self.text = Text::Bare(character.into()),
        }
    }

    /// Whether the next text is a key.
    fn expects_key(&self) -> bool {
        let is_object = self.open.last() == Some(&true);
        is_object && matches!(self.expects, Expects::Key | Expects::End)
    }

    /// Writes what belongs before a key or a value.
    fn begin_value(&mut self) {
        match self.expects {
            Expects::Colon => self.write(":"),
            Expects::Key | Expects::Item | Expects::End if self.has_members => self.write(","),
            _ => {}
        }
    }

    fn end_value(&mut self) {
        self.has_members = true;
        self.expects = if self.open.is_empty() { Expects::Nothing } else { Expects::End };
    }

    fn begin_bracket(&mut self, bracket: char) {
        let is_object = bracket == '{';
        match self.open.len() == self.max_depth {
            true => self.write("null"),
            false => self.write(if is_object { "{" } else { "[" }),
        }
        self.open.push(is_object);
        self.has_members = false;
        self.expects = if is_object { Expects::Key } else { Expects::Item };
    }

    /// Ends the innermost bracket, after what it lacks.
    fn end_bracket(&mut self, is_object: bool) {
        self.add_missing_value();
        self.write(if is_object { "}" } else { "]" });
        self.open.pop();
        self.end_value();
    }

    /// Ends the innermost bracket of a kind, and those inside of it. Does nothing if there is none.
    fn close_to(&mut self, is_object: bool) {
        if !self.open.contains(&is_object) {
            return;
        }
        while let Some(innermost) = self.open.last().copied() {
            self.end_bracket(innermost);
            if innermost == is_object {
                break;
            }
        }
    }

    /// After a comma.
    fn end_member(&mut self) {
        self.add_missing_value();
        let is_object = self.open.last() == Some(&true);
        self.expects = if is_object { Expects::Key } else { Expects::Item };
    }

    fn add_missing_value(&mut self) {
        let missing = match self.expects {
            Expects::Colon => ":null",
            Expects::Value => "null",
            _ => return,
        };
        self.write(missing);
        self.end_value();
    }

    /// A word without quotes: a literal, or a string that lacks them.
    fn end_bare(&mut self, word: &str) {
        let is_key = self.expects_key();
        self.begin_value();
        let literal = match word {
            _ if is_key => None,
            "True" => Some("true"),
            "False" => Some("false"),
            "None" | "undefined" => Some("null"),
            _ => serde_json::from_str::<Value>(word).is_ok().then_some(word),
        };
        match literal {
            Some(literal) => self.write(literal),
            None => self.write(&Value::from(word).to_string()),
        }
        self.end_text(is_key);
    }

    fn end_text(&mut self, is_key: bool) {
        match is_key {
            true => {
                self.has_members = true;
                self.expects = Expects::Colon;
            }
            false => self.end_value(),
        }
    }

    fn end_string(&mut self, is_key: bool, high: Option<u16>) {
        self.end_half(high);
        self.write("\"");
        self.end_text(is_key);
    }

    /// Half a character stands for none.
    fn end_half(&mut self, high: Option<u16>) {
        if high.is_some() {
            self.write("\\ufffd");
        }
    }

    fn in_string(
        &mut self,
        character: char,
        quote: char,
        is_key: bool,
        escape: Escape,
        mut high: Option<u16>,
    ) {
        let mut next = Escape::None;
        match escape {
            Escape::None if character == '\\' => next = Escape::Slash,
            Escape::None if character == quote => return self.end_string(is_key, high),
            Escape::None => {
                self.end_half(high.take());
                self.character(character);
            }
            Escape::Slash if character == 'u' => next = Escape::Digits(String::new()),
            Escape::Slash => {
                self.end_half(high.take());
                match character {
                    '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => {
                        self.write("\\");
                        self.write(character.encode_utf8(&mut [0; 4]));
                    }
                    '\'' => self.write("'"),
                    _ => {
                        self.write("\\\\");
                        self.character(character);
                    }
                }
            }
            Escape::Digits(mut digits) if character.is_ascii_hexdigit() => {
                digits.push(character);
                match digits.len() {
                    4 => high = self.unit(&digits, high),
                    _ => next = Escape::Digits(digits),
                }
            }
            Escape::Digits(digits) => {
                self.end_half(high.take());
                self.write("\\\\u");
                self.write(&digits);
                return self.in_string(character, quote, is_key, Escape::None, None);
            }
        }
        self.text = Text::Quoted { quote, is_key, escape: next, high };
    }

    /// Four digits of an escape. Returns them if they are the first half of a character.
    fn unit(&mut self, digits: &str, high: Option<u16>) -> Option<u16> {
        let unit = u16::from_str_radix(digits, 16).unwrap_or(0xfffd);
        match (unit, high) {
            (0xd800..0xdc00, high) => {
                self.end_half(high);
                return Some(unit);
            }
            (0xdc00..0xe000, Some(high)) => {
                self.write(&format!("\\u{high:04x}\\u{digits}"));
            }
            (0xdc00..0xe000, None) => self.write("\\ufffd"),
            (_, high) => {
                self.end_half(high);
                self.write("\\u");
                self.write(digits);
            }
        }
        None
    }

    /// A character of a string.
    fn character(&mut self, character: char) {
        match character {
            '"' => self.write("\\\""),
            _ if (character as u32) < 0x20 => {
                let quoted = Value::from(character.to_string()).to_string();
                self.write(&quoted[1..quoted.len() - 1]);
            }
            _ => self.write(character.encode_utf8(&mut [0; 4])),
        }
    }
}

/// Whether a character may belong to a word without quotes.
fn is_bare(character: char) -> bool {
    !(character.is_whitespace()
        || character.is_control()
        || matches!(character, ',' | ':' | '{' | '}' | '[' | ']' | '"' | '\''))
}

/// The object or list that a whole text is meant to be, if it begins like one.
pub(super) fn mended(text: &str) -> Option<Value> {
    let text = text.trim();
    let fenced = text.strip_prefix("```json").or_else(|| text.strip_prefix("```"));
    let text = fenced.map_or(text, |inner| inner.trim_end_matches('`').trim());
    if let Ok(value) = serde_json::from_str(text) {
        return Some(value);
    }
    if !text.starts_with(['{', '[']) {
        return None;
    }
    serde_json::from_str(&mend(text, MAX_READ_DEPTH)).ok()
}

/// The JSON of a call's arguments, whose levels are limited.
pub(super) fn arguments_json(arguments: &Value) -> String {
    mend(&arguments.to_string(), MAX_DEPTH)
}

/// The number of lists and objects in each other.
pub(super) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn mend(text: &str, max_depth: usize) -> String {
    let mut mender = JsonMender::new(max_depth);
    let _ = text.chars().any(|character| mender.push(character));
    mender.close();
    mender.take()
}

#[cfg(test)]
mod tests;
