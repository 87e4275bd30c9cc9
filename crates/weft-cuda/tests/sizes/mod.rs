//! The models that tests of the persistent kernel run.

use weft_core::config::Config;
use weft_core::device::Limits;
use weft_core::weights::RandomWeights;
use weft_cuda::{Launches, Options, compile_ahead};
use weft_testing::config;

pub const SIZES: [&str; 5] = ["qwen3", "qwen2", "odd", "small", "wide"];

/// Sizes that fill tiles and units exactly, hardly, and over; one, several and many sections to a block; blocks with
/// no tiles and with more than are computed at once; with and without norms, bias and a head of its own.
pub fn sizes(name: &str) -> Config {
    let (family, rest) = match name {
        "wide" => (
            "qwen3",
            r#""hidden_size": 4096, "num_hidden_layers": 1, "num_attention_heads": 32,
               "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
               "vocab_size": 1000, "tie_word_embeddings": false"#,
        ),
        "small" => (
            "qwen3",
            r#""hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
               "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
               "vocab_size": 3001, "tie_word_embeddings": true"#,
        ),
        "odd" => (
            "llama",
            r#""hidden_size": 301, "num_hidden_layers": 2, "num_attention_heads": 15,
               "num_key_value_heads": 3, "head_dim": 46, "intermediate_size": 533,
               "vocab_size": 397, "tie_word_embeddings": false"#,
        ),
        family => return config(family),
    };
    let json = format!(
        r#"{{"model_type": "{family}", "rope_theta": 10000.0, "max_position_embeddings": 512, {rest}}}"#
    );
    Config::from_json(json.as_bytes()).unwrap()
}

/// Compiles the kernels of all sizes side by side: a test would wait for one after the other.
pub fn compile_sizes(limits: Limits) {
    std::thread::scope(|scope| {
        for name in SIZES {
            scope.spawn(move || {
                let (config, launches) = (sizes(name), Launches::Persistent);
                let options = Options { launches, ..Options::new(limits) };
                compile_ahead(&config, &RandomWeights::new(&config, 7), &options).unwrap();
            });
        }
    });
}
