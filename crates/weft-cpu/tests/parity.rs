//! Compares the CPU device with the reference, op by op, for every instruction set of this machine
//! (or only the one that `WEFT_CPU_ISA` names), and runs the conformance tests of all devices.

use std::path::Path;
use std::sync::Arc;

use half::bf16;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::config::Config;
use weft_core::device::{Device, Inspect, Limits, MAX_LANES};
use weft_core::model::Model;
use weft_core::plan::plan;
use weft_core::reference::Reference;
use weft_core::tokenizer::Tokenizer;
use weft_core::weights::RandomWeights;
use weft_cpu::{CpuDevice, ISA_VARIABLE, Isa, Options};
use weft_testing::conformance;
use weft_testing::drafts;
use weft_testing::exact::{Size, answers_are_the_cold_ones};
use weft_testing::golden::{self, Golden};
use weft_testing::parity::{Layout, Noise, Sizes, compare, shapes, works};
use weft_testing::{LIMITS, Work, config, config_with, poison, span, tokens};

fn available() -> impl Iterator<Item = Isa> {
    let only = std::env::var_os(ISA_VARIABLE).map(|_| Isa::choose().unwrap());
    Isa::ALL.into_iter().filter(move |isa| only.map_or(isa.is_available(), |only| *isa == only))
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

/// The difference that another order of summation makes. The device rounds only where the reference
/// does.
const NOISE: Noise = Noise { sums: 2e-5, weights: 2e-5 };

/// Lanes with old spans of any length, home and position, and new tokens after them.
fn lanes() -> impl Strategy<Value = Vec<Layout>> {
    let old = prop::collection::vec((1_usize..90, 0_usize..200), 0..3);
    prop::collection::vec((old, 1_usize..9), 1..=3)
}

/// Sizes that fill blocks of 64 rows exactly, barely, and beyond; odd widths; every family.
fn sizes() -> impl Strategy<Value = Sizes> {
    (1_usize..90, 1_usize..4, 1_usize..4, 1_usize..36, 1_usize..140, 1_usize..200)
}

#[test]
fn every_op_matches_the_reference() {
    for isa in available() {
        TestRunner::new(Cases::with_cases(24))
            .run(&(shapes(sizes()), lanes(), any::<u32>()), |(config, lanes, seed)| {
                let (mut ours, mut theirs) = (device(&config, isa, 2), reference(&config));
                poison(&mut ours, &config);
                poison(&mut theirs, &config);
                let works = works(&config, &mut theirs, &lanes, seed);
                compare(&config, &mut ours, &mut theirs, &works, NOISE)
            })
            .unwrap_or_else(|error| panic!("{isa}: {error}"));
    }
}

#[test]
fn golden_models_err_no_more_than_transformers() {
    for isa in available() {
        for name in golden::MODELS.into_iter().chain(golden::SPARSE_MODELS) {
            let golden = Golden::open(name);
            let options = Options { limits: LIMITS, threads: 2, isa };
            let mut device = CpuDevice::new(&golden.config, &golden.weights(), options).unwrap();
            golden::errs_no_more_than_transformers(&golden, &mut device);
        }
    }
}

/// Results must not depend on the number of threads.
#[test]
fn threads_do_not_show() {
    let config = config("qwen3");
    let prompt = tokens(70, 1, config.vocab);
    let document = span(0, 70, 0);
    // The number of lanes that read the document together depends on the threads.
    let lane =
        |lane: u32| Work::new(&[lane], 0, vec![document.clone()], span(2 + lane, 1, document.len));
    let lanes: Vec<Work> = (0..5).map(lane).collect();
    let run = |isa: Isa, threads: usize| {
        let mut device = device(&config, isa, threads);
        let logits = weft_testing::run_in_blocks(&mut device, &config, &prompt, &[70], &document);
        let after = weft_testing::run(&mut device, &plan(&config), &lanes);
        let attention: Vec<_> = (0..lanes.len()).map(|lane| device.attention(lane, 0)).collect();
        (logits, after, attention)
    };
    for isa in available() {
        let alone = run(isa, 1);
        assert!((2..5).all(|threads| run(isa, threads) == alone), "{isa}");
    }
}

macro_rules! conforms {
    ($($name:ident($($argument:expr)?);)*) => {
        $(
            #[test]
            fn $name() {
                for isa in available() {
                    println!("{isa}");
                    let make = |config: &Config, limits| -> Box<dyn Inspect> {
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
    // Keys are rounded when they are stored, both at home and at the new position.
    a_row_repaired_in_a_moved_span_equals_one_there(0.05);
    repaired_rows_see_all_before_them(conformance::Unseen::LeftOut);
    lanes_that_share_spans_equal_each_alone();
    a_draft_gives_the_bits_of_single_steps();
    shares_are_the_lane_s_own();
    the_span_with_the_matching_key_gets_the_share();
    rows_come_out_and_go_in_as_they_are();
    rows_copied_elsewhere_give_the_same_bits();
    where_a_page_is_entered_does_not_show();
    a_copied_page_is_the_page();
    pages_that_lanes_share_in_part();
    a_context_in_one_span_shows_no_cut();
    states_show_neither_cuts_nor_neighbours();
    wrong_steps_are_refused();
}

#[test]
fn rope_scalings_are_the_reference_s() {
    let config = config_with(
        "qwen3",
        r#""rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}"#,
    );
    let work = Work::new(&tokens(100, 3, config.vocab), 0, Vec::new(), span(0, 100, 0));
    for isa in available() {
        let (mut ours, mut theirs) = (device(&config, isa, 1), reference(&config));
        compare(&config, &mut ours, &mut theirs, std::slice::from_ref(&work), NOISE).unwrap();
    }
}

/// Calls a test with a model and each instruction set's device, through the whole engine.
fn for_each_engine(test: impl Fn(&Model, Isa, weft_testing::exact::Make<'_>)) {
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
    let config = Config::from_json(json.as_bytes()).unwrap();
    let model = Model::random(config, 3, Arc::new(tokenizer));
    for isa in available() {
        let make = |limits| -> Box<dyn Device> {
            let options = Options { limits, threads: 2, isa };
            Box::new(CpuDevice::new(&model.config, &*model.weights, options).unwrap())
        };
        test(&model, isa, &make);
    }
}

/// More on the path that users have: it takes seconds.
fn seeds(isa: Isa) -> std::ops::Range<u64> {
    0..if isa == Isa::detect() { 3 } else { 1 }
}

#[test]
fn an_exact_answer_is_the_cold_one_whatever_is_kept() {
    let limits = Limits { step_tokens: 256, step_outputs: MAX_LANES, positions: 1024, pages: 70 };
    let size = Size { limits, rounds: 8, longest_prompt: 800, longest_answer: 70 };
    for_each_engine(|model, isa, make| {
        seeds(isa).for_each(|seed| answers_are_the_cold_ones(model, make, make, size, seed));
    });
}

#[test]
fn drafts_change_nothing() {
    let limits = Limits { step_tokens: 256, step_outputs: MAX_LANES, positions: 1024, pages: 160 };
    let size = Size { limits, rounds: 8, longest_prompt: 600, longest_answer: 90 };
    for_each_engine(|model, isa, make| {
        seeds(isa).for_each(|seed| drafts::drafts_change_nothing(model, make, size, seed));
    });
}
