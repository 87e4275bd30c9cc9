//! Splits streamed text into tool calls and other text.
//!
//! Models that follow the Hermes format (Qwen among them) write `<tool_call>` around the JSON of a
//! call. A call is sent when it is complete; text that only resembles a call stays text. Text that
//! may still turn out to be a tag is held back.

use serde_json::Value;

use super::response_id;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A function call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// The JSON of an object.
    pub(super) arguments: String,
}

/// Finds calls in streamed text.
#[derive(Debug, Default)]
pub(super) struct ToolCallStream {
    held: String,
    is_inside: bool,
    /// White space before the open tag. It is text only if the tag does not become a call.
    gap: String,
    /// Whether a call was found: white space between calls is not text.
    has_called: bool,
}

impl ToolCallStream {
    /// Takes more text; returns the text and the calls that are certain.
    pub(super) fn push(&mut self, text: &str) -> (String, Vec<Call>) {
        self.held.push_str(text);
        let (mut content, mut calls) = (String::new(), Vec::new());
        while self.advance(&mut content, &mut calls) {}
        (content, calls)
    }

    /// Takes the end: an unfinished call becomes text.
    pub(super) fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        let is_space = self.has_called && rest.trim().is_empty();
        match (self.is_inside, is_space) {
            (true, _) => format!("{}{OPEN}{rest}", self.gap),
            (false, true) => String::new(),
            (false, false) => rest,
        }
    }

    /// Processes held text; returns whether there may be more to process.
    fn advance(&mut self, content: &mut String, calls: &mut Vec<Call>) -> bool {
        let tag = if self.is_inside { CLOSE } else { OPEN };
        let Some((before, rest)) = self.held.split_once(tag) else {
            if !self.is_inside {
                self.release(content);
            }
            return false;
        };
        let (before, rest) = (before.to_owned(), rest.to_owned());
        if !self.is_inside {
            let text = before.trim_end();
            content.push_str(text);
            self.gap = before[text.len()..].to_owned();
        } else if let Some(call) = read(&before) {
            calls.push(call);
            self.has_called = true;
        } else {
            content.push_str(&format!("{}{OPEN}{before}{CLOSE}", self.gap));
        }
        self.is_inside = !self.is_inside;
        self.held = rest;
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

/// Parses the text between two tags as a call. Arguments may be an object or its JSON text.
fn read(text: &str) -> Option<Call> {
    let json: Value = serde_json::from_str(text.trim()).ok()?;
    let name = json.get("name")?.as_str()?.to_owned();
    let arguments = match json.get("arguments").or_else(|| json.get("parameters")) {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(object) => object.to_string(),
    };
    Some(Call { id: response_id("call"), name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text and the calls, for any division into pieces.
    fn read_all(text: &str, size: usize) -> (String, Vec<(String, String)>) {
        let mut stream = ToolCallStream::default();
        let (mut content, mut calls) = (String::new(), Vec::new());
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(size) {
            let (more, found) = stream.push(&piece.iter().collect::<String>());
            content.push_str(&more);
            calls.extend(found.into_iter().map(|call| (call.name, call.arguments)));
        }
        content.push_str(&stream.finish());
        (content, calls)
    }

    #[test]
    fn calls_are_found_however_the_text_is_cut() {
        let text = "Let me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"é\"}}\
                    \n</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>\n";
        for size in [1, 2, 3, 7, 1000] {
            let (content, calls) = read_all(text, size);
            assert_eq!(content, "Let me look.", "{size}");
            let wanted = [("f", "{\"b\":1,\"a\":\"é\"}"), ("g", "{}")];
            assert_eq!(calls, wanted.map(|(name, args)| (name.to_owned(), args.to_owned())));
        }
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
