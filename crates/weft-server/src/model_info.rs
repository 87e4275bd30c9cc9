//! Facts about the loaded model that requests need without calling the engine.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use weft_core::chunk::Shelf;
use weft_core::config::Config;
use weft_core::engine::Engine;
use weft_core::model::Model;
use weft_core::prompt::Template;
use weft_core::retrieval::{RerankError, Reranker};
use weft_core::sampling::{Constraint, GenerationConfig, Sampling};
use weft_core::tokenizer::Tokenizer;

use crate::api_error::ApiError;
use crate::grammars::{Grammars, Rule, ThinkingLimit, Turns};
use crate::responses::CallStyle;

/// Why the engine could not be loaded.
pub type LoadError = Box<dyn Error + Send + Sync>;

/// Loads a model: once at the start, and again after a fault.
pub type Load = Box<dyn FnMut() -> Result<Loaded, LoadError> + Send>;

/// A model ready to answer.
pub struct Loaded {
    /// The name that clients use for the model. Never a path.
    pub id: String,
    /// The model.
    pub model: Model,
    /// The engine, with the chunks of the shelf.
    pub engine: Engine,
    /// Where registered chunks are saved, if they are to outlive the server.
    pub shelf: Option<Shelf>,
    /// What a program must know to see whether this is the model it would load itself.
    pub identity: serde_json::Value,
}

impl Loaded {
    /// A model that has no shelf, and that other programs do not look for.
    pub fn new(id: &str, model: Model, engine: Engine) -> Self {
        let identity = serde_json::Value::Null;
        Self { id: id.to_owned(), model, engine, shelf: None, identity }
    }
}

/// Facts about a loaded model, shared by all requests.
pub(crate) struct ModelInfo {
    pub(crate) id: String,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<Arc<Template>>,
    generation: GenerationConfig,
    pub(crate) context: usize,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) device: String,
    pub(crate) parameters: u64,
    /// Values of an embedding.
    pub(crate) hidden: usize,
    pub(crate) shelf: Option<Shelf>,
    #[cfg_attr(not(unix), expect(dead_code, reason = "there is no socket"))]
    pub(crate) identity: serde_json::Value,
    pub(crate) shape: Config,
    can_think: bool,
    /// How the model writes calls of tools.
    pub(crate) call_style: CallStyle,
    /// The token that ends an answer, if the model has one.
    end: Option<u32>,
    grammars: OnceLock<Result<Grammars, ApiError>>,
    reranker: OnceLock<Result<Reranker, RerankError>>,
    pub(crate) turns: Turns,
}

impl ModelInfo {
    pub(crate) fn new(loaded: &Loaded) -> Self {
        let Loaded { id, model, engine, shelf, identity } = loaded;
        Self {
            id: id.clone(),
            tokenizer: Arc::clone(&model.tokenizer),
            template: model.template.clone(),
            generation: model.generation.clone(),
            context: engine.context(),
            created: crate::responses::seconds_now(),
            device: engine.device().describe(),
            parameters: weft_core::weights::parameters(&model.config),
            hidden: model.config.hidden,
            reranker: OnceLock::new(),
            shelf: shelf.clone(),
            identity: identity.clone(),
            shape: model.config.clone(),
            can_think: model.thinks(None),
            call_style: model
                .template
                .as_ref()
                .map_or(CallStyle::Hermes, |template| CallStyle::of_template(template.source())),
            end: chat_end(model),
            grammars: OnceLock::new(),
            turns: Turns::default(),
        }
    }

    /// Whether the model can think before it answers: it has the tokens, and its template knows
    /// about them.
    pub(crate) fn can_think(&self) -> bool {
        let knows = |template: &Arc<Template>| template.source().contains("think");
        self.can_think && self.template.as_ref().is_some_and(knows)
    }

    /// The token that ends an answer, if the model has one.
    pub(crate) fn end(&self) -> Option<u32> {
        self.end
    }

    /// Number of tokens that can be given and drawn.
    pub(crate) fn vocab(&self) -> usize {
        self.tokenizer.vocab_size() as usize
    }

    /// The model's chat template, or the error for a chat if it has none.
    pub(crate) fn template(&self) -> Result<&Template, ApiError> {
        self.template.as_deref().ok_or_else(|| {
            ApiError::invalid(
                "this model has no chat template, so it cannot chat; use /v1/completions",
            )
        })
    }

    /// The model's sampling settings, for those that a request omits.
    pub(crate) fn sampling(&self, thinking: Option<bool>) -> Sampling {
        let thinks = thinking.unwrap_or(true) && self.can_think;
        Sampling::defaults(thinks, &self.generation)
    }

    /// Compiles a rule of the field `param`. Takes time: the first use reads the vocabulary.
    pub(crate) fn constraint(
        &self,
        rule: &Rule,
        param: &'static str,
    ) -> Result<Box<dyn Constraint>, ApiError> {
        let grammars = self.grammars.get_or_init(|| {
            let end = self.end.ok_or_else(|| ApiError::invalid("this model has no end token"))?;
            Grammars::new(&self.tokenizer, end)
        });
        let grammars = grammars.as_ref().map_err(Clone::clone)?;
        match rule {
            Rule::Strict(tools) => grammars.strict(&self.tokenizer, tools, param),
            rule => grammars.compile(rule, param),
        }
    }

    /// The prompt that ranks documents, or why the model cannot rank them. The first use searches
    /// the vocabulary.
    pub(crate) fn reranker(&self) -> Result<&Reranker, ApiError> {
        let made = self.reranker.get_or_init(|| Reranker::new(&self.tokenizer));
        made.as_ref().map_err(|error| ApiError::invalid(error.to_string()).param("model"))
    }

    /// What closes a thought after `n` tokens, in the answer to a prompt with this end.
    pub(crate) fn thinking_limit(&self, n: usize, prompt_end: &str) -> Option<Box<dyn Constraint>> {
        let limit = ThinkingLimit::new(&self.tokenizer, n, prompt_end)?;
        Some(Box::new(limit))
    }

    /// Refuses a prompt that leaves no room for an answer.
    pub(crate) fn check_length(&self, tokens: usize) -> Result<(), ApiError> {
        if tokens < self.context {
            return Ok(());
        }
        Err(ApiError::too_long(tokens, self.context, self.shape.max_positions))
    }
}

/// The token that ends an assistant's turn, among those that end answers.
fn chat_end(model: &Model) -> Option<u32> {
    let turns = ["<|im_end|>", "<|eot_id|>"].iter().filter_map(|end| model.tokenizer.id_of(end));
    turns.chain(model.stop_ids.iter().copied()).find(|end| model.stop_ids.contains(end))
}
