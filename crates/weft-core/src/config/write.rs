//! Writes a `config.json` for a [`Config`], with the keys that [`super::parse`] reads.

use serde_json::{Map, Value, json};

use super::{Config, ConfigError, Family, RopeConfig, RopeScaling};
use crate::dtype::Dtype;

impl Family {
    /// The `model_type` of the family.
    pub(crate) fn model_type(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Qwen2 => "qwen2",
            Self::Llama => "llama",
        }
    }

    /// The family's architecture in GGUF files.
    pub(crate) fn architecture(self) -> &'static str {
        match self {
            Self::Qwen3Moe => "qwen3moe",
            other => other.model_type(),
        }
    }

    /// The class that transformers loads.
    fn class(self) -> &'static str {
        match self {
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Qwen3Moe => "Qwen3MoeForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Llama => "LlamaForCausalLM",
        }
    }
}

impl Config {
    /// The content of a `config.json`.
    ///
    /// # Errors
    /// If the rotary frequencies have divisors, as in a GGUF file.
    pub(crate) fn to_json(&self) -> Result<Map<String, Value>, ConfigError> {
        let json = json!({
            "architectures": [self.family.class()],
            "model_type": self.family.model_type(),
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "rms_norm_eps": shortest(self.norm_eps),
            "max_position_embeddings": self.max_positions,
            "tie_word_embeddings": self.tied_head,
            "attention_bias": self.qkv_bias,
            "hidden_act": "silu",
            "torch_dtype": match self.dtype {
                Dtype::F32 => "float32",
                Dtype::Bf16 => "bfloat16",
            },
            "eos_token_id": match &self.eos_ids[..] {
                [] => Value::Null,
                [id] => json!(id),
                ids => json!(ids),
            },
            "rope_theta": self.rope.theta,
            "rope_scaling": scaling(&self.rope)?,
        });
        let Value::Object(mut keys) = json else { unreachable!("an object") };
        if let Some(experts) = &self.experts {
            keys.extend(experts.to_json());
        }
        Ok(keys)
    }
}

/// The number with the fewest digits that f32 reads as `number`.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

fn scaling(rope: &RopeConfig) -> Result<Value, ConfigError> {
    Ok(match rope.scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
            json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_positions as u64,
            })
        }
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_positions,
            attention_factor,
            truncate,
        } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "original_max_position_embeddings": original_positions as u64,
            "attention_factor": attention_factor,
            "truncate": truncate,
        }),
        RopeScaling::Factors(_) => {
            return Err(ConfigError::Tensor(
                "the GGUF file has divisors of the rotary frequencies that config.json has no \
                 words for; write q8_0 or q4_0, or take the model's safetensors files"
                    .to_owned(),
            ));
        }
    })
}
