//! The CPU device against the reference, op by op, for every instruction set this machine has; and
//! what every device must keep.

#[path = "../../weft/tests/common/mod.rs"]
mod common;

use common::conformance;
use common::golden::{self, Golden};
use common::{LIMITS, Work, config, config_with, fill, poison, span, tokens};
use half::bf16;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft::config::Config;
use weft::device::{Buffer, Device, Lane, Limits, Outputs, Span, Step};
use weft::plan::{Op, plan};
use weft::reference::Reference;
use weft::weights::RandomWeights;
use weft_cpu::{CpuDevice, Isa, Options};

fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

fn device(config: &Config, isa: Isa, threads: usize) -> CpuDevice {
    device_with(config, LIMITS, isa, threads)
}

fn device_with(config: &Config, limits: Limits, isa: Isa, threads: usize) -> CpuDevice {
    let options = Options { limits, threads, isa };
    CpuDevice::new(config, &RandomWeights::new(config, 7), options).unwrap()
}

fn reference(config: &Config) -> Reference<bf16> {
    Reference::new(config, &RandomWeights::new(config, 7), LIMITS).unwrap()
}

const BUFFERS: [Buffer; 6] = [Buffer::X, Buffer::Q, Buffer::K, Buffer::V, Buffer::A, Buffer::H];

/// One step of bf16 (2⁻⁷ of the value at most), and the noise of another order of summation.
fn assert_close(what: &str, ours: &[f32], reference: &[f32]) -> Result<(), TestCaseError> {
    let size = reference.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
    for (i, (a, b)) in ours.iter().zip(reference).enumerate() {
        let bound = b.abs() / 128.0 + 2e-5 * size;
        prop_assert!((a - b).abs() <= bound, "{what}[{i}]: {a} against {b}");
    }
    Ok(())
}

/// Probabilities are never rounded: what is left is another order of summation and another `exp`.
fn assert_shares_close(ours: &[f32], reference: &[f32]) -> Result<(), TestCaseError> {
    prop_assert_eq!(ours.len(), reference.len());
    for (a, b) in ours.iter().zip(reference) {
        prop_assert!((a - b).abs() <= 1e-4, "{ours:?} against {reference:?}");
    }
    Ok(())
}

/// Runs the plan on both, each op on the reference's own inputs, and compares what it wrote.
fn compare(
    config: &Config,
    ours: &mut dyn Device,
    theirs: &mut dyn Device,
    works: &[Work],
) -> Result<(), TestCaseError> {
    let lanes: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
    let step = Step { lanes: &lanes };
    for op in plan(config) {
        for buffer in BUFFERS {
            ours.write(buffer, &theirs.read(buffer));
        }
        if let Op::Attend { layer } = op {
            copy_rows(ours, theirs, works, layer);
        }
        ours.run(&[op], &step).unwrap();
        theirs.run(&[op], &step).unwrap();
        for buffer in BUFFERS {
            let n = match buffer {
                Buffer::X => config.hidden,
                Buffer::Q | Buffer::A => config.q_width(),
                Buffer::K | Buffer::V => config.kv_width(),
                Buffer::H => config.intermediate,
            } * step.n_tokens();
            let what = format!("{op} {buffer:?}");
            assert_close(&what, &ours.read(buffer)[..n], &theirs.read(buffer)[..n])?;
        }
        if let Op::Attend { .. } = op {
            for lane in 0..works.len() {
                assert_shares_close(&ours.attention(lane), &theirs.attention(lane))?;
            }
        }
        if let Op::RopeStore { layer } = op {
            for slot in works.iter().flat_map(|work| &work.store_at) {
                let (ours, theirs) = (ours.kv_row(layer, *slot), theirs.kv_row(layer, *slot));
                assert_close(&format!("{op} keys"), &ours.0, &theirs.0)?;
                prop_assert_eq!(ours.1, theirs.1);
            }
        }
    }
    for output in 0..step.n_outputs() {
        assert_close("logits", ours.logits(output), theirs.logits(output))?;
    }
    Ok(())
}

/// Gives our device the reference's keys and values in all rows the lanes see.
fn copy_rows(ours: &mut dyn Device, theirs: &dyn Device, works: &[Work], layer: u16) {
    for span in works.iter().flat_map(|work| &work.spans) {
        for slot in (0..span.len).map(|row| span.slot(row)) {
            let (k, v) = theirs.kv_row(layer, slot);
            ours.write_kv_row(layer, slot, &k, &v);
        }
    }
}

/// Lanes with old spans of any length, home (so, moved by any shift) and position, and new tokens after them.
fn lanes() -> impl Strategy<Value = Vec<(Vec<(usize, usize)>, usize)>> {
    let old = prop::collection::vec((1_usize..90, 0_usize..200), 0..3);
    prop::collection::vec((old, 1_usize..9), 1..=3)
}

