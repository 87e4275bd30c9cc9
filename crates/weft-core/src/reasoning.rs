//! Separates a model's reasoning from its answer while both are streamed.
//!
//! A reasoning model starts with `<think>` (or its template already did) and ends its reasoning
//! with `</think>`. The answer follows. Text that could still become a tag is held back.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A piece of streamed text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The model's reasoning.
    pub reasoning: String,
    /// The answer.
    pub answer: String,
}

/// Splits streamed text into reasoning and answer.
#[derive(Debug)]
pub struct ReasoningStream {
    state: State,
    held: String,
    /// Whether a thought has been closed.
    is_closed: bool,
}

#[derive(Debug, PartialEq)]
enum State {
    /// Only white space, or the start of the opening tag, has been seen.
    Start,
    /// The tag has been opened; line feeds after it belong to neither part.
    Opened,
    Thinking,
    /// The tag has been closed; line feeds after it belong to neither part.
    Closed,
    Answering,
}

impl ReasoningStream {
    /// Splits the answer to a prompt. If the prompt ends inside an open `<think>`, the answer
    /// starts with reasoning.
    pub fn after(prompt: &str) -> Self {
        let open = match (prompt.rfind(OPEN), prompt.rfind(CLOSE)) {
            (Some(open), Some(close)) => open > close && prompt.trim_end().ends_with(OPEN),
            (Some(_), None) => prompt.trim_end().ends_with(OPEN),
            (None, _) => false,
        };
        let state = if open { State::Opened } else { State::Start };
        Self { state, held: String::new(), is_closed: false }
    }

    /// Whether all text so far belongs to reasoning that has not been closed.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Opened | State::Thinking)
    }

    /// Whether there was reasoning and the answer follows.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes more text, and returns the part that is certain.
    pub fn push(&mut self, text: &str) -> Parts {
        self.held.push_str(text);
        let mut parts = Parts::default();
        while self.advance(&mut parts) {}
        parts
    }

    /// Splits a complete answer.
    pub fn split(mut self, text: &str) -> Parts {
        let mut parts = self.push(text);
        let rest = self.finish();
        parts.reasoning.push_str(&rest.reasoning);
        parts.answer.push_str(&rest.answer);
        parts
    }

    /// Ends the answer, and returns the text that was held back.
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

    /// Processes held text. Returns whether the state changed, so that more may follow.
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
                    self.is_closed = true;
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

/// Number of bytes at the end of `text` that could be the start of `tag`.
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
    fn a_complete_answer_has_what_a_stream_would_hold_back() {
        let split = |prompt: &str, text: &str| {
            let Parts { reasoning, answer } = ReasoningStream::after(prompt).split(text);
            (reasoning, answer)
        };
        assert_eq!(split("", "<thi"), (String::new(), "<thi".to_owned()));
        assert_eq!(split("<think>", "hm </thi"), ("hm </thi".to_owned(), String::new()));
        assert_eq!(split("", "<think>a</think>b"), ("a".to_owned(), "b".to_owned()));
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
