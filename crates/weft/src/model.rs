//! A model's folder, opened: everything but the weights is read, the weights are checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use crate::config::{Config, ConfigError};
use crate::prompt::{PromptError, Template};
use crate::sampling::{GenerationConfig, SamplingError};
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::weights::{Safetensors, Weights, WeightsError};

/// End tokens of the families' chat formats. Files often name only one of them.
const END_TOKENS: [&str; 4] = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>"];

/// A model that can be put on a device.
pub struct Model {
    /// Where it lies.
    pub folder: PathBuf,
    /// Its shape.
    pub config: Config,
    /// Its weights, checked against the shape.
    pub weights: Box<dyn Weights>,
    /// Its tokens.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, where it has one.
    pub template: Option<Template>,
    /// How its makers sample from it.
    pub generation: GenerationConfig,
    /// Tokens that end an answer.
    pub stop_ids: Vec<u32>,
}

impl Model {
    /// Opens a model's folder.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        if !folder.is_dir() {
            return Err(ModelError::NoFolder { folder: folder.display().to_string() });
        }
        let config = Config::from_file(&folder.join("config.json"))?;
        let weights = Box::new(Safetensors::open(folder, &config)?);
        let tokenizer = Tokenizer::from_file(&folder.join("tokenizer.json"))?;
        if tokenizer.vocab_size() > config.vocab {
            let (tokens, vocab) = (tokenizer.vocab_size(), config.vocab);
            return Err(ModelError::Vocabulary { tokens, vocab });
        }
        let generation = GenerationConfig::from_folder(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            stop_ids: stop_ids(&config, &generation, &tokenizer),
            template: Template::from_folder(folder)?,
            tokenizer: Arc::new(tokenizer),
            config,
            weights,
            generation,
        })
    }
}

fn stop_ids(config: &Config, generation: &GenerationConfig, tokenizer: &Tokenizer) -> Vec<u32> {
    let known = END_TOKENS.iter().filter_map(|token| tokenizer.id_of(token));
    let mut ids: Vec<u32> =
        config.eos_ids.iter().chain(&generation.eos_ids).copied().chain(known).collect();
    ids.retain(|id| (*id as usize) < config.vocab);
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Why a model cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// There is no such folder.
    #[error("{folder} is not a folder; give a model's folder or `org/name`")]
    NoFolder {
        /// The path.
        folder: String,
    },
    /// Its `config.json` cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its weights cannot be used.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Its tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Its chat template cannot be used.
    #[error(transparent)]
    Template(#[from] PromptError),
    /// Its `generation_config.json` cannot be used.
    #[error(transparent)]
    Generation(#[from] SamplingError),
    /// The tokenizer makes tokens that the model has no embedding for.
    #[error("tokenizer.json has {tokens} tokens, config.json a vocab_size of {vocab}; they belong to different models")]
    Vocabulary {
        /// Tokens of the tokenizer.
        tokens: usize,
        /// Rows of the embedding.
        vocab: usize,
    },
}
