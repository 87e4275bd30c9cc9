//! Opens a model's folder or GGUF file: reads everything except the weights, which are checked and
//! not yet loaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use crate::config::{Config, ConfigError};
use crate::files::read_capped;
use crate::prompt::{PromptError, Template};
use crate::sampling::{GenerationConfig, GenerationConfigError};
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::weights::{
    Coded, Forms, GGUF_SUFFIX, Gguf, PartName, Quantised, RandomWeights, Safetensors, Weights,
    WeightsError,
};

/// End tokens of the families' chat formats. Model files often name only one of them.
pub(crate) const END_TOKENS: [&str; 4] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>"];

const GENERATION_CONFIG_LIMIT: u64 = 1 << 20;

/// A model, ready to be loaded onto a device.
pub struct Model {
    /// Its folder, or another name for the user.
    pub name: String,
    /// Its dimensions.
    pub config: Config,
    /// Its weights, checked against the dimensions.
    pub weights: Box<dyn Weights>,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, if it has one.
    pub template: Option<Arc<Template>>,
    /// Its recommended sampling settings.
    pub generation: GenerationConfig,
    /// Its end tokens.
    pub stop_ids: Vec<u32>,
    /// Where its files are.
    pub origin: Origin,
}

/// Where a model's files are.
#[derive(Clone)]
pub enum Origin {
    /// It has none.
    None,
    /// In this folder.
    Folder(PathBuf),
    /// In this GGUF file: the first one, if there are several parts.
    Gguf(PathBuf),
    /// In memory.
    Memory(ModelBytes),
}

impl Origin {
    /// The folder or the file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Folder(path) | Self::Gguf(path) => Some(path),
            Self::None | Self::Memory(_) => None,
        }
    }
}

/// A model's files, in memory.
#[derive(Clone, Copy)]
pub struct ModelBytes {
    /// The model's name.
    pub name: &'static str,
    /// config.json
    pub config: &'static [u8],
    /// model.safetensors
    pub weights: &'static [u8],
    /// tokenizer.json
    pub tokenizer: &'static [u8],
    /// chat_template.jinja
    pub template: &'static str,
    /// generation_config.json
    pub generation: &'static [u8],
    /// tokenizer_config.json
    pub tokenizer_config: &'static [u8],
}

impl Model {
    /// A model with random weights, for measurements and tests. It has no name, no template and no
    /// end tokens.
    pub fn random(config: Config, seed: u64, tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            name: String::new(),
            weights: Box::new(RandomWeights::new(&config, seed)),
            tokenizer,
            template: None,
            generation: GenerationConfig::default(),
            stop_ids: Vec::new(),
            origin: Origin::None,
            config,
        }
    }

    /// Opens a model's folder, or its GGUF file: the first one, if there are several parts. A
    /// folder without config.json may hold one GGUF model.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let name = path.display().to_string();
        if path.is_file() && is_gguf(path) {
            return Self::open_gguf(path);
        }
        if !path.is_dir() {
            return Err(ModelError::NoFolder { folder: name });
        }
        let folder = path;
        if !folder.join("config.json").exists()
            && let Some(file) = gguf_in(folder)?
        {
            return Self::open_gguf(&file);
        }
        let config = Config::from_file(&folder.join("config.json"))?;
        let weights = Safetensors::open(folder, &config)?;
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
        let template = Template::from_folder(folder)?;
        let generation = generation_config(folder)?;
        let model = Self::new(name, config, Box::new(weights), tokenizer, template, generation)?;
        Ok(Self { origin: Origin::Folder(folder.to_owned()), ..model })
    }

    fn open_gguf(file: &Path) -> Result<Self, ModelError> {
        let gguf = Gguf::open(file)?;
        let metadata = gguf.metadata();
        let config = gguf.config()?;
        let tokenizer = Tokenizer::from_gguf(metadata)?;
        let template = Template::from_gguf(metadata, &tokenizer)?;
        let generation = GenerationConfig::from_gguf(metadata)?;
        let weights = Box::new(gguf.weights(&config)?);
        let name = file.display().to_string();
        let model = Self::new(name, config, weights, tokenizer, template, generation)?;
        Ok(Self { origin: Origin::Gguf(file.to_owned()), ..model })
    }

    /// Opens a model whose files are in memory.
    pub fn from_bytes(files: ModelBytes) -> Result<Self, ModelError> {
        let config = Config::from_json(files.config)?;
        let weights = Safetensors::from_bytes(files.name, files.weights, &config)?;
        let tokenizer = Tokenizer::from_bytes(files.tokenizer)?;
        let template = Template::new(files.template, None, None)?;
        let generation = GenerationConfig::parse(files.generation)?;
        let name = files.name.to_owned();
        let weights = Box::new(weights);
        let model = Self::new(name, config, weights, tokenizer, Some(template), generation)?;
        Ok(Self { origin: Origin::Memory(files), ..model })
    }

    fn new(
        name: String,
        config: Config,
        weights: Box<dyn Weights>,
        tokenizer: Tokenizer,
        template: Option<Template>,
        generation: GenerationConfig,
    ) -> Result<Self, ModelError> {
        let (tokens, vocab) = (tokenizer.vocab_size() as usize, config.vocab);
        if tokens > vocab {
            return Err(ModelError::Vocabulary { tokens, vocab });
        }
        Ok(Self {
            name,
            stop_ids: stop_ids(&config, &generation, &tokenizer),
            config,
            weights,
            tokenizer: Arc::new(tokenizer),
            template: template.map(Arc::new),
            generation,
            origin: Origin::None,
        })
    }

    /// The same model, whose matrices are quantised when they are read.
    ///
    /// # Errors
    /// [`ModelError::AlreadyQuantised`]
    pub fn quantised(mut self, form: Coded) -> Result<Self, ModelError> {
        if !Forms::of(&*self.weights, &self.config).all_plain() {
            return Err(ModelError::AlreadyQuantised);
        }
        self.weights = Box::new(Quantised::new(self.weights, form));
        Ok(self)
    }

    /// Whether an answer starts with reasoning: the model supports it, and the caller does not
    /// forbid it.
    pub fn thinks(&self, wanted: Option<bool>) -> bool {
        wanted.unwrap_or(true) && self.tokenizer.id_of("<think>").is_some()
    }

    /// A hash of everything that determines the bits of this model's KV rows: dimensions, weights,
    /// tokens, and the device's `kv_family`. Weights contribute a sample of each tensor.
    pub fn fingerprint(&self, kv_family: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{:?}\0{kv_family}\0", self.config).as_bytes());
        hasher.update(&self.weights.fingerprint());
        hasher.finalize().to_hex().to_string()
    }
}

