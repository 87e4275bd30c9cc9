//! An answer as a sequence of parts, for dialects whose answers are lists of blocks or items:
//! thoughts, texts and calls, each begun, continued and ended before the next one begins.

use super::choice::Delta;
use super::tool_calls::{Beginning, CallDelta};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Thinking,
    Text,
    /// A call; what follows is the JSON of its arguments.
    Call {
        id: String,
        name: String,
    },
}

/// What happens to the parts of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PartEvent {
    Begun(Part),
    /// More text of the part that was begun last.
    More(String),
    /// The part that was begun last is complete.
    Ended,
}

/// Turns deltas into events of parts.
#[derive(Debug, Default)]
pub(crate) struct PartStream {
    open: Option<Part>,
}

impl PartStream {
    /// The events of a delta.
    pub(crate) fn push(&mut self, delta: Delta) -> Vec<PartEvent> {
        let mut events = Vec::new();
        self.extend(Part::Thinking, delta.reasoning, &mut events);
        self.extend(Part::Text, delta.content, &mut events);
        for CallDelta { beginning, arguments, .. } in delta.calls {
            if let Some(Beginning { id, name }) = beginning {
                self.begin(Part::Call { id, name }, &mut events);
            }
            if !arguments.is_empty() {
                events.push(PartEvent::More(arguments));
            }
        }
        self.extend(Part::Text, delta.after, &mut events);
        events
    }

    /// The events of the last delta, which ends the part that is open.
    pub(crate) fn push_last(&mut self, delta: Delta) -> Vec<PartEvent> {
        let mut events = self.push(delta);
        events.extend(self.finish());
        events
    }

    /// Ends the part that is open, if one is.
    fn finish(&mut self) -> Option<PartEvent> {
        self.open.take().map(|_| PartEvent::Ended)
    }

    fn extend(&mut self, part: Part, text: String, events: &mut Vec<PartEvent>) {
        if text.is_empty() {
            return;
        }
        if self.open.as_ref() != Some(&part) {
            self.begin(part, events);
        }
        events.push(PartEvent::More(text));
    }

    fn begin(&mut self, part: Part, events: &mut Vec<PartEvent>) {
        events.extend(self.finish());
        self.open = Some(part.clone());
        events.push(PartEvent::Begun(part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_one_after_the_other() {
        let mut parts = PartStream::default();
        let text = |text: &str| Delta { content: text.to_owned(), ..Delta::default() };
        let call = |n: usize, arguments: &str| {
            let name = format!("tool {n}");
            let beginning = Some(Beginning { id: n.to_string(), name });
            CallDelta { index: n, beginning, arguments: arguments.to_owned() }
        };
        let mut events =
            parts.push(Delta { reasoning: "hm".into(), content: "a".into(), ..Delta::default() });
        events.extend(parts.push(text("b")));
        events.extend(parts.push(Delta::default()));
        let calls = vec![call(0, "{}"), call(1, "")];
        events.extend(parts.push(Delta { calls, after: "d".into(), ..text("c") }));
        events.extend(parts.finish());
        assert_eq!(parts.finish(), None);
        let words: Vec<String> = events
            .iter()
            .map(|event| match event {
                PartEvent::Begun(Part::Call { name, .. }) => format!("<{name}"),
                PartEvent::Begun(part) => format!("<{part:?}"),
                PartEvent::More(text) => text.clone(),
                PartEvent::Ended => ">".to_owned(),
            })
            .collect();
        let wanted = "<Thinking hm > <Text a b c > <tool 0 {} > <tool 1 > <Text d >";
        assert_eq!(words.join(" "), wanted);
    }
}
