//! Compares the reference device with Hugging Face transformers on the same weights, and each bf16
//! op with the bit-level definition; see `golden/README.md` for the files.

use half::bf16;
use weft_core::device::{Buffer, Device, Inspect, Step};
use weft_core::dtype::Element;
use weft_core::plan::{Op, plan};
use weft_core::reference::Reference;
use weft_core::retrieval::{Reranker, embedding};
use weft_core::rope::frequencies;
use weft_testing::golden::{Golden, MODELS, SPARSE_MODELS, errs_no_more_than_transformers};
use weft_testing::{LIMITS, run};

/// Maximum float32 difference between two orders of summation, relative to the largest value.
const F32_NOISE: f32 = 2e-5;

/// Maximum share of bf16 outputs that another order of summation rounds differently.
const FLIPPED: f64 = 0.01;

/// Dense and sparse ones.
fn all() -> impl Iterator<Item = &'static str> {
    MODELS.into_iter().chain(SPARSE_MODELS)
}

fn device<E: Element>(golden: &Golden) -> Reference<E> {
    Reference::new(&golden.config, &golden.weights(), LIMITS).unwrap()
}

fn assert_f32(what: &str, ours: &[f32], theirs: &[f32]) {
    let size = theirs.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
    let difference = weft_testing::max_difference(&ours[..theirs.len()], theirs);
    assert!(difference <= F32_NOISE * size, "{what}: off by {difference}, values up to {size}");
}

/// Nearly all bits are equal; the other values differ by one step of bf16.
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
        Op::NormRoute { .. } => &[(Buffer::Routes, "norm_route", "norm_route.routes")],
        // Inside a module of transformers, so that nothing can be recorded.
        Op::ExpertGateUp { .. } => &[(Buffer::ExpertH, "", "expert_gate_up.h")],
        Op::ExpertDownAdd { .. } => &[(Buffer::X, "expert_down_add", "expert_down_add.x")],
        Op::NormHead => &[],
    }
}

fn prefixed(op: Op, name: &str) -> String {
    op.layer().map_or(name.to_owned(), |layer| format!("{layer}.{name}"))
}

/// Every op of the first and the last layer, and the logits, in float32.
#[test]
fn float32_matches_transformers_op_by_op() {
    for name in all() {
        let golden = Golden::open(name);
        let mut device = device::<f32>(&golden);
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
            for (buffer, tap, _) in outputs(op).iter().filter(|(_, tap, _)| !tap.is_empty()) {
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

/// Each op alone, on the definition's inputs. A moved rounding changes every fifth value or more,
/// another order of summation fewer than one in a hundred.
#[test]
fn bf16_ops_round_where_the_definition_does() {
    for name in all() {
        let golden = Golden::open(name);
        let mut device = device::<bf16>(&golden);
        let works = [golden.work()];
        for op in plan(&golden.config) {
            let logits = run(&mut device, &[op], &works).concat();
            if op == Op::NormHead {
                assert_f32(&format!("{name} logits"), &logits, &golden.of_definition("logits"));
            }
            for (buffer, _, tap) in outputs(op) {
                let definition = golden.of_definition(&prefixed(op, tap));
                let (what, ours) = (format!("{name} {op} {buffer:?}"), device.read(*buffer));
                match buffer {
                    Buffer::Routes => assert_f32(&what, &ours, &definition),
                    _ => assert_bf16(&what, &ours, &definition),
                }
                // The next op starts from the definition's values, so that errors do not propagate.
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

fn store(device: &mut dyn Inspect, golden: &Golden, layer: u16, keys: &[f32], values: &[f32]) {
    let width = golden.config.kv_width();
    let rows = keys.chunks_exact(width).zip(values.chunks_exact(width));
    for (slot, (k, v)) in golden.work().store_at.iter().zip(rows) {
        device.write_kv_row(layer, *slot, k, v);
    }
}

#[test]
fn bf16_errs_no_more_than_transformers() {
    for name in all() {
        let golden = Golden::open(name);
        errs_no_more_than_transformers(&golden, &mut device::<bf16>(&golden));
    }
}

/// The embedding and the relevance of prompts of several lengths.
fn read<E: Element>(golden: &Golden) -> (Vec<Vec<f32>>, Vec<f32>) {
    let retrieval = golden.retrieval();
    let ops = plan(&golden.config);
    let one = |n: &usize| {
        let mut device = device::<E>(golden);
        let work = golden.work_of(*n);
        let logits = run(&mut device, &ops, std::slice::from_ref(&work)).remove(0);
        let lanes = [work.lane()];
        let states = device.states(&ops[..ops.len() - 1], &Step { lanes: &lanes }).unwrap();
        let score = Reranker::score(&retrieval.answers.map(|token| logits[token]));
        (embedding(&states[0], None), score)
    };
    retrieval.lengths.iter().map(one).unzip()
}

/// In float32 to the noise of sums; in bf16 as far from float32 as transformers' own bf16.
#[test]
fn embeddings_and_relevance_match_transformers() {
    for name in all() {
        let golden = Golden::open(name);
        let retrieval = golden.retrieval();
        let [f32_embeddings, bf16_embeddings] =
            ["f32.embeddings", "bf16.embeddings"].map(|name| retrieval.of_transformers(name));
        let f32_scores = retrieval.of_transformers("f32.relevance");
        let (embeddings, scores) = read::<f32>(&golden);
        for (ours, theirs) in embeddings.iter().zip(f32_embeddings.chunks(golden.config.hidden)) {
            assert_f32(&format!("{name} embedding"), ours, theirs);
        }
        assert_f32(&format!("{name} relevance"), &scores, &f32_scores);

        let (embeddings, scores) = read::<bf16>(&golden);
        let distance = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
        };
        let (mut ours, mut theirs) = (0.0, 0.0);
        let exact = f32_embeddings.chunks(golden.config.hidden);
        let half = bf16_embeddings.chunks(golden.config.hidden);
        for ((exact, half), own) in exact.zip(half).zip(&embeddings) {
            ours += distance(own, exact);
            theirs += distance(half, exact);
        }
        println!("{name}: embeddings are off by {ours:.4}, transformers' by {theirs:.4}");
        assert!(ours <= 1.5 * theirs, "{name}: {ours} against {theirs}");
        let half = distance(&retrieval.of_transformers("bf16.relevance"), &f32_scores);
        let own = distance(&scores, &f32_scores);
        println!("{name}: relevance is off by {own:.4}, transformers' by {half:.4}");
        assert!(own <= 1.5 * half + 0.01, "{name}: {own} against {half}");
    }
}

/// The frequencies of every scaling, to a few units in the last place of float32.
#[test]
fn rope_frequencies_match_transformers() {
    for name in all() {
        let golden = Golden::open(name);
        let ours = frequencies(&golden.config.rope, golden.config.head_dim);
        for (ours, theirs) in ours.iter().zip(golden.of_definition("inv_freq")) {
            assert!((ours - theirs).abs() <= 1e-6 * theirs, "{name}: {ours} against {theirs}");
        }
    }
}
