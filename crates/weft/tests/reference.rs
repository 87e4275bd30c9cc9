//! The reference device against itself: what every device must keep.

mod common;

use common::LIMITS;
use common::conformance::{self, Make};
use half::bf16;
use weft::reference::Reference;
use weft::weights::RandomWeights;

const BF16: Make<'_> = &|config| {
    Box::new(Reference::<bf16>::new(config, &RandomWeights::new(config, 7), LIMITS).unwrap())
};
const F32: Make<'_> = &|config| {
    Box::new(Reference::<f32>::new(config, &RandomWeights::new(config, 7), LIMITS).unwrap())
};

#[test]
fn a_prompt_cut_anywhere_gives_the_same_bits() {
    conformance::a_prompt_cut_anywhere_gives_the_same_bits(BF16);
}

#[test]
fn neighbours_do_not_show() {
    conformance::neighbours_do_not_show(BF16);
}

#[test]
fn cuts_between_spans_do_not_show() {
    conformance::cuts_between_spans_do_not_show(BF16);
}

#[test]
fn two_runs_give_the_same_bits() {
    conformance::two_runs_give_the_same_bits(BF16);
}

#[test]
fn a_moved_span_equals_one_prefilled_there() {
    conformance::a_moved_span_equals_one_prefilled_there(F32, 2e-4);
}
