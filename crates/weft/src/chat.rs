//! A conversation. Every prompt contains all earlier messages and their documents; their KV rows
//! are reused.

use weft_core::chunk::{ChunkId, Kind};
use weft_core::engine::Request;
use weft_core::prompt::{Conversation, Message};

use crate::answer::Answer;
use crate::error::Error;
use crate::llm::Llm;
use crate::question::{Document, Question};

/// A conversation with a model.
pub struct Chat<'l> {
    llm: &'l mut Llm,
    settings: Question,
    said: Said,
    /// Documents for the next message.
    waiting: Vec<Document>,
}

/// The system prompt and the messages of a conversation, and the documents in them.
#[derive(Clone, Default)]
struct Said {
    system: Option<String>,
    messages: Vec<Message>,
    documents: Vec<ChunkId>,
}

impl<'l> Chat<'l> {
    pub(crate) fn new(llm: &'l mut Llm) -> Self {
        let (settings, said, waiting) = <_>::default();
        Self { llm, settings, said, waiting }
    }

    /// Sets the system prompt, and replaces an earlier one.
    pub fn system(mut self, text: &str) -> Self {
        self.said.system = Some(text.to_owned());
        self
    }

    /// Adds a document before the first message. For a later message, give the document with it:
    /// `chat.say(Question::new("And now?").document(&document))`.
    ///
    /// The prompt is the one that [`Llm::ask`] composes of the same documents, so the two use each
    /// other's KV rows.
    ///
    /// ```
    /// # fn main() -> Result<(), weft::Error> {
    /// let mut llm = weft::open_bundled()?;
    /// let town = llm.document("Piranul has 49 bridges. The flag of Piranul shows a cat.")?;
    /// let mut chat = llm.chat().system("Answer in one word.").document(&town);
    /// assert_eq!(chat.say("How many bridges does Piranul have?")?.text, "49");
    ///
    /// let ship = chat.llm().document("The Papokro is commanded by Trihudre.")?;
    /// let question = weft::Question::new("Who is the captain of the Papokro?").document(&ship);
    /// assert_eq!(chat.say(question)?.text, "Trihudre");
    /// # Ok(())
    /// # }
    /// ```
    pub fn document(mut self, document: &Document) -> Self {
        self.waiting.push(*document);
        self
    }

    /// Adds several documents, which come before the next message.
    pub fn documents<'d>(self, documents: impl IntoIterator<Item = &'d Document>) -> Self {
        documents.into_iter().fold(self, Self::document)
    }

    /// Sets how answers are generated, unless a message has its own settings. The text, system
    /// prompt and documents of `settings` are ignored.
    pub fn settings(mut self, settings: Question) -> Self {
        self.settings = settings;
        self
    }

    /// The model, for example to register a document during the conversation.
    pub fn llm(&mut self) -> &mut Llm {
        self.llm
    }

    /// Sends a message, and returns the answer. A message can have documents, which come before its
    /// text, and settings, which apply to this answer. If it has a system prompt, this replaces the
    /// conversation's. After an error, the conversation is unchanged.
    ///
    /// # Errors
    /// [`Error::Request`] if the conversation no longer fits the context; [`Error::Chunk`] if a
    /// document belongs to another model; [`Error::Generate`] if the device fails.
    pub fn say(&mut self, message: impl Into<Question>) -> Result<Answer, Error> {
        self.stream(message, |_| {})
    }

    /// Sends a message, passes each piece of the answer's text to `on_text` as soon as the model
    /// has generated it, and returns the whole answer.
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
    pub fn stream(
        &mut self,
        message: impl Into<Question>,
        on_text: impl FnMut(&str),
    ) -> Result<Answer, Error> {
        let message = message.into().or(&self.settings);
        let mut said = self.said.clone();
        said.add(self.llm, &message, &self.waiting)?;
        let answer = self.answer(&said, &message, on_text)?;
        said.messages.push(Message::assistant(&answer.text));
        self.said = said;
        self.waiting.clear();
        Ok(answer)
    }

    fn answer(
        &mut self,
        said: &Said,
        message: &Question,
        mut on_text: impl FnMut(&str),
    ) -> Result<Answer, Error> {
        let mut chunks = said.documents.clone();
        if let Some(system) = said.system.as_ref().filter(|text| !text.trim().is_empty()) {
            chunks.push(self.llm.engine.chunk(Kind::System, system)?);
        }
        let system = said.system.as_deref().map(Message::system);
        let messages = system.into_iter().chain(said.messages.iter().cloned()).collect();
        let conversation = Conversation::new(messages, message.think);
        let reuse = message.reuse.unwrap_or_default();
        let repair = message.repair.unwrap_or_default();
        let prompt = self.llm.engine.compose_chat(&conversation, &chunks, reuse, repair)?;
        let request = Request::new(prompt, self.llm.sampling(message));
        let request = self.llm.drafted(request, message)?;
        let mut stream = self.llm.run(request)?;
        for piece in stream.by_ref() {
            on_text(&piece?);
        }
        stream.finish()
    }
}

impl Said {
    /// Adds a message of the user. Its documents follow those that waited for it.
    fn add(&mut self, llm: &Llm, message: &Question, waiting: &[Document]) -> Result<(), Error> {
        if message.system.is_some() {
            self.system.clone_from(&message.system);
        }
        let mut pieces = Vec::new();
        for document in waiting.iter().chain(&message.documents) {
            pieces.push(llm.engine.library().get(document.id())?.in_prompt());
            self.documents.push(*document.id());
        }
        self.messages.push(if pieces.is_empty() {
            Message::user(&message.text)
        } else {
            pieces.push(message.text.clone());
            Message::user_pieces(pieces)
        });
        Ok(())
    }
}
