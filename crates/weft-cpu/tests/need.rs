//! The device allocates about the memory that it announces.

use std::alloc::System;
use std::sync::{Mutex, PoisonError};

use cap::Cap;
use weft_core::config::Config;
use weft_core::device::Limits;
use weft_core::weights::{Coded, Forms, Quantised, RandomWeights, Weights};
use weft_cpu::{CpuDevice, CpuExperts, Options, need, need_of_experts};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Only one test at a time: they count the same memory.
static ALONE: Mutex<()> = Mutex::new(());

fn config(layers: usize) -> Config {
    let json = format!(
        r#"{{"model_type": "qwen3", "hidden_size": 512, "num_hidden_layers": {layers},
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
            "intermediate_size": 1536, "vocab_size": 8192, "max_position_embeddings": 4096,
            "rope_theta": 10000.0, "tie_word_embeddings": true}}"#
    );
    Config::from_json(json.as_bytes()).unwrap()
}

/// In turn, weights, pages, buffers and the scratch of threads are the largest part.
#[test]
fn a_device_takes_what_it_says() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let limits = Limits { step_tokens: 64, step_outputs: 16, positions: 1024, pages: 32 };
    let cases = [
        ("weights", config(12), limits, 1),
        ("pages", config(1), Limits { pages: 2000, ..limits }, 1),
        ("buffers", config(1), Limits { step_tokens: 8192, step_outputs: 2048, ..limits }, 1),
        ("threads", config(1), Limits { positions: 65_536, ..limits }, 16),
    ];
    for (most, config, limits, threads) in cases {
        let said = need(&config, &Forms::default(), &limits, threads).total();
        let before = ALLOCATOR.allocated();
        let options = Options { threads, ..Options::new(limits).unwrap() };
        let device = CpuDevice::new(&config, &RandomWeights::new(&config, 1), options).unwrap();
        let took = ALLOCATOR.allocated() - before;
        drop(device);
        let ratio = took as f64 / said as f64;
        assert!((0.8..1.25).contains(&ratio), "{most}: took {took} bytes and said {said}");
    }
}

/// The codes of every form take the room that their file has for them, and a little for steps.
#[test]
fn coded_weights_take_what_they_say() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let config = config(4);
    let limits = Limits { step_tokens: 16, step_outputs: 1, positions: 64, pages: 1 };
    for form in weft_testing::forms::all() {
        let weights = Quantised::new(RandomWeights::new(&config, 1), form);
        let said = need(&config, &Forms::of(&weights, &config), &limits, 1);
        let before = ALLOCATOR.allocated();
        let options = Options { threads: 1, ..Options::new(limits).unwrap() };
        let device = CpuDevice::new(&config, &weights, options).unwrap();
        let took = (ALLOCATOR.allocated() - before) as u64 - said.kv - said.scratch;
        drop(device);
        let ratio = took as f64 / said.weights as f64;
        assert!((0.98..1.15).contains(&ratio), "{form:?}: took {took} bytes and said {said:?}");
    }
}

/// A device with experts takes what it says, and so do its experts alone: all but little of a
/// sparse model.
#[test]
fn experts_take_what_they_say() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let json = br#"{"model_type": "qwen3_moe", "hidden_size": 512, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 1536, "num_experts": 16, "num_experts_per_tok": 2,
        "moe_intermediate_size": 256, "norm_topk_prob": true, "vocab_size": 4096,
        "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": true}"#;
    let config = Config::from_json(json).unwrap();
    let limits = Limits { step_tokens: 64, step_outputs: 16, positions: 256, pages: 4 };
    let options = Options { threads: 16, ..Options::new(limits).unwrap() };
    let took = |make: &dyn Fn() -> Box<dyn Send>| {
        let before = ALLOCATOR.allocated();
        let made = make();
        let took = ALLOCATOR.allocated() - before;
        drop(made);
        took as u64
    };
    let int4 = Quantised::new(RandomWeights::new(&config, 1), Coded::int(4));
    let all: [&dyn Weights; 2] = [&RandomWeights::new(&config, 1), &int4];
    for weights in all {
        let forms = Forms::of(weights, &config);
        let whole = need(&config, &forms, &limits, options.threads);
        let device = took(&|| Box::new(CpuDevice::new(&config, weights, options).unwrap()));
        let ratio = device as f64 / whole.total() as f64;
        assert!((0.8..1.25).contains(&ratio), "took {device} bytes and said {whole:?}");
        let alone = need_of_experts(&config, &forms, limits.step_tokens, options.threads);
        let experts = took(&|| Box::new(CpuExperts::new(&config, weights, options).unwrap()));
        let ratio = experts as f64 / alone.total() as f64;
        assert!((0.8..1.25).contains(&ratio), "took {experts} bytes and said {alone:?}");
        assert!(alone.weights < whole.weights && alone.weights > whole.weights / 2);
    }
}
