//! A model that is loaded: asked, streamed from, talked to.

use weft_core::chunk::{Kind, Prompt};
use weft_core::config::Config;
use weft_core::engine::{Engine, Request};
use weft_core::model::Model;
use weft_core::reasoning::{Parts, ReasoningStream};
use weft_core::sampling::{Sampling, random_seed};

use crate::answer::{Answer, Stream};
use crate::chat::Chat;
use crate::device::Tested;
use crate::error::Error;
use crate::memory::MemoryPlan;
use crate::question::{Document, Question};

/// A model on a device, with what it keeps of earlier prompts.
pub struct Llm {
    pub(crate) model: Model,
    pub(crate) engine: Engine,
    memory: MemoryPlan,
    tested: Tested,
    warnings: Vec<String>,
}

impl Llm {
    pub(crate) fn new(
        model: Model,
        engine: Engine,
        memory: MemoryPlan,
        tested: Tested,
        warning: Option<String>,
    ) -> Self {
        Self { model, engine, memory, tested, warnings: warning.into_iter().collect() }
    }

    /// Answers a question.
    ///
    /// # Errors
    /// A prompt that does not fit, or a device that fails.
    pub fn ask(&mut self, question: impl Into<Question>) -> Result<Answer, Error> {
        self.stream(question)?.finish()
    }

    /// Answers a question piece by piece.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn stream(&mut self, question: impl Into<Question>) -> Result<Stream<'_>, Error> {
        let request = self.request(&question.into())?;
        self.run(request)
    }

    /// Answers several questions side by side, in their order: eight run at a time.
    ///
    /// # Errors
    /// As [`ask`](Self::ask); if one question is wrong in itself, none is answered.
    pub fn ask_all<Q: Into<Question>>(
        &mut self,
        questions: impl IntoIterator<Item = Q>,
    ) -> Result<Vec<Answer>, Error> {
        let requests: Vec<Request> = questions
            .into_iter()
            .map(|question| self.request(&question.into()))
            .collect::<Result<_, _>>()?;
        let thoughts: Vec<_> =
            requests.iter().map(|request| self.reasoning_after(request)).collect();
        let completions = self.engine.generate_batch(requests)?;
        let answers = completions.into_iter().zip(thoughts).map(|(completion, mut thought)| {
            let mut parts = thought.push(&completion.text());
            let Parts { reasoning, answer } = thought.finish();
            parts.reasoning.push_str(&reasoning);
            parts.answer.push_str(&answer);
            let finished = completion.ending.map_err(weft_core::engine::GenerateError::from)?;
            Ok(Answer::new(parts, finished))
        });
        answers.collect()
    }

    /// Begins a conversation.
    pub fn chat(&mut self) -> Chat<'_> {
        Chat::new(self)
    }

    /// Hands over a text that questions can be about. It is computed with the first of them.
    ///
    /// # Errors
    /// [`Error::Chunk`], if the text is empty.
    pub fn document(&mut self, text: &str) -> Result<Document, Error> {
        Ok(Document(self.engine.chunk(Kind::Context, text)?))
    }

    /// Writes the rows of documents to disk, if a folder was given; returns how many documents.
    /// Dropping the model does not.
    pub fn save(&mut self) -> usize {
        self.engine.save(false)
    }

    /// What went wrong with kept rows since the last call. Answers are not affected.
    pub fn take_warnings(&mut self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut self.warnings);
        warnings.extend(self.engine.take_warnings());
        warnings
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.model.config
    }

    /// The device, in words.
    pub fn device(&self) -> String {
        self.engine.device().describe()
    }

    /// The memory that it takes.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// How the device's self-test went.
    pub fn tested(&self) -> &Tested {
        &self.tested
    }

    /// The model and the engine below, for programs that need all of them.
    pub fn into_parts(self) -> (Model, Engine) {
        (self.model, self.engine)
    }

    /// Runs a request.
    pub(crate) fn run(&mut self, request: Request) -> Result<Stream<'_>, Error> {
        let reasoning = self.reasoning_after(&request);
        Ok(Stream::new(self.engine.generate(request)?, reasoning))
    }

    fn reasoning_after(&self, request: &Request) -> ReasoningStream {
        ReasoningStream::after(&request.prompt.end_text(&self.model.tokenizer))
    }

    fn request(&mut self, question: &Question) -> Result<Request, Error> {
        let mut prompt = Prompt::new()
            .query(&question.text)
            .contexts(question.documents.iter().map(Document::id))
            .reuse(question.reuse)
            .repair(question.repair)
            .thinking(question.think);
        if let Some(system) = &question.system {
            prompt = prompt.system(&self.engine.chunk(Kind::System, system)?);
        }
        Ok(self.engine.request(&prompt, self.sampling(question))?)
    }

    /// The family's settings, then the model's own, then the question's.
    pub(crate) fn sampling(&self, question: &Question) -> Sampling {
        let thinks = self.model.thinks(question.think);
        let mut sampling = Sampling::defaults(thinks, &self.model.generation);
        sampling.temperature = question.temperature.unwrap_or(sampling.temperature);
        sampling.max_tokens = question.max_tokens.or(sampling.max_tokens);
        sampling.seed = question.seed.unwrap_or_else(random_seed);
        sampling.stop.clone_from(&question.stop);
        sampling
    }
}
