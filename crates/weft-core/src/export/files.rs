//! The small files of a model as Hugging Face has them: read from its folder, or made from the
//! metadata of its GGUF file.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::ExportError;
use crate::config::{Config, RopeConfig, RopeScaling};
use crate::files::read_capped;
use crate::model::{Model, Origin};
use crate::rope;
use crate::tokenizer::{self, MAX_FILE_BYTES};
use crate::weights::Gguf;

/// Files with these endings hold weights, which are written anew.
const WEIGHTS: [&str; 10] = [
    ".safetensors",
    ".index.json",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".onnx",
    ".h5",
    ".msgpack",
    ".ot",
];

/// The files of a model, except its weights.
pub(super) struct ModelFiles {
    /// config.json, or why there is none.
    pub(super) config: Result<Map<String, Value>, String>,
    /// tokenizer.json
    pub(super) tokenizer: Vec<u8>,
    /// The others, by name.
    pub(super) others: Vec<(String, Vec<u8>)>,
}

impl ModelFiles {
    /// The files of a model.
    pub(super) fn of(model: &Model) -> Result<Self, ExportError> {
        match &model.origin {
            Origin::None => Err(ExportError::NoFiles { name: model.name.clone() }),
            Origin::Folder(folder) => Self::of_folder(folder),
            Origin::Gguf(file) => Self::of_gguf(model, file),
            Origin::Memory(files) => Ok(Self {
                config: parse(files.config),
                tokenizer: files.tokenizer.to_vec(),
                others: vec![
                    ("chat_template.jinja".to_owned(), files.template.into()),
                    ("generation_config.json".to_owned(), files.generation.into()),
                    (TOKENIZER_CONFIG.to_owned(), files.tokenizer_config.into()),
                ],
            }),
        }
    }

    fn of_folder(folder: &Path) -> Result<Self, ExportError> {
        let fault = |source| ExportError::Read { path: folder.to_owned(), source };
        let mut files = Self { config: Ok(Map::new()), tokenizer: Vec::new(), others: Vec::new() };
        for entry in fs::read_dir(folder).map_err(fault)? {
            let path = entry.map_err(fault)?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let is_weights = WEIGHTS.iter().any(|end| name.to_ascii_lowercase().ends_with(end));
            if name.starts_with('.') || is_weights || !path.is_file() {
                continue;
            }
            let read = read_capped(&path, MAX_FILE_BYTES);
            let read = read.map_err(|source| ExportError::Read { path: path.clone(), source })?;
            // A larger file is not one of those that a model needs.
            let Some(bytes) = read else { continue };
            match name {
                "config.json" => files.config = parse(&bytes),
                "tokenizer.json" => files.tokenizer = bytes,
                _ => files.others.push((name.to_owned(), bytes)),
            }
        }
        Ok(files)
    }

    fn of_gguf(model: &Model, file: &Path) -> Result<Self, ExportError> {
        let gguf = Gguf::open(file).map_err(crate::weights::WriteError::from)?;
        let metadata = gguf.metadata();
        let id = |name: &str| metadata.count(&format!("tokenizer.ggml.{name}_token_id")).ok()?;
        let token = |name: &str| {
            let bytes = model.tokenizer.token_bytes(u32::try_from(id(name)?).ok()?)?;
            std::str::from_utf8(bytes).ok()
        };
        let unknown = token("unknown");
        let tokenizer_config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": token("bos"),
            "eos_token": token("eos"),
            "pad_token": token("padding"),
            "unk_token": unknown,
            "add_bos_token": !model.tokenizer.bos().is_empty(),
            "clean_up_tokenization_spaces": false,
            "model_max_length": model.config.max_positions,
        });
        let mut others = vec![(TOKENIZER_CONFIG.to_owned(), pretty(&tokenizer_config))];
        if let Some(template) = &model.template {
            others.push(("chat_template.jinja".to_owned(), template.source().into()));
        }
        let generation = model.generation.to_json(&model.stop_ids);
        others.push(("generation_config.json".to_owned(), pretty(&generation)));
        Ok(Self {
            config: with_llama3_scaling(&model.config).to_json().map_err(|error| error.to_string()),
            tokenizer: serde_json::to_vec(&tokenizer::to_json(metadata)?).unwrap_or_default(),
            others,
        })
    }

    /// The special token of this name: `eos`, `bos` or `pad`. By its text, else by its id.
    pub(super) fn special(&self, name: &str, model: &Model) -> Option<u32> {
        let bytes = &self.others.iter().find(|(name, _)| name == TOKENIZER_CONFIG);
        let settings: Value =
            bytes.and_then(|(_, bytes)| serde_json::from_slice(bytes).ok()).unwrap_or_default();
        let token = &settings[format!("{name}_token")];
        let by_text = token.as_str().or(token["content"].as_str());
        let by_text = by_text.and_then(|text| model.tokenizer.id_of(text));
        by_text.or_else(|| {
            let id = self.config.as_ref().ok()?.get(&format!("{name}_token_id"))?;
            let id = id.as_u64().or(id[0].as_u64())?;
            u32::try_from(id).ok().filter(|id| (*id as usize) < model.config.vocab)
        })
    }
}

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

fn parse(json: &[u8]) -> Result<Map<String, Value>, String> {
    serde_json::from_slice(json).map_err(|error| error.to_string())
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// The same config, with the settings of Llama 3.1 to 3.3 if a GGUF file has the divisors of the
/// rotary frequencies that follow from them.
fn with_llama3_scaling(config: &Config) -> Config {
    let mut config = config.clone();
    let RopeScaling::Factors(factors) = &config.rope.scaling else { return config };
    let scaling = RopeScaling::Llama3 {
        factor: f64::from(factors.iter().copied().fold(1.0, f32::max)),
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_positions: 8192.0,
    };
    let rope = RopeConfig { scaling, ..config.rope.clone() };
    let near = |(a, b): (&f32, f32)| (a - b).abs() <= 1e-5 * b;
    if factors.iter().zip(rope::factors(&rope, config.head_dim)).all(near) {
        config.rope = rope;
    }
    config
}
