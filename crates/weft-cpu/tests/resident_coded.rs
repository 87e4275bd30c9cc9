//! A device with coded weights takes the memory of their codes, also while it loads.
#![cfg(target_os = "linux")]

use std::fs;

use weft_core::config::Config;
use weft_core::device::Limits;
use weft_core::weights::{Forms, Quantised, RandomWeights};
use weft_cpu::{CpuDevice, Options, need};

/// The embedding is a third of the model, as in small models, and takes 19 MB in 4 bits.
const MODEL: &[u8] = br#"{"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
    "vocab_size": 32768, "max_position_embeddings": 4096, "rope_theta": 10000.0,
    "tie_word_embeddings": true}"#;

/// The most memory that this process had so far.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let kilobytes = status.split_once("VmHWM:").unwrap().1.split_whitespace().next().unwrap();
    kilobytes.parse::<u64>().unwrap() * 1024
}

/// The only test of this program: others would change its memory.
#[test]
fn loading_takes_no_more_than_the_codes() {
    let config = Config::from_json(MODEL).unwrap();
    let form = weft_testing::forms::all().into_iter().find(|form| form.code.bits() == 4).unwrap();
    let weights = Quantised::new(RandomWeights::new(&config, 1), form);
    let limits = Limits { step_tokens: 64, step_outputs: 1, positions: 512, pages: 8 };
    let need = need(&config, &Forms::of(&weights, &config), &limits, 2);
    let before = peak();
    let options = Options { threads: 2, ..Options::new(limits).unwrap() };
    let device = CpuDevice::new(&config, &weights, options).unwrap();
    let took = peak() - before;
    drop(device);
    // Rows on their way, and the program itself. A second copy of the embedding would not fit.
    let spare = 12_000_000;
    assert!(took >= need.weights, "{took} bytes for {need:?}");
    assert!(took <= need.weights + need.scratch + spare, "{took} bytes for {need:?}");
}
