//! A loaded model: `ask`, `stream`, `chat`, and the documents that questions refer to.

use weft_core::chunk::{ChunkError, Kind, Prompt};
use weft_core::config::Config;
use weft_core::engine::{Engine, Request};
use weft_core::model::Model;
use weft_core::reasoning::ReasoningStream;
use weft_core::sampling::{Sampling, random_seed};

use crate::answer::{Answer, Stream};
use crate::chat::Chat;
use crate::device::Tested;
use crate::error::Error;
use crate::memory::MemoryPlan;
use crate::question::{Document, Question};

/// A model on a device, together with the KV rows of earlier prompts.
pub struct Llm {
    pub(crate) model: Model,
    pub(crate) engine: Engine,
    memory: MemoryPlan,
    draft_memory: Option<MemoryPlan>,
    tested: Tested,
    warnings: Vec<String>,
}

impl Llm {
    pub(crate) fn new(
        model: Model,
        engine: Engine,
        (memory, draft_memory): (MemoryPlan, Option<MemoryPlan>),
        tested: Tested,
        warning: Option<String>,
    ) -> Self {
        let warnings = warning.into_iter().collect();
        Self { model, engine, memory, draft_memory, tested, warnings }
    }

    /// Answers a question.
    ///
    /// # Errors
    /// [`Error::Chunk`] if the question or the system prompt is empty, if a document belongs to
    /// another model, or if the model has no chat template; [`Error::Request`] if the prompt does
    /// not fit the context; [`Error::Generate`] if the device fails.
    pub fn ask(&mut self, question: impl Into<Question>) -> Result<Answer, Error> {
        self.stream(question)?.finish()
    }

    /// Answers a question, and returns the text while the model generates it.
    ///
    /// # Errors
    /// The errors of [`ask`](Self::ask).
    pub fn stream(&mut self, question: impl Into<Question>) -> Result<Stream<'_>, Error> {
        let request = self.request(&question.into())?;
        self.run(request)
    }

    /// Answers several questions, up to eight at a time, and returns the answers in the same order.
    ///
    /// # Errors
    /// The errors of [`ask`](Self::ask). If one question is invalid, none is answered.
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
        let answers = completions.into_iter().zip(thoughts).map(|(completion, thought)| {
            let parts = thought.split(&completion.text());
            let finished = completion.ending.map_err(weft_core::engine::GenerateError::from)?;
            Ok(Answer::new(parts, finished))
        });
        answers.collect()
    }

    /// Starts a conversation, about [documents](Chat::document) or without any.
    pub fn chat(&mut self) -> Chat<'_> {
        Chat::new(self)
    }

    /// Registers a text that questions and conversations can refer to. Its KV rows are computed
    /// with the first question.
    ///
    /// # Errors
    /// [`Error::Chunk`] if the text is empty.
    pub fn document(&mut self, text: &str) -> Result<Document, Error> {
        Ok(Document(self.engine.chunk(Kind::Context, text)?))
    }

    /// Writes the KV rows of all documents and system prompts to the
    /// [disk cache](crate::Options::disk_cache). Returns the number of entries that have a file,
    /// earlier ones included. Dropping the model writes nothing.
    pub fn save(&mut self) -> usize {
        self.engine.save(false)
    }

    /// Returns the warnings about cached rows since the last call. Such faults never change an
    /// answer.
    pub fn take_warnings(&mut self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut self.warnings);
        warnings.extend(self.engine.take_warnings());
        warnings
    }

    /// The model's dimensions.
    pub fn config(&self) -> &Config {
        &self.model.config
    }

    /// The device's name and properties, as text for a user.
    pub fn device(&self) -> String {
        self.engine.device().describe()
    }

    /// Measurements behind [`device`](Self::device), and why it says what it says.
    pub fn device_details(&self) -> Option<String> {
        self.engine.device().details()
    }

    /// Waits until answers are as fast as they will be. On a GPU, kernels may still be compiled and
    /// measured beside the first answers.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the GPU reports an error.
    pub fn warm_up(&mut self) -> Result<(), Error> {
        self.engine.warm_up().map_err(|error| Error::Gpu(error.to_string()))
    }

    /// The memory that the model uses.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// The memory that the draft model uses, if there is one.
    pub fn draft_memory(&self) -> Option<&MemoryPlan> {
        self.draft_memory.as_ref()
    }

    /// The result of the device's self-test.
    pub fn tested(&self) -> &Tested {
        &self.tested
    }

    /// The model and the engine, for programs that use [`weft_core`] directly.
    pub fn into_parts(self) -> (Model, Engine) {
        (self.model, self.engine)
    }

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
            .reuse(question.reuse.unwrap_or_default())
            .repair(question.repair.unwrap_or_default())
            .thinking(question.think);
        if let Some(system) = &question.system {
            prompt = prompt.system(&self.engine.chunk(Kind::System, system)?);
        }
        let request = Request::new(self.engine.compose(&prompt)?, self.sampling(question));
        self.drafted(request, question)
    }

    /// Adds a question's wishes for its drafts to a request.
    pub(crate) fn drafted(&self, request: Request, question: &Question) -> Result<Request, Error> {
        let tokenizer = &self.model.tokenizer;
        let prediction = question.prediction.as_ref().map(|text| tokenizer.encode_text(text));
        let prediction = prediction.transpose().map_err(ChunkError::from)?;
        Ok(Request { speculate: question.speculate, prediction, ..request })
    }

    /// The settings of the question override the model's, and these override the family's.
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
