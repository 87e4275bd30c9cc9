//! The sampling settings that a model was published with: generation_config.json, or the metadata
//! of a GGUF file. Every key is optional, and unknown keys are ignored.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Sampling, SamplingError};
use crate::weights::{Metadata, NewMetadata, Wrong};

/// The settings in generation_config.json; `None` for absent keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// `false` means greedy, at any temperature.
    pub do_sample: Option<bool>,
    /// See [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// See [`Sampling::top_k`].
    pub top_k: Option<usize>,
    /// See [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// See [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// See [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// See [`Sampling::max_tokens`].
    pub max_new_tokens: Option<usize>,
    /// See [`Sampling::min_tokens`].
    pub min_new_tokens: Option<usize>,
    /// The model's end tokens, from one id or a list. They belong to the model, not to a request,
    /// so [`apply`](Self::apply) ignores them; the caller passes them to the
    /// [`Sampler`](super::Sampler).
    pub eos_token_id: Vec<u32>,
}

/// Why a generation_config.json was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerationConfigError {
    /// The file is not JSON, or not an object.
    #[error("generation_config.json is not a JSON object: {0}")]
    Json(#[from] serde_json::Error),
    /// The value of a key has the wrong type.
    #[error("{key} in generation_config.json is {value}: it must be {expected}")]
    Type {
        /// The key.
        key: &'static str,
        /// Its value as JSON, shortened.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// A number is out of range.
    #[error("generation_config.json: {0}")]
    Value(#[from] SamplingError),
    /// The settings in the metadata of a GGUF file cannot be used.
    #[error("general.sampling in the GGUF file's metadata: {0}")]
    Metadata(String),
}

impl GenerationConfig {
    /// Parses a generation_config.json. A key set to `null` counts as absent.
    pub fn parse(json: &[u8]) -> Result<Self, GenerationConfigError> {
        const NUMBER: &str = "a number";
        const COUNT: &str = "a whole number from 0";
        let map: Map<String, Value> = serde_json::from_slice(json)?;
        let config = Self {
            do_sample: field(&map, "do_sample", "true or false")?,
            temperature: field(&map, "temperature", NUMBER)?,
            top_k: field(&map, "top_k", COUNT)?,
            top_p: field(&map, "top_p", NUMBER)?,
            min_p: field(&map, "min_p", NUMBER)?,
            repetition_penalty: field(&map, "repetition_penalty", NUMBER)?,
            max_new_tokens: field(&map, "max_new_tokens", COUNT)?,
            min_new_tokens: field(&map, "min_new_tokens", COUNT)?,
            eos_token_id: ids(&map, "eos_token_id")?,
        };
        config.check()?;
        Ok(config)
    }

    /// The settings in the metadata of a GGUF file.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, GenerationConfigError> {
        let key = |name: &str| format!("general.sampling.{name}");
        let wrong = |wrong: Wrong| {
            let Wrong { key, found, expected } = wrong;
            GenerationConfigError::Metadata(format!("`{key}` is {found}, not {expected}"))
        };
        let real = |name: &str| {
            metadata.real(&key(name)).map(|real| real.map(|real| real as f32)).map_err(wrong)
        };
        let top_k = metadata.count(&key("top_k")).map_err(wrong)?;
        let config = Self {
            temperature: real("temp")?,
            top_k: top_k.map(|count| usize::try_from(count).unwrap_or(usize::MAX)),
            top_p: real("top_p")?,
            min_p: real("min_p")?,
            repetition_penalty: real("penalty_repeat")?,
            ..Self::default()
        };
        config.check().map_err(|error| GenerationConfigError::Metadata(error.to_string()))?;
        Ok(config)
    }

    /// Writes the settings to the metadata of a new GGUF file.
    pub(crate) fn describe(&self, metadata: &mut NewMetadata) {
        let key = |name: &str| format!("general.sampling.{name}");
        let greedy = (self.do_sample == Some(false)).then_some(0.0);
        for (name, value) in [
            ("temp", greedy.or(self.temperature)),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("penalty_repeat", self.repetition_penalty),
        ] {
            if let Some(value) = value {
                metadata.real(&key(name), value);
            }
        }
        if let Some(top_k) = self.top_k {
            metadata.count(&key("top_k"), u32::try_from(top_k).unwrap_or(u32::MAX));
        }
    }

    /// The content of a generation_config.json with these end tokens.
    pub(crate) fn to_json(&self, eos: &[u32]) -> Value {
        let mut map = Map::new();
        let mut set = |key: &str, value: Option<Value>| {
            map.extend(value.map(|value| (key.to_owned(), value)));
        };
        // The shortest decimal fraction, as people write it.
        let real = |value: Option<f32>| value.and_then(|v| v.to_string().parse::<Value>().ok());
        set("do_sample", self.do_sample.map(Value::from));
        set("temperature", real(self.temperature));
        set("top_k", self.top_k.map(Value::from));
        set("top_p", real(self.top_p));
        set("min_p", real(self.min_p));
        set("repetition_penalty", real(self.repetition_penalty));
        set("eos_token_id", Some(eos.into()));
        Value::Object(map)
    }

    /// Checked once, with the file's name in the error, rather than with every request.
    fn check(&self) -> Result<(), SamplingError> {
        let mut settings = Sampling::default();
        self.apply(&mut settings);
        settings.check(usize::MAX)
    }

    /// Overrides `settings` by those of the file.
    pub fn apply(&self, settings: &mut Sampling) {
        fn set<T: Copy>(setting: &mut T, value: Option<T>) {
            *setting = value.unwrap_or(*setting);
        }
        set(&mut settings.temperature, self.temperature);
        // If the key is absent, transformers is greedy; every server samples.
        if self.do_sample == Some(false) {
            settings.temperature = 0.0;
        }
        set(&mut settings.top_k, self.top_k);
        set(&mut settings.top_p, self.top_p);
        set(&mut settings.min_p, self.min_p);
        set(&mut settings.repetition_penalty, self.repetition_penalty);
        set(&mut settings.max_tokens, self.max_new_tokens.map(Some));
        set(&mut settings.min_tokens, self.min_new_tokens);
    }
}

fn field<T: DeserializeOwned>(
    map: &Map<String, Value>,
    key: &'static str,
    expected: &'static str,
) -> Result<Option<T>, GenerationConfigError> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            T::deserialize(value).map(Some).map_err(|_| wrong_type(key, value, expected))
        }
    }
}

