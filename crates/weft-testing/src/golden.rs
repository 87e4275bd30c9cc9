//! The golden models: a folder each, with the results of transformers and of the definition.

use std::path::PathBuf;

use half::bf16;
use safetensors::{Dtype, SafeTensors};
use weft_core::config::Config;
use weft_core::device::{Inspect, Outputs};
use weft_core::weights::Safetensors;

use super::{Work, in_tree, log_softmax, run, span};

/// The models that every device runs.
pub const MODELS: [&str; 4] = ["qwen3", "qwen3_yarn", "qwen2", "llama3"];

/// The mixtures of experts.
pub const SPARSE_MODELS: [&str; 2] = ["qwen3_moe", "qwen3_moe_ties"];

/// Embeddings and relevance of the first tokens of a prompt.
pub struct Retrieval {
    pub lengths: Vec<usize>,
    /// The tokens that count as no and as yes.
    pub answers: [usize; 2],
    file: Vec<u8>,
}

impl Retrieval {
    pub fn of_transformers(&self, name: &str) -> Vec<f32> {
        tensor(&self.file, name)
    }
}

pub struct Golden {
    pub config: Config,
    folder: PathBuf,
    tokens: Vec<u32>,
    values: Vec<u8>,
    ops: Vec<u8>,
}

impl Golden {
    pub fn open(name: &str) -> Self {
        let folder = in_tree("crates/weft-core/tests/golden").join(name);
        let read = |file: &str| std::fs::read(folder.join(file)).unwrap();
        let values = read("golden.safetensors");
        let file = SafeTensors::deserialize(&values).unwrap();
        let tokens = file.tensor("tokens").unwrap().data().as_chunks::<4>().0.to_vec();
        Self {
            config: Config::from_file(&folder.join("config.json")).unwrap(),
            tokens: tokens.into_iter().map(u32::from_le_bytes).collect(),
            ops: read("ops.safetensors"),
            folder,
            values,
        }
    }

    pub fn weights(&self) -> Safetensors {
        Safetensors::open(&self.folder, &self.config).unwrap()
    }

    pub fn work(&self) -> Work {
        Work::new(&self.tokens, 0, Vec::new(), span(2, self.tokens.len(), 0))
    }

    /// The result of transformers.
    pub fn of_transformers(&self, name: &str) -> Vec<f32> {
        tensor(&self.values, name)
    }

    /// The result of the bit-level definition.
    pub fn of_definition(&self, name: &str) -> Vec<f32> {
        tensor(&self.ops, &format!("def.{name}"))
    }

    /// The first tokens of the prompt, a number of them.
    pub fn work_of(&self, n: usize) -> Work {
        let work = Work::new(&self.tokens[..n], 0, Vec::new(), span(2, n, 0));
        Work { outputs: Outputs::Last, ..work }
    }

    /// What transformers reads of the first tokens of the prompt.
    pub fn retrieval(&self) -> Retrieval {
        let file = std::fs::read(self.folder.join("retrieval.safetensors")).unwrap();
        let numbers = |name: &str| {
            let file = SafeTensors::deserialize(&file).unwrap();
            let data = file.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
            data.into_iter().map(|bytes| u32::from_le_bytes(bytes) as usize).collect::<Vec<_>>()
        };
        let (lengths, answers) = (numbers("lengths"), numbers("answers"));
        Retrieval { lengths, answers: [answers[0], answers[1]], file }
    }

    /// The keys and the values on the device for the prompt.
    pub fn stored(&self, device: &dyn Inspect, layer: u16) -> (Vec<f32>, Vec<f32>) {
        let work = self.work();
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for slot in &work.store_at {
            let (k_row, v_row) = device.kv_row(layer, *slot);
            k.extend(k_row);
            v.extend(v_row);
        }
        (k, v)
    }
}

fn tensor(file: &[u8], name: &str) -> Vec<f32> {
    let file = SafeTensors::deserialize(file).unwrap();
    let view = file.tensor(name).unwrap_or_else(|_| panic!("no tensor {name}"));
    match view.dtype() {
        Dtype::F32 => view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::BF16 => {
            view.data().as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
        }
        other => panic!("{name} is {other:?}"),
    }
}

/// Mean and 99th percentile of |Δ logprob| against float32.
fn error(logits: &[f32], float32: &[f32], vocab: usize) -> (f64, f64) {
    let rows = logits.chunks_exact(vocab).zip(float32.chunks_exact(vocab));
    let mut all: Vec<f64> = rows
        .flat_map(|(a, b)| {
            let (a, b) = (log_softmax(a), log_softmax(b));
            a.into_iter().zip(b).map(|(a, b)| (a - b).abs()).collect::<Vec<_>>()
        })
        .collect();
    all.sort_by(f64::total_cmp);
    (all.iter().sum::<f64>() / all.len() as f64, all[all.len() * 99 / 100])
}

/// The error against float32 must not exceed that of transformers' own bf16.
pub fn errs_no_more_than_transformers(golden: &Golden, device: &mut dyn Inspect) {
    let logits = run(device, &weft_core::plan::plan(&golden.config), &[golden.work()]).concat();
    let float32 = golden.of_transformers("f32.logits");
    let vocab = golden.config.vocab;
    let (mean, p99) = error(&logits, &float32, vocab);
    let (their_mean, their_p99) = error(&golden.of_transformers("bf16.logits"), &float32, vocab);
    let name = golden.folder.display();
    println!(
        "{name}: mean {mean:.5} (transformers {their_mean:.5}), p99 {p99:.5} ({their_p99:.5})"
    );
    assert!(mean <= their_mean, "{name}: mean |Δ logprob| {mean} against {their_mean}");
    assert!(p99 <= their_p99, "{name}: p99 |Δ logprob| {p99} against {their_p99}");
}
