//! The config of a GGUF model, from the file's metadata.
//!
//! The keys are translated to those of `config.json`, so that both pass the same checks. Errors
//! name the keys of the metadata.

use serde_json::{Map, Value, json};

use super::{Gguf, Metadata, NewMetadata, Wrong};
use crate::config::{Config, ConfigError, Family, RopeConfig, RopeScaling};

/// The key in the metadata for each key of `config.json` that it has, below the architecture.
const COUNTS: [(&str, &str); 10] = [
    ("hidden_size", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("intermediate_size", "feed_forward_length"),
    ("max_position_embeddings", "context_length"),
    ("num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
];
const REALS: [(&str, &str); 2] =
    [("rms_norm_eps", "attention.layer_norm_rms_epsilon"), ("rope_theta", "rope.freq_base")];
const SCALING: [(&str, &str); 5] = [
    ("factor", "rope.scaling.factor"),
    ("original_max_position_embeddings", "rope.scaling.original_context_length"),
    ("attention_factor", "rope.scaling.yarn_attn_factor"),
    ("beta_fast", "rope.scaling.yarn_beta_fast"),
    ("beta_slow", "rope.scaling.yarn_beta_slow"),
];

/// Keys that change the result, and the only value for which weft's ops compute it.
const NEUTRAL: [(&str, f64); 9] = [
    ("attention.sliding_window", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("rope.scale_linear", 1.0),
    ("rope.scaling.attn_factor", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
];

/// Keys of dense models that would make them others.
const NEUTRAL_IF_DENSE: [(&str, f64); 1] = [("expert_count", 0.0)];

/// The same of mixtures of experts.
const NEUTRAL_IF_SPARSE: [(&str, f64); 6] = [
    ("expert_shared_count", 0.0),
    ("expert_group_count", 0.0),
    ("expert_gating_func", 1.0),
    ("expert_weights_norm", 1.0),
    ("expert_weights_scale", 1.0),
    ("leading_dense_block_count", 0.0),
];

/// The architecture of mixtures of experts.
const SPARSE: &str = "qwen3moe";

impl Gguf {
    /// The config of the model.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let metadata = self.metadata();
        let architecture = match metadata.text("general.architecture").map_err(wrong)? {
            Some(name @ ("qwen3" | SPARSE | "qwen2" | "llama")) => name,
            Some(name) => return Err(unsupported(name)),
            None => {
                return Err(ConfigError::Metadata {
                    key: "general.architecture".to_owned(),
                    value: "absent".to_owned(),
                    expected: "qwen3, qwen3moe, qwen2 or llama".to_owned(),
                });
            }
        };
        refuse_what_no_op_computes(metadata, architecture)?;
        let mut keys = translate(metadata, architecture)?;
        keys.insert("vocab_size".to_owned(), json!(self.vocab()));
        keys.insert("tie_word_embeddings".to_owned(), json!(self.has_tied_head()));
        let json = Value::Object(keys).to_string();
        let mut config =
            Config::from_json(json.as_bytes()).map_err(|error| renamed(error, architecture))?;
        config.dtype = self.dtype();
        check_rotation(metadata, architecture, config.head_dim)?;
        if architecture == "llama"
            && let Some(factors) = self
                .rope_factors(config.head_dim)
                .map_err(|error| ConfigError::Tensor(error.to_string()))?
        {
            if config.rope.scaling != RopeScaling::None {
                return Err(ConfigError::Metadata {
                    key: format!("{architecture}.rope.scaling.type"),
                    value: "set, beside rope_freqs.weight".to_owned(),
                    expected: "one kind of scaling".to_owned(),
                });
            }
            config.rope.scaling = RopeScaling::Factors(factors);
        }
        Ok(config)
    }
}

/// The keys of `config.json` that the metadata stands for.
fn translate(metadata: &Metadata, architecture: &str) -> Result<Map<String, Value>, ConfigError> {
    let key = |key: &str| format!("{architecture}.{key}");
    let mut keys = Map::new();
    match architecture {
        SPARSE => {
            keys.insert("model_type".to_owned(), json!(Family::Qwen3Moe.model_type()));
            // llama.cpp always does for this architecture, and no key says so.
            keys.insert("norm_topk_prob".to_owned(), json!(true));
        }
        _ => drop(keys.insert("model_type".to_owned(), json!(architecture))),
    }
    for (ours, theirs) in COUNTS {
        if let Some(count) = metadata.count(&key(theirs)).map_err(wrong)? {
            keys.insert(ours.to_owned(), json!(count));
        }
    }
    let real = |keys: &mut Map<String, Value>, ours: &str, theirs: &str| {
        let Some(number) = metadata.real(&key(theirs)).map_err(wrong)? else { return Ok(()) };
        // JSON has no infinities.
        if !number.is_finite() {
            return Err(ConfigError::Metadata {
                key: key(theirs),
                value: number.to_string(),
                expected: "a finite number".to_owned(),
            });
        }
        keys.insert(ours.to_owned(), json!(number));
        Ok(())
    };
    for (ours, theirs) in REALS {
        real(&mut keys, ours, theirs)?;
    }
    match metadata.text(&key("rope.scaling.type")).map_err(wrong)? {
        None | Some("none") => {}
        Some(kind) => {
            let mut scaling = Map::new();
            scaling.insert("rope_type".to_owned(), json!(kind));
            for (ours, theirs) in SCALING {
                real(&mut scaling, ours, theirs)?;
            }
            keys.insert("rope_scaling".to_owned(), Value::Object(scaling));
        }
    }
    let mut ends = Vec::new();
    for name in ["eos", "eot", "eom"] {
        ends.extend(metadata.count(&format!("tokenizer.ggml.{name}_token_id")).map_err(wrong)?);
    }
    // Ids beyond the vocabulary end nothing; some files write -1 as an unsigned number.
    ends.retain(|id| u32::try_from(*id).is_ok());
    keys.insert("eos_token_id".to_owned(), json!(ends));
    Ok(keys)
}

/// Writes the config to the metadata of a new file. Divisors of the rotary frequencies are a
/// tensor.
pub(crate) fn describe_config(config: &Config, metadata: &mut NewMetadata) {
    let architecture = config.family.architecture();
    let key = |key: &str| format!("{architecture}.{key}");
    let rope = RopeConfig { scaling: RopeScaling::None, ..config.rope.clone() };
    let unscaled = Config { rope, ..config.clone() };
    let keys = unscaled.to_json().expect("only divisors cannot be written");
    for (ours, theirs) in COUNTS {
        // Dense models have no experts to count.
        if let Some(count) = keys.get(ours).and_then(Value::as_u64) {
            metadata.count(&key(theirs), count as u32);
        }
    }
    for (ours, theirs) in REALS {
        metadata.real(&key(theirs), keys[ours].as_f64().unwrap_or_default() as f32);
    }
    metadata.count(&key("attention.value_length"), config.head_dim as u32);
    if config.family == Family::Llama {
        metadata.count(&key("rope.dimension_count"), config.head_dim as u32);
        metadata.count(&key("vocab_size"), config.vocab as u32);
    }
    let RopeScaling::Yarn { .. } = config.rope.scaling else { return };
    let scaled = config.to_json().expect("YaRN can be written");
    let scaling = &scaled["rope_scaling"];
    metadata.text(&key("rope.scaling.type"), "yarn");
    for (ours, theirs) in SCALING {
        match (ours, scaling[ours].as_u64(), scaling[ours].as_f64()) {
            // llama.cpp computes it itself, and multiplies what the file says.
            ("attention_factor", ..) if config.rope.has_default_attention_factor() => {}
            ("original_max_position_embeddings", Some(count), _) => {
                metadata.count(&key(theirs), count as u32);
            }
            (_, _, number) => metadata.real(&key(theirs), number.unwrap_or_default() as f32),
        }
    }
}

/// Refuses features that would silently change the result if they were ignored.
fn refuse_what_no_op_computes(metadata: &Metadata, architecture: &str) -> Result<(), ConfigError> {
    let others = match architecture {
        SPARSE => &NEUTRAL_IF_SPARSE[..],
        _ => &NEUTRAL_IF_DENSE,
    };
    for (key, neutral) in NEUTRAL.iter().chain(others) {
        let key = format!("{architecture}.{key}");
        match metadata.real_or_flag(&key).map_err(wrong)? {
            Some(number) if number != *neutral => {
                return Err(ConfigError::Metadata {
                    key,
                    value: number.to_string(),
                    expected: format!("{neutral}, or no such key"),
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Values are as wide as keys, and the whole head is rotated.
fn check_rotation(
    metadata: &Metadata,
    architecture: &str,
    head_dim: usize,
) -> Result<(), ConfigError> {
    for key in ["attention.value_length", "rope.dimension_count"] {
        let key = format!("{architecture}.{key}");
        match metadata.count(&key).map_err(wrong)? {
            Some(found) if found != head_dim as u64 => {
                return Err(ConfigError::Metadata {
                    key,
                    value: found.to_string(),
                    expected: format!("{head_dim}, the width of a head"),
                });
            }
            _ => {}
        }
    }
    Ok(())
}

fn unsupported(architecture: &str) -> ConfigError {
    let reason = match architecture {
        "qwen2moe" | "qwen3vlmoe" => {
            "of the mixtures of experts, weft runs Qwen3 MoE (qwen3moe); take that, or a Qwen3, \
             Qwen2.5 or Llama 3 model"
        }
        "qwen35" | "qwen35moe" | "qwen3next" => {
            "its recurrent layers keep a state that no chunk of context can be cut from; take a \
             Qwen3, Qwen2.5 or Llama 3 model"
        }
        _ => {
            "weft runs GGUF files of the architectures qwen3, qwen3moe, qwen2 (Qwen2.5 too) and \
             llama"
        }
    };
    ConfigError::Unsupported { model_type: architecture.to_owned(), reason }
}

fn wrong(wrong: Wrong) -> ConfigError {
    let Wrong { key, found, expected } = wrong;
    ConfigError::Metadata { key, value: found, expected: expected.to_owned() }
}

/// An error about a key of `config.json`, with the key of the metadata instead.
fn renamed(error: ConfigError, architecture: &str) -> ConfigError {
    let key = |field: &str| {
        let mut all = COUNTS.iter().chain(&REALS).chain(&SCALING);
        match all.find(|(ours, _)| *ours == field) {
            Some((_, theirs)) => format!("{architecture}.{theirs}"),
            None if field == "rope_type" => format!("{architecture}.rope.scaling.type"),
            None if field == "vocab_size" => "the number of rows of token_embd.weight".to_owned(),
            None => field.to_owned(),
        }
    };
    match error {
        ConfigError::Missing { field, model_type } => ConfigError::Metadata {
            key: key(field),
            value: "absent".to_owned(),
            expected: format!("a number, which a {model_type} model needs"),
        },
        ConfigError::Value { field, value, expected } => {
            ConfigError::Metadata { key: key(field), value, expected }
        }
        other => other,
    }
}
