//! Mixtures of experts on the CPU device: both ops against the reference, in every form and on
//! every instruction set of this machine, and bits that show neither cuts nor neighbours.

use half::bf16;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::config::Config;
use weft_core::device::{Buffer, HostExperts, Inspect, Limits};
use weft_core::plan::Op;
use weft_core::reference::Reference;
use weft_core::routing::{Route, from_numbers};
use weft_core::weights::{LayerTensor, Quantised, RandomWeights, Tensor, Weights};
use weft_cpu::{CpuDevice, CpuExperts, ISA_VARIABLE, Isa, Options};
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

/// Experts in main memory, for another device, have the bits of the CPU device's ops; each token
/// alone and beside others.
#[test]
fn experts_alone_compute_the_bits_of_the_device() {
    const N: usize = 7;
    let config = config("qwen3_moe");
    let (hidden, chosen) = (config.hidden, config.experts.as_ref().unwrap().chosen);
    let layer = (0..config.layers as u16).rfind(|layer| config.experts_of(*layer).is_some());
    let layer = layer.unwrap();
    let ops = [Op::ExpertGateUp { layer }, Op::ExpertDownAdd { layer }];
    let tokens = weft_testing::tokens(N, 1, config.vocab);
    let own = weft_testing::span(0, N, 0);
    for (isa, form) in available().flat_map(|isa| forms::all().into_iter().map(move |f| (isa, f))) {
        let weights = Quantised::new(RandomWeights::new(&config, 7), form);
        let options = Options { limits: LIMITS, threads: 2, isa };
        let mut device = CpuDevice::new(&config, &weights, options).unwrap();
        let mut experts = CpuExperts::new(&config, &weights, options).unwrap();
        let before: Vec<Op> =
            weft_core::plan::plan(&config).into_iter().take_while(|op| *op != ops[0]).collect();
        let work = weft_testing::Work::new(&tokens, 0, Vec::new(), own.clone());
        weft_testing::run(&mut device, &before, std::slice::from_ref(&work));
        let x: Vec<bf16> =
            device.read(Buffer::X)[..N * hidden].iter().map(|x| bf16::from_f32(*x)).collect();
        let mut routes = vec![Route::default(); LIMITS.step_tokens * chosen];
        from_numbers(&device.read(Buffer::Routes), chosen, &mut routes);
        weft_testing::run(&mut device, &ops, std::slice::from_ref(&work));
        let expected = device.read(Buffer::X);

        // Rows of another device are padded, and what is between them stays.
        let stride = hidden + 3;
        let mut rows = vec![bf16::NAN; N * stride];
        for (to, from) in rows.chunks_exact_mut(stride).zip(x.chunks_exact(hidden)) {
            to[..hidden].copy_from_slice(from);
        }
        let mut alone = rows.clone();
        experts.add(layer, &mut rows, stride, &routes[..N * chosen]);
        for (row, routes) in alone.chunks_exact_mut(stride).zip(routes.chunks_exact(chosen)) {
            experts.add(layer, row, stride, routes);
        }
        for (token, row) in rows.chunks_exact(stride).enumerate() {
            let ours: Vec<f32> = row[..hidden].iter().map(|x| x.to_f32()).collect();
            assert_eq!(ours, expected[token * hidden..][..hidden], "{isa} {form:?} {token}");
            assert_ne!(ours[..], device_input(&x, token, hidden)[..], "{isa} {form:?} {token}");
            assert!(row[hidden..].iter().all(|x| x.is_nan()), "padding is nobody's");
        }
        let bits = |all: &[bf16]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&alone), bits(&rows), "{isa} {form:?}");
    }
}

/// A token's row before its experts.
fn device_input(x: &[bf16], token: usize, hidden: usize) -> Vec<f32> {
    x[token * hidden..][..hidden].iter().map(|x| x.to_f32()).collect()
}
