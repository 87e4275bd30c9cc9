//! Compares coded weights on the CPU device with the reference, for every form and every
//! instruction set of this machine, and checks that bits do not depend on neighbours or cuts.

use std::fs;
use std::path::Path;

use half::bf16;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::config::Config;
use weft_core::device::Inspect;
use weft_core::reference::Reference;
use weft_core::weights::{Coded, Quantised, RandomWeights, Safetensors};
use weft_cpu::{CpuDevice, ISA_VARIABLE, Isa, Options};
use weft_testing::parity::{Layout, Noise, Sizes, compare, shapes, works};
use weft_testing::{LIMITS, conformance, forms, poison};

fn available() -> impl Iterator<Item = Isa> {
    let only = std::env::var_os(ISA_VARIABLE).map(|_| Isa::choose().unwrap());
    Isa::ALL.into_iter().filter(move |isa| only.map_or(isa.is_available(), |only| *isa == only))
}

fn weights(config: &Config, form: Coded) -> Quantised<RandomWeights> {
    Quantised::new(RandomWeights::new(config, 7), form)
}

fn lanes() -> impl Strategy<Value = Vec<Layout>> {
    let old = prop::collection::vec((1_usize..90, 0_usize..200), 0..3);
    prop::collection::vec((old, 1_usize..9), 1..=3)
}

/// Sizes that fill runs of 32 columns and blocks of 64 rows exactly, barely, and beyond.
fn sizes() -> impl Strategy<Value = Sizes> {
    (1_usize..90, 1_usize..4, 1_usize..4, 1_usize..36, 1_usize..300, 1_usize..200)
}

/// Sums of codes are larger than the weights that they stand for.
const NOISE: Noise = Noise { sums: 4e-5, weights: 4e-5 };

#[test]
fn every_form_matches_the_reference() {
    for isa in available() {
        for form in forms::all() {
            TestRunner::new(Cases::with_cases(4))
                .run(&(shapes(sizes()), lanes(), any::<u32>()), |(config, lanes, seed)| {
                    let weights = weights(&config, form);
                    let options = Options { limits: LIMITS, threads: 2, isa };
                    let mut ours = CpuDevice::new(&config, &weights, options).unwrap();
                    let mut theirs = Reference::<bf16>::new(&config, &weights, LIMITS).unwrap();
                    poison(&mut ours, &config);
                    poison(&mut theirs, &config);
                    let works = works(&config, &mut theirs, &lanes, seed);
                    compare(&config, &mut ours, &mut theirs, &works, NOISE)
                })
                .unwrap_or_else(|error| panic!("{isa} {form:?}: {error}"));
        }
    }
}

/// Files that other tools packed: their forms differ from one matrix to the next.
#[test]
fn packed_models_match_the_reference() {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weft-core/tests/packed");
    for entry in fs::read_dir(packed).unwrap() {
        let folder = entry.unwrap().path();
        let config = Config::from_file(&folder.join("config.json")).unwrap();
        let weights = Safetensors::open(&folder, &config).unwrap();
        for isa in available() {
            let options = Options { limits: LIMITS, threads: 2, isa };
            let mut ours = CpuDevice::new(&config, &weights, options).unwrap();
            let mut theirs = Reference::<bf16>::new(&config, &weights, LIMITS).unwrap();
            let works = works(&config, &mut theirs, &[(vec![(7, 3)], 5), (vec![], 1)], 11);
            compare(&config, &mut ours, &mut theirs, &works, NOISE)
                .unwrap_or_else(|error| panic!("{} {isa}: {error}", folder.display()));
        }
    }
}

#[test]
fn bits_depend_neither_on_neighbours_nor_on_cuts() {
    for isa in available() {
        for form in forms::all() {
            println!("{isa} {form:?}");
            let make = |config: &Config, limits| -> Box<dyn Inspect> {
                let options = Options { limits, threads: 2, isa };
                Box::new(CpuDevice::new(config, &weights(config, form), options).unwrap())
            };
            conformance::a_prompt_cut_anywhere_gives_the_same_bits(&make);
            conformance::neighbours_do_not_show(&make);
        }
    }
}
