//! A device reserves memory for its whole context, and takes it only as rows are used.
#![cfg(target_os = "linux")]

use std::fs;

use weft_core::config::Config;
use weft_core::device::{Device, Limits, PageRows};
use weft_core::dtype::Dtype;
use weft_core::kv::PAGE_ROWS;
use weft_core::weights::RandomWeights;
use weft_cpu::{CpuDevice, Options, need};

const MODEL: &[u8] = br#"{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 128,
    "vocab_size": 128, "max_position_embeddings": 4096, "rope_theta": 10000.0,
    "tie_word_embeddings": true}"#;

/// Bytes of this process in main memory: now, and at most up to now.
fn resident() -> [u64; 2] {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    ["VmRSS:", "VmHWM:"].map(|name| {
        let kilobytes = status.split_once(name).unwrap().1.split_whitespace().next().unwrap();
        kilobytes.parse::<u64>().unwrap() * 1024
    })
}

/// The only test of this program: others would change its memory.
#[test]
fn rows_take_memory_when_they_are_first_used() {
    const PAGES: usize = 2000;
    let config = Config::from_json(MODEL).unwrap();
    let limits = Limits { step_tokens: 4096, step_outputs: 16, positions: 4096, pages: PAGES };
    let reserved = need(&config, &weft_core::weights::Forms::default(), &limits, 1);
    assert!(reserved.kv > 1_000_000_000, "{reserved:?}");
    let [before, _] = resident();
    let options = Options { threads: 1, ..Options::new(limits).unwrap() };
    let mut device = CpuDevice::new(&config, &RandomWeights::new(&config, 1), options).unwrap();
    let [idle, most] = resident();
    let limit = reserved.kv / 20;
    assert!(most - before < limit, "idle: {before} bytes became {idle}, at most {most}");

    // The first half of the pages.
    let pages: Vec<u32> = (0..PAGES as u32 / 2).collect();
    let per_page = PAGE_ROWS as u64 * config.kv_bytes_per_token(Dtype::Bf16) / 2;
    let bytes = vec![1; usize::try_from(per_page).unwrap()];
    for page in &pages {
        let rows = PageRows { pages: std::slice::from_ref(page), first_row: 0, len: PAGE_ROWS };
        device.write_kv(&rows, &bytes, &bytes);
    }
    let [used, _] = resident();
    let half = reserved.kv / 2;
    assert!((half - limit..half + limit).contains(&(used - idle)), "used: {idle} became {used}");
}
