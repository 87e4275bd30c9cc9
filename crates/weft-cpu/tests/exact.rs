//! Exact answers on the CPU device, through the whole engine, equal the cold ones for any cache.

use std::path::Path;
use std::sync::Arc;

use weft_core::config::Config;
use weft_core::device::{Device, Limits, MAX_LANES};
use weft_core::model::Model;
use weft_core::tokenizer::Tokenizer;
use weft_cpu::{CpuDevice, Options};
use weft_testing::exact::{Size, answers_are_the_cold_ones};

fn model() -> Model {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../weft-core/tests/prompts/tokenizer.json");
    let tokenizer = Tokenizer::from_file(file).unwrap();
    let json = format!(
        r#"{{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "intermediate_size": 96, "vocab_size": {}, "max_position_embeddings": 1024,
            "rope_theta": 10000.0, "tie_word_embeddings": true}}"#,
        tokenizer.vocab_size()
    );
    Model::random(Config::from_json(json.as_bytes()).unwrap(), 3, Arc::new(tokenizer))
}

#[test]
fn an_exact_answer_is_the_cold_one_whatever_is_kept() {
    let model = model();
    let limits = Limits { step_tokens: 256, step_outputs: MAX_LANES, positions: 1024, pages: 70 };
    let size = Size { limits, rounds: 8, longest_prompt: 800, longest_answer: 70 };
    let make = |limits| -> Box<dyn Device> {
        let options = Options::new(limits);
        Box::new(CpuDevice::new(&model.config, &*model.weights, options).unwrap())
    };
    for seed in 0..3 {
        answers_are_the_cold_ones(&model, &make, &make, size, seed);
    }
}
