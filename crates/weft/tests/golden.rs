//! The reference device against what Hugging Face transformers computes on the same weights, and
//! each bf16 op against the bit-level definition; see `golden/README.md` for the files.

mod common;

use std::path::{Path, PathBuf};

use common::{LIMITS, Work, log_softmax, run, span};
use half::bf16;
use safetensors::{Dtype, SafeTensors};
use weft::config::Config;
use weft::device::{Buffer, Device};
use weft::dtype::Element;
use weft::plan::{Op, plan};
use weft::reference::Reference;
use weft::rope::frequencies;
use weft::weights::Safetensors;

const MODELS: [&str; 4] = ["qwen3", "qwen3_yarn", "qwen2", "llama3"];

/// Float32 noise: how far two orders of summation may lie apart, as a share of the largest value.
const F32_NOISE: f32 = 2e-5;

/// Share of bf16 outputs that another order of summation may round the other way.
const FLIPPED: f64 = 0.01;

struct Golden {
    folder: PathBuf,
    config: Config,
    tokens: Vec<u32>,
    values: Vec<u8>,
    ops: Vec<u8>,
}

impl Golden {
    fn open(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
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

    fn device<E: Element>(&self) -> Reference<E> {
        let weights = Safetensors::open(&self.folder, &self.config).unwrap();
        Reference::new(&self.config, &weights, LIMITS).unwrap()
    }

    fn work(&self) -> Work {
        Work::new(&self.tokens, 0, Vec::new(), span(2, self.tokens.len(), 0))
    }

    /// What transformers computed.
    fn of_transformers(&self, name: &str) -> Vec<f32> {
        tensor(&self.values, name)
    }

    /// What the bit-level definition computes.
    fn of_definition(&self, name: &str) -> Vec<f32> {
        tensor(&self.ops, &format!("def.{name}"))
    }

    /// The keys and the values that the device holds for the prompt.
    fn stored(&self, device: &dyn Device, layer: u16) -> (Vec<f32>, Vec<f32>) {
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

fn assert_f32(what: &str, ours: &[f32], theirs: &[f32]) {
    let size = theirs.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
    let difference = common::max_difference(&ours[..theirs.len()], theirs);
    assert!(difference <= F32_NOISE * size, "{what}: off by {difference}, values up to {size}");
}

/// Nearly all bits equal, the rest one step of bf16 away.
fn assert_bf16(what: &str, ours: &[f32], definition: &[f32]) {
    let ours = &ours[..definition.len()];
    let steps = |value: f32| {
        // bf16 bits as a number that rises with the value.
        let bits = i32::from(bf16::from_f32(value).to_bits() as i16);
        if bits < 0 { i32::from(i16::MIN) - bits } else { bits }
    };
    let apart = ours.iter().zip(definition).map(|(a, b)| (steps(*a) - steps(*b)).abs());
    let flipped = apart.clone().filter(|n| *n > 0).count() as f64 / ours.len() as f64;
    assert!(flipped <= FLIPPED, "{what}: {:.2} % of the values differ", 100.0 * flipped);
    assert!(apart.max() <= Some(1), "{what}: a value is more than one bf16 step off");
}

/// The buffers that an op writes, by their names in the golden files.
fn outputs(op: Op) -> &'static [(Buffer, &'static str, &'static str)] {
    match op {
        Op::Embed => &[(Buffer::X, "embed", "embed.x")],
        Op::NormQkv { .. } => &[
            (Buffer::Q, "norm_qkv.q", "norm_qkv.q"),
            (Buffer::K, "norm_qkv.k", "norm_qkv.k"),
            (Buffer::V, "norm_qkv.v", "norm_qkv.v"),
        ],
        Op::RopeStore { .. } => &[(Buffer::Q, "rope_store.q", "rope_store.q")],
        Op::Attend { .. } => &[(Buffer::A, "attend", "attend.a")],
        Op::ProjAdd { .. } => &[(Buffer::X, "proj_add", "proj_add.x")],
        Op::NormGateUp { .. } => &[(Buffer::H, "norm_gate_up", "norm_gate_up.h")],
        Op::DownAdd { .. } => &[(Buffer::X, "down_add", "down_add.x")],
        Op::NormHead => &[],
    }
}

fn prefixed(op: Op, name: &str) -> String {
    op.layer().map_or(name.to_owned(), |layer| format!("{layer}.{name}"))
}

/// Every op of the first and the last layer, and the logits, in float32.
#[test]
fn float32_matches_transformers_op_by_op() {
    for name in MODELS {
        let golden = Golden::open(name);
        let mut device = golden.device::<f32>();
        let works = [golden.work()];
        let last = golden.config.layers as u16 - 1;
        for op in plan(&golden.config) {
            let logits = run(&mut device, &[op], &works).concat();
            if op == Op::NormHead {
                assert_f32(
                    &format!("{name} logits"),
                    &logits,
                    &golden.of_transformers("f32.logits"),
                );
            }
            if !op.layer().is_none_or(|layer| layer == 0 || layer == last) {
                continue;
            }
            for (buffer, tap, _) in outputs(op) {
                let theirs = golden.of_transformers(&format!("f32.{}", prefixed(op, tap)));
                assert_f32(&format!("{name} {op} {buffer:?}"), &device.read(*buffer), &theirs);
            }
            if let Op::RopeStore { layer } = op {
                let theirs = golden.of_transformers(&format!("f32.{layer}.rope_store.k"));
                assert_f32(&format!("{name} {op} keys"), &golden.stored(&device, layer).0, &theirs);
            }
        }
    }
}

/// Each op alone, on the definition's own inputs: a rounding that is moved shows in every fifth
/// value or more, another order of summation in fewer than one of a hundred.
#[test]
fn bf16_ops_round_where_the_definition_does() {
    for name in MODELS {
        let golden = Golden::open(name);
        let mut device = golden.device::<bf16>();
        let works = [golden.work()];
        for op in plan(&golden.config) {
            let logits = run(&mut device, &[op], &works).concat();
            if op == Op::NormHead {
                assert_f32(&format!("{name} logits"), &logits, &golden.of_definition("logits"));
            }
            for (buffer, _, tap) in outputs(op) {
                let definition = golden.of_definition(&prefixed(op, tap));
                assert_bf16(&format!("{name} {op} {buffer:?}"), &device.read(*buffer), &definition);
                // The next op starts from the definition's values, so that no error travels.
                device.write(*buffer, &definition);
            }
            if let Op::RopeStore { layer } = op {
                let keys = golden.of_definition(&format!("{layer}.rope_store.k"));
                let values = golden.of_definition(&format!("{layer}.norm_qkv.v"));
                let (stored_keys, stored_values) = golden.stored(&device, layer);
                assert_bf16(&format!("{name} {op} keys"), &stored_keys, &keys);
                assert_eq!(stored_values, values, "{name} {op} values");
                store(&mut device, &golden, layer, &keys, &values);
            }
        }
    }
}

fn store(device: &mut dyn Device, golden: &Golden, layer: u16, keys: &[f32], values: &[f32]) {
    let width = golden.config.kv_width();
    let rows = keys.chunks_exact(width).zip(values.chunks_exact(width));
    for (slot, (k, v)) in golden.work().store_at.iter().zip(rows) {
        device.write_kv_row(layer, *slot, k, v);
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

/// The yardstick: the error against float32 is no larger than that of transformers' own bf16.
#[test]
fn bf16_errs_no_more_than_transformers() {
    for name in MODELS {
        let golden = Golden::open(name);
        let ops = plan(&golden.config);
        let logits = run(&mut golden.device::<bf16>(), &ops, &[golden.work()]).concat();
        let float32 = golden.of_transformers("f32.logits");
        let vocab = golden.config.vocab;
        let (mean, p99) = error(&logits, &float32, vocab);
        let (their_mean, their_p99) =
            error(&golden.of_transformers("bf16.logits"), &float32, vocab);
        println!(
            "{name}: mean {mean:.5} (transformers {their_mean:.5}), p99 {p99:.5} ({their_p99:.5})"
        );
        assert!(mean <= their_mean, "{name}: mean |Δ logprob| {mean} against {their_mean}");
        assert!(p99 <= their_p99, "{name}: p99 |Δ logprob| {p99} against {their_p99}");
    }
}

/// The frequencies of every scaling, to a few units in the last place of float32.
#[test]
fn rope_frequencies_match_transformers() {
    for name in MODELS {
        let golden = Golden::open(name);
        let ours = frequencies(&golden.config.rope, golden.config.head_dim);
        for (ours, theirs) in ours.iter().zip(golden.of_definition("inv_freq")) {
            assert!((ours - theirs).abs() <= 1e-6 * theirs, "{name}: {ours} against {theirs}");
        }
    }
}
