//! Finds the chat template in a model's folder, or in the metadata of its GGUF file.
//!
//! It decides which files are read, up to which size, and which of several templates is taken.

use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;

use super::{PromptError, Template};
use crate::files::read_capped;
use crate::tokenizer::Tokenizer;
use crate::weights::{Metadata, Wrong};

/// Maximum size of `chat_template.jinja`: 1 MB (real ones have up to 20 kB).
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;
/// Maximum size of `tokenizer_config.json`: 16 MB.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// The fields of `tokenizer_config.json` that weft reads.
#[derive(Debug, Default, Deserialize)]
struct Config {
    chat_template: Option<Templates>,
    bos_token: Option<Token>,
    eos_token: Option<Token>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "chat_template must be a string or a list of {\"name\": …, \"template\": …}"
)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
    template: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a token must be a string, null or {\"content\": …}")]
enum Token {
    Text(String),
    Added { content: String },
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Added { content: text } => text,
        }
    }
}

impl Template {
    /// The template of the model in `folder`: `chat_template.jinja`, else `chat_template` in
    /// `tokenizer_config.json` (the one named `default`, if there are several). `None` if there is
    /// neither.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>, PromptError> {
        let path = folder.join("tokenizer_config.json");
        let malformed = |reason: String| PromptError::Malformed { path: path.clone(), reason };
        let config = match read(&path, "tokenizer_config.json in bytes", MAX_CONFIG_BYTES)? {
            Some(bytes) => {
                serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?
            }
            None => Config::default(),
        };
        let file = folder.join("chat_template.jinja");
        let what = "the chat template's size in bytes";
        let source = match (read(&file, what, MAX_TEMPLATE_BYTES)?, config.chat_template) {
            (Some(bytes), _) => String::from_utf8(bytes).map_err(|error| {
                PromptError::Malformed { path: file, reason: error.utf8_error().to_string() }
            })?,
            (None, Some(Templates::One(source))) => source,
            (None, Some(Templates::Named(list))) => {
                let default = list.into_iter().find(|named| named.name == "default");
                let missing = || malformed("no chat_template is named \"default\"".to_owned());
                default.ok_or_else(missing)?.template
            }
            (None, None) => return Ok(None),
        };
        if source.len() as u64 > MAX_TEMPLATE_BYTES {
            return Err(PromptError::Limit { what, limit: MAX_TEMPLATE_BYTES });
        }
        let bos = config.bos_token.as_ref().map(Token::text);
        let eos = config.eos_token.as_ref().map(Token::text);
        Self::new(&source, bos, eos).map(Some)
    }

    /// The template in the metadata of a GGUF file, if there is one.
    pub fn from_gguf(
        metadata: &Metadata,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>, PromptError> {
        let key = "tokenizer.chat_template";
        let malformed = |wrong: Wrong| PromptError::Malformed {
            path: wrong.key.into(),
            reason: format!("it is {}, not {}", wrong.found, wrong.expected),
        };
        let Some(source) = metadata.text(key).map_err(malformed)? else { return Ok(None) };
        if source.len() as u64 > MAX_TEMPLATE_BYTES {
            let what = "the chat template's size in bytes";
            return Err(PromptError::Limit { what, limit: MAX_TEMPLATE_BYTES });
        }
        let token = |name: &str| {
            let id = metadata.count(&format!("tokenizer.ggml.{name}_token_id")).ok()??;
            let bytes = tokenizer.token_bytes(u32::try_from(id).ok()?)?;
            std::str::from_utf8(bytes).ok()
        };
        Self::new(source, token("bos"), token("eos")).map(Some)
    }
}

/// The bytes of a file; `None` if it does not exist.
fn read(path: &Path, what: &'static str, limit: u64) -> Result<Option<Vec<u8>>, PromptError> {
    match read_capped(path, limit) {
        Ok(Some(bytes)) => Ok(Some(bytes)),
        Ok(None) => Err(PromptError::Limit { what, limit }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PromptError::Read { path: path.to_owned(), source }),
    }
}