/// Whether a file's name is that of a GGUF file.
pub fn is_gguf(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase());
    name.is_some_and(|name| name.ends_with(GGUF_SUFFIX))
}

/// The one GGUF model in a folder, by its only or its first file; `None` if there is no GGUF file.
fn gguf_in(folder: &Path) -> Result<Option<PathBuf>, ModelError> {
    let read = |source| ModelError::Read { path: folder.display().to_string(), source };
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .map_err(read)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_gguf(path) && path.is_file())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        // Projectors of images are no models.
        .filter(|name| !name.to_ascii_lowercase().starts_with("mmproj"))
        .collect();
    names.sort();
    // The parts of a split model count once. If the first is missing, opening names it.
    names.dedup_by_key(|name| {
        let part = PartName::parse(name).and_then(|part| part.files().next());
        part.unwrap_or_else(|| name.clone())
    });
    match &names[..] {
        [] => Ok(None),
        [name] => {
            let first = PartName::parse(name).and_then(|part| part.files().next());
            Ok(Some(folder.join(first.as_ref().unwrap_or(name))))
        }
        _ => Err(ModelError::SeveralGguf { folder: folder.display().to_string(), files: names }),
    }
}

/// Reads `generation_config.json`. All settings are absent if there is no such file.
fn generation_config(folder: &Path) -> Result<GenerationConfig, ModelError> {
    let path = folder.join("generation_config.json");
    if !path.exists() {
        return Ok(GenerationConfig::default());
    }
    let name = || path.display().to_string();
    let json = read_capped(&path, GENERATION_CONFIG_LIMIT)
        .map_err(|source| ModelError::Read { path: name(), source })?
        .ok_or_else(|| ModelError::TooLarge { path: name(), limit: GENERATION_CONFIG_LIMIT })?;
    Ok(GenerationConfig::parse(&json)?)
}

fn stop_ids(config: &Config, generation: &GenerationConfig, tokenizer: &Tokenizer) -> Vec<u32> {
    let known = END_TOKENS.iter().filter_map(|token| tokenizer.id_of(token));
    let mut ids: Vec<u32> =
        config.eos_ids.iter().chain(&generation.eos_token_id).copied().chain(known).collect();
    ids.retain(|id| (*id as usize) < config.vocab);
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Why a model cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// There is neither a folder nor a GGUF file.
    #[error("there is no model at {folder}; give a model's folder, its GGUF file or `org/name`")]
    NoFolder {
        /// The path.
        folder: String,
    },
    /// The folder holds several GGUF models.
    #[error("{folder} holds several GGUF models ({}); name one of the files", files.join(", "))]
    SeveralGguf {
        /// The folder.
        folder: String,
        /// The files; of a split model, the first part.
        files: Vec<String>,
    },
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is too large for its kind.
    #[error("{path} has more than {limit} bytes, the limit for such a file; download it again")]
    TooLarge {
        /// The file.
        path: String,
        /// The limit.
        limit: u64,
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
    Generation(#[from] GenerationConfigError),
    /// The caller wants to quantise weights that have codes.
    #[error("the model's weights are quantised already; open it without quantising (--quantize)")]
    AlreadyQuantised,
    /// The tokenizer has more tokens than the model has embeddings.
    #[error(
        "the tokenizer has {tokens} tokens, but the model's vocabulary has {vocab}; they belong to \
         different models, so download them again"
    )]
    Vocabulary {
        /// Tokens of the tokenizer.
        tokens: usize,
        /// Rows of the embedding.
        vocab: usize,
    },
}
