//! Broken and hostile configs: each gives a clear error that names the key or the file.

use std::fs;

use weft_core::config::{Config, ConfigError, RopeScaling};

use crate::loading::{assert_refused, copy};

/// A config with some keys replaced.
pub fn config_json(changes: &[(&str, &str)]) -> String {
    let mut keys = vec![
        ("model_type", r#""qwen3""#),
        ("hidden_size", "64"),
        ("num_hidden_layers", "2"),
        ("num_attention_heads", "4"),
        ("num_key_value_heads", "2"),
        ("head_dim", "16"),
        ("intermediate_size", "96"),
        ("vocab_size", "100"),
        ("max_position_embeddings", "512"),
    ];
    for (key, value) in changes {
        keys.retain(|(known, _)| known != key);
        if *value != "absent" {
            keys.push((key, value));
        }
    }
    let lines: Vec<String> =
        keys.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
    format!("{{{}}}", lines.join(", "))
}

#[test]
fn config_keys_old_and_new_mean_the_same() {
    let old = config_json(&[
        ("rope_theta", "5e5"),
        (
            "rope_scaling",
            r#"{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}"#,
        ),
        ("torch_dtype", r#""float32""#),
    ]);
    let new = config_json(&[
        (
            "rope_parameters",
            r#"{"rope_theta": 500000, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}"#,
        ),
        ("dtype", r#""float32""#),
    ]);
    let parse = |json: String| Config::from_json(json.as_bytes()).unwrap();
    assert_eq!(parse(old), parse(new));
}

#[test]
fn config_keys_that_are_absent_have_the_family_s_defaults() {
    let parse = |keys: &[(&str, &str)]| Config::from_json(config_json(keys).as_bytes()).unwrap();
    let eps = |model_type: &str, eps: &str| {
        parse(&[("model_type", model_type), ("rms_norm_eps", eps)]).norm_eps
    };
    assert_eq!(eps(r#""qwen3""#, "absent"), 1e-6);
    assert_eq!(eps(r#""llama""#, "absent"), 1e-5);
    assert_eq!(eps(r#""qwen3""#, "0.25"), 0.25);
    assert_eq!(eps(r#""llama""#, "0.25"), 0.25);
    let tied = |value| parse(&[("tie_word_embeddings", value)]).tied_head;
    assert_eq!((tied("absent"), tied("false"), tied("true")), (false, false, true));
}

/// YaRN's scale of cos and sin, as transformers computes it.
#[test]
fn yarn_s_attention_factor_is_given_or_follows_from_the_scales() {
    let factor = |keys: &str| {
        let yarn = format!(
            r#"{{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64{keys}}}"#
        );
        let config = config_json(&[("rope_scaling", &yarn)]);
        match Config::from_json(config.as_bytes()).unwrap().rope.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            other => panic!("{other:?}"),
        }
    };
    let scale = |mscale: f64| 0.1 * mscale * 4.0_f64.ln() + 1.0;
    assert_eq!(factor(""), scale(1.0));
    assert_eq!(factor(r#", "attention_factor": 1.75"#), 1.75);
    assert_eq!(factor(r#", "mscale": 2.0, "mscale_all_dim": 0.5"#), scale(2.0) / scale(0.5));
    assert_eq!(factor(r#", "mscale": 2.0"#), scale(1.0), "one of the two says nothing");
    let both = r#", "attention_factor": 1.75, "mscale": 2.0, "mscale_all_dim": 0.5"#;
    assert_eq!(factor(both), 1.75, "what is given wins");
}

#[test]
fn yarn_s_ramp_has_the_bounds_of_the_config() {
    let ramp = |keys: &str| {
        let yarn = format!(r#"{{"rope_type": "yarn", "factor": 4.0{keys}}}"#);
        let config = config_json(&[("rope_scaling", &yarn)]);
        match Config::from_json(config.as_bytes()).unwrap().rope.scaling {
            RopeScaling::Yarn { beta_fast, beta_slow, truncate, .. } => {
                (beta_fast, beta_slow, truncate)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ramp(""), (32.0, 1.0, true));
    assert_eq!(ramp(r#", "beta_fast": 24"#), (24.0, 1.0, true));
    assert_eq!(ramp(r#", "beta_slow": 2.5"#), (32.0, 2.5, true));
    assert_eq!(ramp(r#", "truncate": false"#), (32.0, 1.0, false));
}

/// Unsupported configs, and the words in their errors.
const BROKEN_CONFIGS: &[(&str, &str, &[&str])] = &[
    ("model_type", r#""gpt2""#, &["gpt2", "qwen3"]),
    ("model_type", "absent", &["model type ``"]),
    ("model_type", "7", &["not valid"]),
    ("model_type", r#""qwen3_next""#, &["qwen3_next", "recurrent"]),
    ("model_type", r#""qwen2_moe""#, &["experts", "qwen3_moe"]),
    ("hidden_size", "absent", &["hidden_size", "no "]),
    ("hidden_size", "0", &["hidden_size", "0"]),
    ("hidden_size", "-1", &["not valid"]),
    ("hidden_size", "1e30", &["not valid"]),
    ("hidden_size", "99999999999", &["hidden_size", "99999999999", "131072"]),
    ("num_hidden_layers", "100000", &["num_hidden_layers", "1024"]),
    ("num_attention_heads", "0", &["num_attention_heads"]),
    ("num_key_value_heads", "3", &["num_key_value_heads", "3", "divisor"]),
    ("num_key_value_heads", "0", &["num_key_value_heads"]),
    ("head_dim", "15", &["head_dim", "15", "even"]),
    ("head_dim", "4096", &["head_dim", "512"]),
    ("intermediate_size", "18446744073709551615", &["intermediate_size"]),
    ("vocab_size", "4194305", &["vocab_size", "4194304"]),
    ("max_position_embeddings", "0", &["max_position_embeddings"]),
    ("rms_norm_eps", "0", &["rms_norm_eps"]),
    ("rms_norm_eps", "1e-300", &["rms_norm_eps"]),
    ("rope_theta", "1e-300", &["rope_theta"]),
    ("hidden_act", r#""gelu""#, &["gelu", "silu"]),
    ("attention_bias", "true", &["attention_bias"]),
    ("mlp_bias", "true", &["mlp_bias"]),
    ("use_sliding_window", "true", &["use_sliding_window"]),
    ("layer_types", r#"["full_attention", "sliding_attention"]"#, &["sliding_attention"]),
    ("quantization_config", r#"{"bits": 4}"#, &["quantised", "no quant_method", "GGUF"]),
    ("quantization_config", r#"{"quant_method": "exl3"}"#, &["as exl3", "GGUF"]),
    (
        "quantization_config",
        r#"{"quant_method": "mxfp4"}"#,
        &["mxfp4", "compressed-tensors", "GGUF"],
    ),
    ("quantization_config", r#"{"quant_method": 7}"#, &["not valid"]),
    ("quantization", r#"{"group_size": 64, "bits": 4}"#, &["as MLX", "GGUF"]),
    (
        "quantization_config",
        r#"{"quant_method": "fp8", "fmt": "e5m2"}"#,
        &["fp8 e5m2", "e4m3", "take the model's bf16"],
    ),
    (
        "quantization_config",
        r#"{"quant_method": "fp8", "weight_block_size": [0, 128]}"#,
        &["blocks of 0 rows"],
    ),
    (
        "quantization_config",
        r#"{"quant_method": "fp8", "weight_block_size": [128, 18446744073709551615]}"#,
        &["multiple of 16"],
    ),
    (
        "quantization_config",
        r#"{"quant_method": "awq", "bits": 4, "version": "gemv"}"#,
        &["awq gemv", "version gemm"],
    ),
    ("quantization_config", r#"{"quant_method": "awq", "bits": 3}"#, &["awq", "4 bits"]),
    (
        "quantization_config",
        r#"{"quant_method": "awq", "bits": 4, "group_size": 0}"#,
        &["groups of 0 columns", "multiple of 16"],
    ),
    (
        "quantization_config",
        r#"{"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}"#,
        &["gptq marlin", "gptq_v2"],
    ),
    (
        "quantization_config",
        r#"{"quant_method": "awq", "bits": 4, "zero_point": false}"#,
        &["awq without zero points"],
    ),
    ("quantization_config", r#"{"quant_method": "gptq", "bits": 3}"#, &["4 and 8 bits"]),
    ("quantization_config", r#"{"quant_method": "bitsandbytes"}"#, &["load_in_4bit"]),
    (
        "quantization_config",
        r#"{"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}"#,
        &["modelopt W4A8_AWQ", "NVFP4"],
    ),
    (
        "quantization_config",
        r#"{"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups":
            {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}}}"#,
        &["compressed-tensors marlin-24", "pack-quantized"],
    ),
    (
        "quantization_config",
        r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
            {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 3, "type": "int"}}}}"#,
        &["int of 3 bits", "4 or 8 bits"],
    ),
    (
        "quantization_config",
        r#"{"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24"}}"#,
        &["sparse-24", "no sparse weights"],
    ),
    (
        "quantization_config",
        r#"{"quant_method": "compressed-tensors", "transform_config": {"config_groups": {}}}"#,
        &["transforms"],
    ),
    ("dtype", r#""float8_e4m3fn""#, &["float8_e4m3fn", "bfloat16"]),
    ("rope_theta", "0", &["rope_theta"]),
    ("rope_scaling", r#"{"rope_type": "longrope", "factor": 2}"#, &["longrope", "yarn"]),
    ("rope_scaling", r#"{"rope_type": "yarn", "factor": 0.5}"#, &["factor", "0.5"]),
    ("rope_scaling", r#"{"rope_type": "llama3", "factor": 8}"#, &["low_freq_factor", "absent"]),
    (
        "rope_scaling",
        r#"{"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1,
            "original_max_position_embeddings": 64}"#,
        &["high_freq_factor", "above"],
    ),
    ("partial_rotary_factor", "0.5", &["partial_rotary_factor"]),
    ("rope_parameters", r#"{"partial_rotary_factor": 0.5}"#, &["partial_rotary_factor"]),
    ("rope_scaling", r#"{"partial_rotary_factor": 0.5}"#, &["partial_rotary_factor"]),
    ("rope_scaling", r#"{"rope_type": "yarn", "factor": 4, "beta_fast": 0}"#, &["beta_fast", "0"]),
    ("rope_scaling", r#"{"rope_type": "yarn", "factor": 4, "beta_slow": -1}"#, &["beta_slow"]),
];

#[test]
fn a_config_that_cannot_be_run_says_why() {
    Config::from_json(config_json(&[]).as_bytes()).unwrap();
    let mut taken = Vec::new();
    for (key, value, expected) in BROKEN_CONFIGS {
        let json = config_json(&[(key, value)]);
        let error = match Config::from_json(json.as_bytes()) {
            Ok(_) => {
                taken.push((key, value));
                continue;
            }
            Err(error) => error.to_string(),
        };
        for part in *expected {
            assert!(error.contains(part), "{key} = {value}: `{error}` does not say `{part}`");
        }
    }
    assert!(taken.is_empty(), "{taken:?}");
}

#[test]
fn a_config_of_another_kind_is_no_config() {
    let deep = "[".repeat(100_000);
    let nested = format!(r#"{{"model_type": "qwen3", "x": {}"#, r#"{"x":"#.repeat(100_000));
    for text in ["", "null", "[]", "42", "{", "\u{0}", deep.as_str(), nested.as_str()] {
        let error = Config::from_json(text.as_bytes());
        assert!(matches!(error, Err(ConfigError::Json { .. })), "{text:.20}");
    }
    let folder = copy("llama3");
    fs::write(folder.path().join("config.json"), vec![b' '; (1 << 20) + 1]).unwrap();
    assert_refused(folder.path(), &["1048577 bytes", "at most 1048576"]);
}

/// A file beside config.json may say how the weights are packed.
#[test]
fn a_broken_file_is_named() {
    let names =
        ["config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json"];
    for name in names {
        for text in ["{", "[1", r#"{"bits": "four", "model_type": 7}"#] {
            if name == "hf_quant_config.json" && text.len() > 2 {
                continue; // Only one of its keys is read.
            }
            let folder = copy("llama3");
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            let path = path.display().to_string();
            assert_refused(folder.path(), &[&path, "is not valid", "download it again"]);
        }
    }
}
