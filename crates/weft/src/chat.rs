//! A conversation: what was said before stands in every later prompt, and is not computed again.

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

    /// A system prompt; it replaces an earlier one.
    pub fn system(mut self, text: &str) -> Self {
        self.messages.retain(|message| !message.is_system());
        self.messages.insert(0, Message::system(text));
        self
    }

    /// How answers are made: everything of a question but its text, system prompt and documents.
    pub fn settings(mut self, settings: Question) -> Self {
        self.settings = settings;
        self
    }

    /// Says something, and returns the answer. If that fails, nothing was said.
    ///
    /// # Errors
    /// A conversation that no longer fits the context, or a device that fails.
    pub fn say(&mut self, text: &str) -> Result<Answer, Error> {
        self.messages.push(Message::user(text));
        match self.answer() {
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

    fn answer(&mut self) -> Result<Answer, Error> {
        let conversation = Conversation::new(self.messages.clone(), self.settings.think);
        let prompt = self.llm.engine.compose_chat(&conversation)?;
        let request = Request::new(prompt, self.llm.sampling(&self.settings));
        self.llm.run(request)?.finish()
    }
}
