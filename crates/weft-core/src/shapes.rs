//! Named shapes: the dimensions of well-known models, without their weights.
//!
//! With [`RandomWeights`](crate::weights::RandomWeights), a model can be measured without a
//! download.

use crate::config::Config;

/// The names that [`config`] accepts.
pub const NAMES: [&str; SHAPES.len()] = {
    let mut names = [""; SHAPES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = SHAPES[i].0;
        i += 1;
    }
    names
};

/// The `config.json` of a named shape.
pub fn json(name: &str) -> Option<&'static str> {
    SHAPES.iter().find(|(known, _)| *known == name).map(|(_, json)| *json)
}

/// The dimensions of a named shape.
pub fn config(name: &str) -> Option<Config> {
    let json = json(name)?;
    Some(Config::from_json(json.as_bytes()).expect("every named shape is a valid config"))
}

/// The `config.json` of a model of experts with some number of layers.
macro_rules! qwen3_30b_a3b {
    ($layers:literal) => {
        concat!(
            r#"{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": "#,
            $layers,
            r#", "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
            "intermediate_size": 6144, "num_experts": 128, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768, "norm_topk_prob": true, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "vocab_size": 151936, "tie_word_embeddings": false,
            "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "max_position_embeddings": 40960}"#
        )
    };
}

/// Name and `config.json`.
const SHAPES: [(&str, &str); 10] = [
    (
        "qwen3-0.6b",
        r#"{"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": true,
            "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "max_position_embeddings": 40960}"#,
    ),
    (
        "qwen3-1.7b",
        r#"{"model_type": "qwen3", "hidden_size": 2048, "num_hidden_layers": 28,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 6144, "vocab_size": 151936, "tie_word_embeddings": true,
            "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "max_position_embeddings": 40960}"#,
    ),
    (
        "qwen3-4b",
        r#"{"model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": true,
            "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "max_position_embeddings": 40960}"#,
    ),
    (
        "qwen3-8b",
        r#"{"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 12288, "vocab_size": 151936, "tie_word_embeddings": false,
            "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "max_position_embeddings": 40960}"#,
    ),
    (
        "qwen3-14b",
        r#"{"model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 40,
            "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 17408, "vocab_size": 151936, "tie_word_embeddings": false,
            "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "max_position_embeddings": 40960}"#,
    ),
    (
        "qwen3-32b",
        r#"{"model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 64,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 25600, "vocab_size": 151936, "tie_word_embeddings": false,
            "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "max_position_embeddings": 40960}"#,
    ),
    // The first model of its kind; its half, for small cards; and four of its layers.
    ("qwen3-30b-a3b", qwen3_30b_a3b!(48)),
    ("qwen3-30b-a3b-half", qwen3_30b_a3b!(24)),
    ("qwen3-30b-a3b-4l", qwen3_30b_a3b!(4)),
    (
        "qwen2.5-0.5b",
        r#"{"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24,
            "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64,
            "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": true,
            "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "max_position_embeddings": 32768}"#,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_shape() {
        for name in NAMES {
            assert!(config(name).is_some(), "{name}");
        }
        assert!(config("qwen3-9b").is_none());
    }

    #[test]
    fn shapes_have_the_parameters_their_names_say() {
        let millions = |name| crate::weights::parameters(&config(name).unwrap()) / 1_000_000;
        assert_eq!(
            NAMES.map(millions),
            [596, 1_720, 4_022, 8_190, 14_768, 32_762, 30_532, 15_577, 3_114, 494],
            "{NAMES:?}"
        );
    }

    #[test]
    fn a_token_uses_the_parameters_that_the_name_says() {
        let millions = |name| crate::weights::active_parameters(&config(name).unwrap()) / 1_000_000;
        assert_eq!(millions("qwen3-30b-a3b"), 3_353);
        assert_eq!(millions("qwen3-4b"), 4_022, "all of a dense model's");
    }
}
