//! The models that inputs of weights are read as: a plain one, and one for every packed format.

use weft_core::config::Config;

/// A model small enough that its weights are a seed.
pub const CONFIG: &str = r#"{"model_type": "qwen3", "hidden_size": 4, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2, "intermediate_size": 2,
    "vocab_size": 4, "max_position_embeddings": 64, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "dtype": "bfloat16"}"#;

/// The model of packed seeds, without its `quantization_config`.
pub const PACKED_CONFIG: &str = r#"{"model_type": "qwen3", "hidden_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16,
    "intermediate_size": 16, "vocab_size": 2, "max_position_embeddings": 64,
    "tie_word_embeddings": true, "dtype": "bfloat16"}"#;

/// Every format that packs matrices: a name that its files have, and its `quantization_config`.
pub const PACKINGS: [(&str, &str); 16] = [
    ("weight_scale_inv", r#"{"quant_method": "fp8", "weight_block_size": [128, 128]}"#),
    ("weight_scale", r#"{"quant_method": "modelopt", "quant_algo": "FP8"}"#),
    ("weight_scale_2", r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#),
    ("qweight", r#"{"quant_method": "awq", "bits": 4, "group_size": 16}"#),
    ("qweight", r#"{"quant_method": "gptq", "bits": 4, "group_size": 16}"#),
    ("qweight", r#"{"quant_method": "gptq", "bits": 8, "group_size": -1, "format": "gptq_v2"}"#),
    ("SCB", r#"{"quant_method": "bitsandbytes", "load_in_4bit": true}"#),
    ("quant_state", r#"{"quant_method": "bitsandbytes", "load_in_4bit": true}"#),
    (
        "weight_scale",
        r#"{"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
        {"a": {"targets": ["Linear"], "weights":
        {"num_bits": 8, "type": "float", "strategy": "channel"}}}}"#,
    ),
    (
        "weight_scale",
        r#"{"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups":
        {"a": {"targets": ["Linear"], "weights":
        {"num_bits": 8, "type": "int", "strategy": "tensor"}}}}"#,
    ),
    (
        "weight_packed",
        r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
        {"a": {"targets": ["re:.*"], "weights":
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16,
         "symmetric": false}}}}"#,
    ),
    (
        "weight_packed",
        r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
        {"a": {"targets": ["Linear"], "weights":
        {"num_bits": 8, "type": "int", "strategy": "channel"}}}}"#,
    ),
    (
        "weight_packed",
        r#"{"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups":
        {"a": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float"}}}}"#,
    ),
    (
        "weight_packed",
        r#"{"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups":
        {"a": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float"}}}}"#,
    ),
    (
        "weight_scale",
        r#"{"quant_method": "compressed-tensors", "format": "mxfp8-quantized", "config_groups":
        {"a": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}}"#,
    ),
    (
        "weight_packed",
        r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
        {"a": {"targets": ["Linear"], "weights":
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16,
         "symmetric": false, "actorder": "group"}}}}"#,
    ),
];

/// The configs of packed seeds, each with a name that its files have.
pub fn packed_configs() -> impl Iterator<Item = (&'static str, Config)> {
    PACKINGS.iter().map(|(name, packing)| {
        let config = PACKED_CONFIG.trim_end_matches('}');
        let json = format!(r#"{config}, "quantization_config": {packing}}}"#);
        (*name, Config::from_json(json.as_bytes()).expect("a config"))
    })
}