/// Turns them into work; old rows hold numbers of ordinary size, all else stays poisoned.
fn works(
    config: &Config,
    theirs: &mut dyn Device,
    lanes: &[(Vec<(usize, usize)>, usize)],
    seed: u32,
) -> Vec<Work> {
    let mut page = 0;
    let mut take = |rows: usize, position: usize| {
        let span = span(page, rows, position);
        page += span.pages.len() as u32;
        span
    };
    let mut works = Vec::new();
    for (lane, (old, n_new)) in lanes.iter().enumerate() {
        let mut position = 0;
        let mut left = Vec::new();
        for (rows, home) in old {
            let placed = Span { home_position: *home, ..take(*rows, position) };
            fill(theirs, config, &placed, seed);
            position += rows;
            left.push(placed);
        }
        let new = tokens(*n_new, seed.wrapping_add(lane as u32), config.vocab);
        let outputs = [Outputs::Last, Outputs::All, Outputs::None][lane];
        works.push(Work { outputs, ..Work::new(&new, 0, left, take(*n_new, position)) });
    }
    works
}

/// Shapes that fill blocks of 64 rows exactly, hardly, and over; odd widths; every family.
fn shapes() -> impl Strategy<Value = Config> {
    let family = prop::sample::select(vec!["qwen3", "qwen2", "llama"]);
    let sizes = (1_usize..90, 1_usize..4, 1_usize..4, 1_usize..36, 1_usize..140, 1_usize..200);
    (family, sizes).prop_map(|(family, (hidden, kv_heads, group, half, inter, vocab))| {
        let json = format!(
            r#"{{"model_type": "{family}", "hidden_size": {hidden}, "num_hidden_layers": 1,
                "num_attention_heads": {}, "num_key_value_heads": {kv_heads}, "head_dim": {},
                "intermediate_size": {inter}, "vocab_size": {vocab}, "rope_theta": 10000.0,
                "max_position_embeddings": 512, "tie_word_embeddings": {}}}"#,
            kv_heads * group,
            2 * half,
            vocab % 2 == 0
        );
        Config::from_json(json.as_bytes()).unwrap()
    })
}

#[test]
fn every_op_matches_the_reference() {
    for isa in available() {
        TestRunner::new(Cases::with_cases(24))
            .run(&(shapes(), lanes(), any::<u32>()), |(config, lanes, seed)| {
                let (mut ours, mut theirs) = (device(&config, isa, 2), reference(&config));
                poison(&mut ours, &config);
                poison(&mut theirs, &config);
                let works = works(&config, &mut theirs, &lanes, seed);
                compare(&config, &mut ours, &mut theirs, &works)
            })
            .unwrap_or_else(|error| panic!("{isa}: {error}"));
    }
}

#[test]
fn golden_models_err_no_more_than_transformers() {
    for isa in available() {
        for name in golden::MODELS {
            let golden = Golden::open(name);
            let options = Options { limits: LIMITS, threads: 2, isa };
            let mut device = CpuDevice::new(&golden.config, &golden.weights(), options).unwrap();
            golden::errs_no_more_than_transformers(&golden, &mut device);
        }
    }
}

/// The number of threads decides who computes, never what.
#[test]
fn threads_do_not_show() {
    let config = config("qwen3");
    let prompt = tokens(70, 1, config.vocab);
    let document = span(0, 70, 0);
    // How many lanes read the document together depends on the threads.
    let lane =
        |lane: u32| Work::new(&[lane], 0, vec![document.clone()], span(2 + lane, 1, document.len));
    let lanes: Vec<Work> = (0..5).map(lane).collect();
    let run = |threads: usize| {
        let mut device = device(&config, Isa::detect(), threads);
        let logits = common::run_in_blocks(&mut device, &config, &prompt, &[70], &document);
        let after = common::run(&mut device, &plan(&config), &lanes);
        let attention: Vec<_> = (0..lanes.len()).map(|lane| device.attention(lane)).collect();
        (logits, after, attention)
    };
    let alone = run(1);
    assert!((2..5).all(|threads| run(threads) == alone));
}

macro_rules! conforms {
    ($($name:ident($($argument:expr)?);)*) => {
        $(
            #[test]
            fn $name() {
                for isa in available() {
                    println!("{isa}");
                    let make = |config: &Config, limits| -> Box<dyn Device> {
                        Box::new(device_with(config, limits, isa, 2))
                    };
                    conformance::$name(&make $(, $argument)?);
                }
            }
        )*
    };
}

conforms! {
    a_prompt_cut_anywhere_gives_the_same_bits();
    neighbours_do_not_show();
    cuts_between_spans_do_not_show();
    two_runs_give_the_same_bits();
    // Keys are rounded where they are stored, at home and there.
    a_row_repaired_in_a_moved_span_equals_one_there(0.05);
    repaired_rows_see_all_before_them(conformance::Unseen::LeftOut);
    lanes_that_share_spans_equal_each_alone();
    shares_are_the_lane_s_own();
    the_span_with_the_matching_key_gets_the_share();
    rows_come_out_and_go_in_as_they_are();
    rows_copied_elsewhere_give_the_same_bits();
    a_copied_page_is_the_page();
}

#[test]
fn rope_scalings_are_the_reference_s() {
    let config = config_with(
        "qwen3",
        r#""rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}"#,
    );
    let (mut ours, mut theirs) = (device(&config, Isa::detect(), 1), reference(&config));
    let work = Work::new(&tokens(100, 3, config.vocab), 0, Vec::new(), span(0, 100, 0));
    compare(&config, &mut ours, &mut theirs, &[work]).unwrap();
}
