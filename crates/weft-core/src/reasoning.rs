//! Thinking told apart from the answer while both stream by.
//!
//! A thinking model opens with `<think>` (or its template already did) and closes with `</think>`;
//! what follows is the answer. Text that may yet turn out to be a tag is held back.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A piece of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// What the model thought.
    pub reasoning: String,
    /// What it answered.
    pub answer: String,
}

/// Splits streamed text into thinking and answer.
#[derive(Debug)]
pub struct ReasoningStream {
    state: State,
    held: String,
}

#[derive(Debug, PartialEq)]
enum State {
    /// Nothing but white space was seen, or the beginning of the opening tag.
    Start,
    /// The tag was opened; line feeds after it belong to neither part.
    Opened,
    Thinking,
    /// The tag was closed; line feeds after it belong to neither part.
    Closed,
    Answering,
}

impl ReasoningStream {
    /// Splits the answer to a prompt: one that ends inside an open `<think>` starts in thought.
    pub fn after(prompt: &str) -> Self {
        let open = match (prompt.rfind(OPEN), prompt.rfind(CLOSE)) {
            (Some(open), Some(close)) => open > close && prompt.trim_end().ends_with(OPEN),
            (Some(_), None) => prompt.trim_end().ends_with(OPEN),
            (None, _) => false,
        };
        let state = if open { State::Opened } else { State::Start };
        Self { state, held: String::new() }
    }

    /// Takes more text; gives what is certain.
    pub fn push(&mut self, text: &str) -> Parts {
        self.held.push_str(text);
        let mut parts = Parts::default();
        while self.advance(&mut parts) {}
        parts
    }

    /// The end of the answer: gives what was held back.
    pub fn finish(&mut self) -> Parts {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Thinking => Parts { reasoning: rest, answer: String::new() },
            State::Opened | State::Closed => Parts::default(),
            State::Start | State::Answering => Parts { reasoning: String::new(), answer: rest },
        }
    }

    fn skip_line_feeds(&mut self, next: State) -> bool {
        let text = self.held.trim_start_matches('\n');
        let is_over = !text.is_empty();
        self.held = text.to_owned();
        if is_over {
            self.state = next;
        }
        is_over
    }

    /// Moves held text on; whether the state changed and there may be more to do.
    fn advance(&mut self, parts: &mut Parts) -> bool {
        match self.state {
            State::Start => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(OPEN) {
                    self.held = rest.to_owned();
                    self.state = State::Opened;
                    return true;
                }
                if OPEN.starts_with(text) {
                    return false;
                }
                self.state = State::Answering;
                true
            }
            State::Thinking => {
                if let Some((thought, rest)) = self.held.split_once(CLOSE) {
                    parts.reasoning.push_str(thought);
                    self.held = rest.to_owned();
                    self.state = State::Closed;
                    return true;
                }
                let certain = self.held.len() - held_back(&self.held, CLOSE);
                parts.reasoning.extend(self.held.drain(..certain));
                false
            }
            State::Opened => self.skip_line_feeds(State::Thinking),
            State::Closed => self.skip_line_feeds(State::Answering),
            State::Answering => {
                parts.answer.push_str(&self.held);
                self.held.clear();
                false
            }
        }
    }
}

/// Bytes at the end of `text` that may be the beginning of `tag`.
fn held_back(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|n| text.ends_with(&tag[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(prompt: &str, pieces: &[&str]) -> (String, String) {
        let mut stream = ReasoningStream::after(prompt);
        let mut all = Parts::default();
        let mut add = |parts: Parts| {
            all.reasoning.push_str(&parts.reasoning);
            all.answer.push_str(&parts.answer);
        };
        pieces.iter().for_each(|piece| add(stream.push(piece)));
        add(stream.finish());
        (all.reasoning, all.answer)
    }

    #[test]
    fn every_cut_gives_the_same_parts() {
        let text = "<think>\nIs 1 < 2? Yes </thin.\n</think>\n\nYes: <think> is a tag.";
        let expected = ("Is 1 < 2? Yes </thin.\n".to_owned(), "Yes: <think> is a tag.".to_owned());
        for cut in 0..=text.len() {
            assert_eq!(split("", &[&text[..cut], &text[cut..]]), expected, "cut at {cut}");
        }
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(split("", &letters), (expected.0, expected.1));
    }

    #[test]
    fn an_answer_without_thought_is_all_answer() {
        assert_eq!(split("", &["  <thing>", " is"]), (String::new(), "  <thing> is".to_owned()));
        assert_eq!(split("", &["<thi"]), (String::new(), "<thi".to_owned()));
    }

    #[test]
    fn a_prompt_may_open_the_thought() {
        let thought = ("hm".to_owned(), "so".to_owned());
        assert_eq!(split("…assistant\n<think>\n", &["hm</think>\n\n", "so"]), thought);
        let closed = split("…assistant\n<think>\n\n</think>\n\n", &["so"]);
        assert_eq!(closed, (String::new(), "so".to_owned()));
    }
}
