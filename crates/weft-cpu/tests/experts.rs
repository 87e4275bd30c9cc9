//! Mixtures of experts on the CPU device: both ops against the reference, in every form and on
//! every instruction set of this machine, and bits that show neither cuts nor neighbours.

use half::bf16;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::config::Config;
use weft_core::device::{Inspect, Limits};
use weft_core::reference::Reference;
use weft_core::weights::{LayerTensor, Quantised, RandomWeights, Tensor, Weights};
use weft_cpu::{CpuDevice, ISA_VARIABLE, Isa, Options};
use weft_testing::conformance::{
    experts_show_neither_cuts_nor_neighbours, laid_routes_match_the_reference,
    ties_go_to_the_lower_index,
};
use weft_testing::forms::{self, Mixed};
use weft_testing::parity::{Layout, Noise, Sizes, compare, sparse_shapes, works};
use weft_testing::{LIMITS, config, poison};

fn available() -> impl Iterator<Item = Isa> {
    let only = std::env::var_os(ISA_VARIABLE).map(|_| Isa::choose().unwrap());
    Isa::ALL.into_iter().filter(move |isa| only.map_or(isa.is_available(), |only| *isa == only))
}

fn device(isa: Isa, config: &Config, weights: &dyn Weights, limits: Limits) -> Box<dyn Inspect> {
    let options = Options { limits, threads: 2, isa };
    Box::new(CpuDevice::new(config, weights, options).unwrap())
}

/// Sums of codes are larger than the weights that they stand for.
const NOISE: Noise = Noise { sums: 4e-5, weights: 4e-5 };

fn lanes() -> impl Strategy<Value = Vec<Layout>> {
    let old = prop::collection::vec((1_usize..90, 0_usize..200), 0..3);
    prop::collection::vec((old, 1_usize..9), 1..=3)
}

/// Sizes that fill runs of 32 columns and blocks of 64 rows exactly, barely, and beyond.
fn sizes() -> impl Strategy<Value = Sizes> {
    (1_usize..140, 1_usize..3, 1_usize..3, 1_usize..20, 1_usize..140, 1_usize..100)
}

#[test]
fn every_op_matches_the_reference() {
    for isa in available() {
        TestRunner::new(Cases::with_cases(16))
            .run(&(sparse_shapes(sizes()), lanes(), any::<u32>()), |(config, lanes, seed)| {
                let weights = RandomWeights::new(&config, 7);
                let mut ours = device(isa, &config, &weights, LIMITS);
                let mut theirs = Reference::<bf16>::new(&config, &weights, LIMITS).unwrap();
                poison(&mut *ours, &config);
                poison(&mut theirs, &config);
                let works = works(&config, &mut theirs, &lanes, seed);
                compare(&config, &mut *ours, &mut theirs, &works, NOISE)
            })
            .unwrap_or_else(|error| panic!("{isa}: {error}"));
    }
}

#[test]
fn chosen_experts_match_the_reference_in_every_form() {
    let config = config("qwen3_moe");
    for isa in available() {
        let make =
            |config: &Config, weights: &dyn Weights, limits| device(isa, config, weights, limits);
        laid_routes_match_the_reference(&make, &RandomWeights::new(&config, 7), NOISE);
        for form in forms::all() {
            println!("{isa} {form:?}");
            let weights = Quantised::new(RandomWeights::new(&config, 7), form);
            laid_routes_match_the_reference(&make, &weights, NOISE);
        }
        // Gate and up of different forms.
        let which = |tensor: Tensor| match tensor {
            Tensor::Layer(_, LayerTensor::ExpertGate) => Some(0),
            Tensor::Layer(_, LayerTensor::ExpertUp) => Some(5),
            _ => None,
        };
        let mixed = Mixed::new(&config, &forms::all(), which);
        laid_routes_match_the_reference(&make, &mixed, NOISE);
        ties_go_to_the_lower_index(&make);
    }
}

#[test]
fn bits_show_neither_cuts_nor_neighbours() {
    for isa in available() {
        let plain =
            |config: &Config, limits| device(isa, config, &RandomWeights::new(config, 7), limits);
        experts_show_neither_cuts_nor_neighbours(&plain);
        for form in forms::all() {
            println!("{isa} {form:?}");
            let coded = |config: &Config, limits| {
                let weights = Quantised::new(RandomWeights::new(config, 7), form);
                device(isa, config, &weights, limits)
            };
            experts_show_neither_cuts_nor_neighbours(&coded);
        }
    }
}

/// Results must not depend on the number of threads.
#[test]
fn threads_do_not_show() {
    let config = config("qwen3_moe");
    let prompt = weft_testing::tokens(70, 1, config.vocab);
    for isa in available() {
        let run = |threads| {
            let options = Options { limits: LIMITS, threads, isa };
            let weights = RandomWeights::new(&config, 7);
            let mut device = CpuDevice::new(&config, &weights, options).unwrap();
            let own = weft_testing::span(0, 70, 0);
            weft_testing::run_in_blocks(&mut device, &config, &prompt, &[50, 1, 19], &own)
        };
        let alone = run(1);
        assert!((2..5).all(|threads| run(threads) == alone), "{isa}");
    }
}
