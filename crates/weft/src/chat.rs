//! A conversation. Every prompt contains all earlier messages; their KV rows are reused.

use weft_core::engine::Request;
use weft_core::prompt::{Conversation, Message};

use crate::answer::Answer;
use crate::error::Error;
use crate::llm::Llm;
use crate::question::Question;

/// A conversation with a model.
pub struct Chat<'l> {
    llm: &'l mut Llm,
    settings: Question,
    messages: Vec<Message>,
}

impl<'l> Chat<'l> {
    pub(crate) fn new(llm: &'l mut Llm) -> Self {
        Self { llm, settings: Question::default(), messages: Vec::new() }
    }

    /// Sets the system prompt, and replaces an earlier one.
    pub fn system(mut self, text: &str) -> Self {
        self.messages.retain(|message| !message.is_system());
        self.messages.insert(0, Message::system(text));
        self
    }

    /// Sets how answers are generated. The text, system prompt and documents of `settings` are
    /// ignored.
    pub fn settings(mut self, settings: Question) -> Self {
        self.settings = settings;
        self
    }

    /// Sends a message, and returns the answer. After an error, the conversation is unchanged.
    ///
    /// # Errors
    /// [`Error::Request`] if the conversation no longer fits the context; [`Error::Generate`] if
    /// the device fails.
    pub fn say(&mut self, text: &str) -> Result<Answer, Error> {
        self.stream(text, |_| {})
    }

    /// Sends a message, passes each piece of the answer's text to `on_text` as soon as the model has
    /// generated it, and returns the whole answer.
    ///
    /// ```
    /// # fn main() -> Result<(), weft::Error> {
    /// let mut llm = weft::open_bundled()?;
    /// let mut chat = llm.chat();
    /// let question = "Piranul has 49 bridges.\n\nHow many bridges does Piranul have?";
    /// chat.stream(question, |text| print!("{text}"))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`say`](Self::say).
    pub fn stream(&mut self, text: &str, on_text: impl FnMut(&str)) -> Result<Answer, Error> {
        self.messages.push(Message::user(text));
        match self.answer(on_text) {
            Ok(answer) => {
                self.messages.push(Message::assistant(&answer.text));
                Ok(answer)
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    fn answer(&mut self, mut on_text: impl FnMut(&str)) -> Result<Answer, Error> {
        let conversation = Conversation::new(self.messages.clone(), self.settings.think);
        let prompt = self.llm.engine.compose_chat(&conversation)?;
        let request = Request::new(prompt, self.llm.sampling(&self.settings));
        let request = self.llm.drafted(request, &self.settings)?;
        let mut stream = self.llm.run(request)?;
        for piece in stream.by_ref() {
            on_text(&piece?);
        }
        stream.finish()
    }
}