fn ids(map: &Map<String, Value>, key: &'static str) -> Result<Vec<u32>, GenerationConfigError> {
    const EXPECTED: &str = "a token id or a list of token ids";
    match map.get(key) {
        Some(Value::Array(_)) => Ok(field(map, key, EXPECTED)?.unwrap_or_default()),
        _ => Ok(field(map, key, EXPECTED)?.into_iter().collect()),
    }
}

fn wrong_type(key: &'static str, value: &Value, expected: &'static str) -> GenerationConfigError {
    const SHOWN: usize = 40;
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(SHOWN) {
        text.truncate(end);
        text.push('…');
    }
    GenerationConfigError::Type { key, value: text, expected }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QWEN3: &[u8] = br#"{
        "bos_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643],
        "pad_token_id": 151643, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
        "transformers_version": "4.51.0"
    }"#;

    fn refusal(json: &str) -> String {
        GenerationConfig::parse(json.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn the_file_of_qwen3_is_read() {
        let expected = GenerationConfig {
            do_sample: Some(true),
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            eos_token_id: vec![151_645, 151_643],
            ..GenerationConfig::default()
        };
        assert_eq!(GenerationConfig::parse(QWEN3).unwrap(), expected);
    }

    #[test]
    fn what_the_file_says_wins_and_the_rest_stays() {
        let json = br#"{"temperature": 0.3, "top_k": 5, "top_p": 0.5, "min_p": 0.1,
            "repetition_penalty": 1.05, "max_new_tokens": 512, "min_new_tokens": 2}"#;
        let mut settings = Sampling { seed: 9, presence_penalty: 1.5, ..Sampling::thinking() };
        GenerationConfig::parse(json).unwrap().apply(&mut settings);
        let expected = Sampling {
            temperature: 0.3,
            top_k: 5,
            top_p: 0.5,
            min_p: 0.1,
            repetition_penalty: 1.05,
            max_tokens: Some(512),
            min_tokens: 2,
            seed: 9,
            presence_penalty: 1.5,
            ..Sampling::default()
        };
        assert_eq!(settings, expected);

        let mut untouched = Sampling { max_tokens: Some(7), min_tokens: 1, ..Sampling::thinking() };
        let before = untouched.clone();
        GenerationConfig::parse(br#"{"top_k": null, "x": [{}]}"#).unwrap().apply(&mut untouched);
        assert_eq!(untouched, before);
    }

    #[test]
    fn no_sampling_is_greedy() {
        let mut settings = Sampling::thinking();
        let json = br#"{"do_sample": false, "temperature": 0.7}"#;
        GenerationConfig::parse(json).unwrap().apply(&mut settings);
        assert_eq!(settings.temperature, 0.0);
    }

    #[test]
    fn end_tokens_are_one_id_or_a_list() {
        let ends = |json: &str| GenerationConfig::parse(json.as_bytes()).unwrap().eos_token_id;
        assert_eq!(ends(r#"{"eos_token_id": 2}"#), [2]);
        assert_eq!(ends(r#"{"eos_token_id": [3, 2]}"#), [3, 2]);
        assert_eq!(ends(r#"{"eos_token_id": null}"#), [0u32; 0]);
        assert_eq!(ends("{}"), [0u32; 0]);
        for bad in ["-1", "true", "\"2\"", "[1, \"2\"]", "4294967296", "1.5", "{}"] {
            let message = refusal(&format!(r#"{{"eos_token_id": {bad}}}"#));
            let shown = bad.replace(", ", ",");
            let expected = format!("eos_token_id in generation_config.json is {shown}: ");
            assert!(message.starts_with(&expected), "{message}");
        }
    }

    #[test]
    fn wrong_types_and_values_are_named() {
        assert_eq!(
            refusal(r#"{"top_k": "twenty"}"#),
            r#"top_k in generation_config.json is "twenty": it must be a whole number from 0"#
        );
        assert!(refusal(r#"{"temperature": [1]}"#).contains("is [1]: it must be a number"));
        assert!(refusal(r#"{"do_sample": 1}"#).contains("it must be true or false"));
        assert_eq!(
            refusal(r#"{"temperature": 1e39}"#),
            "generation_config.json: temperature is inf: it must be from 0 (greedy) to 100"
        );
        assert!(refusal(r#"{"top_p": 0}"#).contains("top_p is 0"));
        for json in ["", "[]", "null", "{", "{\"top_k\": 1e999}", "\u{FEFF}{}"] {
            assert!(refusal(json).contains("is not a JSON object"), "{json}");
        }
        let long = refusal(&format!(r#"{{"top_k": "{}"}}"#, "é".repeat(1000)));
        assert!(long.chars().count() < 150, "{long}");
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_what_is_read_can_be_sampled_with(at in 0..QWEN3.len(), byte in any::<u8>(), cut in 0..QWEN3.len()) {
            let mut json = QWEN3.to_vec();
            json[at] = byte;
            json.truncate(json.len() - cut);
            if let Ok(config) = GenerationConfig::parse(&json) {
                let mut settings = Sampling::thinking();
                config.apply(&mut settings);
                prop_assert_eq!(settings.check(1), Ok(()));
            }
        }
    }
}
