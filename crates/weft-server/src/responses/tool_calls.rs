//! Splits streamed text into tool calls and other text.
//!
//! Models that follow the Hermes format (Qwen among them) write `<tool_call>` around the JSON of a
//! call. Once the text has named the tool and begun its arguments, these are sent as they come.
//! Other forms of a call are sent when they are complete, and text that only resembles a call stays
//! text. Text that may still turn out to be a tag is held back.

use serde_json::Value;

use super::response_id;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A part of a call: its beginning, more of its arguments, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallDelta {
    /// Which call of the choice.
    pub(crate) index: usize,
    pub(crate) beginning: Option<Beginning>,
    /// More of the JSON of an object.
    pub(crate) arguments: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beginning {
    pub(crate) id: String,
    pub(crate) name: String,
}

/// Appends later parts of calls.
pub(super) fn append(calls: &mut Vec<CallDelta>, later: Vec<CallDelta>) {
    for delta in later {
        match calls.last_mut().filter(|last| last.index == delta.index) {
            Some(last) => last.arguments.push_str(&delta.arguments),
            None => calls.push(delta),
        }
    }
}

/// What the next text belongs to.
#[derive(Debug, Default)]
enum State {
    #[default]
    Text,
    /// What follows an open tag and may become a call.
    Call,
    Arguments(ObjectScanner),
    /// The rest of a call whose arguments are complete.
    Rest,
}

/// Finds calls in streamed text.
#[derive(Debug, Default)]
pub(super) struct ToolCallStream {
    held: String,
    state: State,
    /// White space before the open tag. It is text only if the tag does not become a call.
    gap: String,
    n_begun: usize,
    n_complete: usize,
    /// Whether the text is one call and nothing else.
    is_call: bool,
    /// The tool that the one call must name; reported before the text names it.
    only_tool: Option<String>,
}

impl ToolCallStream {
    /// For a text that must be one call; of `only_tool`, if there is no choice.
    pub(super) fn required(only_tool: Option<String>) -> Self {
        Self { is_call: true, only_tool, ..Self::default() }
    }

    /// Takes more text; returns the text and the parts of calls that are certain.
    pub(super) fn push(&mut self, text: &str) -> (String, Vec<CallDelta>) {
        self.held.push_str(text);
        let (mut content, mut calls) = (String::new(), Vec::new());
        if self.n_begun == 0
            && let Some(name) = self.only_tool.clone()
        {
            self.begin(name, &mut calls);
        }
        while self.advance(&mut content, &mut calls) {}
        (content, calls)
    }

    /// Takes the end: an unfinished call becomes text, unless it was begun or nothing else may be.
    pub(super) fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        let is_space = self.n_begun > 0 && rest.trim().is_empty();
        match self.state {
            _ if self.is_call => String::new(),
            State::Text if is_space => String::new(),
            State::Text => rest,
            State::Call => format!("{}{OPEN}{rest}", self.gap),
            State::Arguments(_) | State::Rest => String::new(),
        }
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
    fn advance(&mut self, content: &mut String, calls: &mut Vec<CallDelta>) -> bool {
        match &mut self.state {
            State::Text => self.find_call(content),
            State::Call => self.begin_arguments(calls) || self.read_call(content, calls),
            State::Arguments(scanner) => {
                let (arguments, rest) = scanner.take(&self.held);
                let is_over = rest.is_some();
                self.held = rest.unwrap_or_default().to_owned();
                let index = self.n_begun - 1;
                append(calls, vec![CallDelta { index, beginning: None, arguments }]);
                if is_over {
                    self.n_complete += 1;
                    self.state = State::Rest;
                }
                is_over
            }
            State::Rest => match self.held.split_once(CLOSE) {
                Some((_, after)) => {
                    self.held = after.to_owned();
                    self.state = State::Text;
                    true
                }
                None => false,
            },
        }
    }

    fn find_call(&mut self, content: &mut String) -> bool {
        let Some((before, rest)) = self.held.split_once(OPEN) else {
            self.release(content);
            return false;
        };
        let text = before.trim_end();
        content.push_str(text);
        self.gap = before[text.len()..].to_owned();
        self.held = rest.to_owned();
        self.state = State::Call;
        true
    }

    /// Begins a call if the text has reached the object of its arguments.
    fn begin_arguments(&mut self, calls: &mut Vec<CallDelta>) -> bool {
        let Some((name, arguments)) = opening(&self.held) else { return false };
        self.held = arguments.to_owned();
        self.state = State::Arguments(ObjectScanner::default());
        if self.only_tool.is_none() {
            self.begin(name, calls);
        }
        true
    }

    fn begin(&mut self, name: String, calls: &mut Vec<CallDelta>) {
        let beginning = Some(Beginning { id: response_id("call"), name });
        calls.push(CallDelta { index: self.n_begun, beginning, arguments: String::new() });
        self.n_begun += 1;
    }

    /// Reads a call of another form as a whole.
    fn read_call(&mut self, content: &mut String, calls: &mut Vec<CallDelta>) -> bool {
        let Some((call, rest)) = self.held.split_once(CLOSE) else { return false };
        let (call, rest) = (call.to_owned(), rest.to_owned());
        if let Some((name, arguments)) = read(&call) {
            self.begin(name, calls);
            self.n_complete += 1;
            calls.last_mut().expect("it has begun").arguments = arguments;
        } else {
            content.push_str(&format!("{}{OPEN}{call}{CLOSE}", self.gap));
        }
        self.held = rest;
        self.state = State::Text;
        true
    }

    /// Releases the text in which no tag can begin. White space before a call belongs to the call's
    /// format, so it is held until the next text is known.
    fn release(&mut self, content: &mut String) {
        let may_begin = (1..OPEN.len()).rev().find(|n| self.held.ends_with(&OPEN[..*n]));
        let certain = self.held.len() - may_begin.unwrap_or(0);
        let certain = self.held[..certain].trim_end().len();
        let rest = self.held.split_off(certain);
        let text = std::mem::replace(&mut self.held, rest);
        content.push_str(&text);
    }
}

/// The tool that a call names, and the text from the object of its arguments on, if the call begins
/// with these two.
fn opening(call: &str) -> Option<(String, &str)> {
    let rest = after("{", call)?;
    let rest = after(":", after("\"name\"", rest)?)?.trim_start();
    let mut names = serde_json::Deserializer::from_str(rest).into_iter::<String>();
    let name = names.next()?.ok()?;
    let rest = after(",", &rest[names.byte_offset()..])?;
    let rest = after("\"arguments\"", rest).or_else(|| after("\"parameters\"", rest))?;
    let arguments = after(":", rest)?.trim_start();
    arguments.starts_with('{').then_some((name, arguments))
}

/// The text after a token of JSON, if the text begins with it.
fn after<'t>(token: &str, text: &'t str) -> Option<&'t str> {
    text.trim_start().strip_prefix(token)
}

/// Parses the text between two tags as a call. Arguments may be an object or its JSON text.
fn read(text: &str) -> Option<(String, String)> {
    let json: Value = serde_json::from_str(text.trim()).ok()?;
    let name = json.get("name")?.as_str()?.to_owned();
    let arguments = match json.get("arguments").or_else(|| json.get("parameters")) {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(object) => object.to_string(),
    };
    Some((name, arguments))
}

/// Follows the JSON of an object to its end.
#[derive(Debug, Default)]
struct ObjectScanner {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl ObjectScanner {
    /// Takes more text. Returns what belongs to the object, without white space between its values,
    /// and what follows the object, if it has ended.
    fn take<'t>(&mut self, text: &'t str) -> (String, Option<&'t str>) {
        let mut json = String::new();
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            match character {
                _ if self.in_string => {
                    self.in_string = self.is_escaped || character != '"';
                    self.is_escaped = character == '\\' && !self.is_escaped;
                }
                '"' => self.in_string = true,
                '{' | '[' => self.depth += 1,
                '}' | ']' => self.depth -= 1,
                ' ' | '\t' | '\n' | '\r' => continue,
                _ => {}
            }
            json.push(character);
            if self.depth == 0 {
                return (json, Some(characters.as_str()));
            }
        }
        (json, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text and the calls, for any division into pieces.
    fn read_all(text: &str, size: usize) -> (String, Vec<(String, String)>) {
        let mut stream = ToolCallStream::default();
        let (mut content, mut calls) = (String::new(), Vec::new());
        for (more, found) in pushed(&mut stream, text, size) {
            content.push_str(&more);
            append(&mut calls, found);
        }
        content.push_str(&stream.finish());
        let names = |call: CallDelta| (call.beginning.unwrap().name, call.arguments);
        (content, calls.into_iter().map(names).collect())
    }

    /// What a stream returns for each piece of a text.
    fn pushed(
        stream: &mut ToolCallStream,
        text: &str,
        size: usize,
    ) -> Vec<(String, Vec<CallDelta>)> {
        let chars: Vec<char> = text.chars().collect();
        chars.chunks(size).map(|piece| stream.push(&piece.iter().collect::<String>())).collect()
    }

    #[test]
    fn calls_are_found_however_the_text_is_cut() {
        let text = "Let me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"é\"}}\
                    \n</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>\n\
                    <tool_call>{\"arguments\": \"{}\", \"name\": \"h\"}</tool_call>";
        for size in [1, 2, 3, 7, 1000] {
            let (content, calls) = read_all(text, size);
            assert_eq!(content, "Let me look.", "{size}");
            let wanted = [("f", "{\"b\":1,\"a\":\"é\"}"), ("g", "{}"), ("h", "{}")];
            assert_eq!(calls, wanted.map(|(name, args)| (name.to_owned(), args.to_owned())));
        }
    }

    #[test]
    fn arguments_are_sent_as_they_come() {
        let arguments = "{\"a\":[{}, \"\\\"} </tool_call>\\\\\"],\"b\":{\"c\":2}}";
        let text =
            format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>");
        let compact = arguments.replace("}, ", "},");
        let mut stream = ToolCallStream::default();
        let deltas: Vec<CallDelta> =
            pushed(&mut stream, &text, 1).into_iter().flat_map(|(_, calls)| calls).collect();
        assert_eq!(deltas[0].beginning.as_ref().unwrap().name, "f");
        assert!(deltas[1..].iter().all(|delta| delta.beginning.is_none() && delta.index == 0));
        assert!(deltas.len() > compact.len() / 2, "{deltas:?}");
        let joined: String = deltas.iter().map(|delta| &*delta.arguments).collect();
        assert_eq!(joined, compact);
        assert!(stream.has_complete_calls());
        assert_eq!(read_all(&text, 1000), (String::new(), vec![("f".to_owned(), compact)]));
    }

    #[test]
    fn a_call_that_is_cut_off_keeps_what_there_is() {
        let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"no";
        for size in [1, 1000] {
            let calls = vec![("f".to_owned(), "{\"a\":\"no".to_owned())];
            assert_eq!(read_all(text, size), (String::new(), calls), "{size}");
        }
        let mut stream = ToolCallStream::required(Some("f".to_owned()));
        let (content, calls) = stream.push("<tool_");
        assert_eq!((content, calls.len()), (String::new(), 1), "the tool is known at once");
        assert_eq!((stream.finish(), stream.has_complete_calls()), (String::new(), false));
        let mut stream = ToolCallStream::required(None);
        assert_eq!(stream.push("<tool_call>\n{\"name\": \"f"), (String::new(), Vec::new()));
        assert_eq!(stream.finish(), "", "half a name is no call and no text");
    }

    #[test]
    fn what_is_no_call_stays_text() {
        for text in [
            "a < b and <tool_box>",
            "x <tool_call>not json</tool_call> y",
            "<tool_call>{\"name\": \"f\"",
            "ends with <tool_",
            "trailing space \n",
        ] {
            for size in [1, 1000] {
                assert_eq!(read_all(text, size), (text.to_owned(), Vec::new()), "{size}");
            }
        }
    }
}
