//! The conformance tests on the reference device.

use half::bf16;
use weft_core::reference::Reference;
use weft_core::weights::RandomWeights;
use weft_testing::conformance::{self, Make};
use weft_testing::{LIMITS, config_with, run_in_blocks, span, tokens};

const BF16: Make<'_> = &|config, limits| {
    Box::new(Reference::<bf16>::new(config, &RandomWeights::new(config, 7), limits).unwrap())
};
const F32: Make<'_> = &|config, limits| {
    Box::new(Reference::<f32>::new(config, &RandomWeights::new(config, 7), limits).unwrap())
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

#[test]
fn a_row_repaired_in_a_moved_span_equals_one_there() {
    conformance::a_row_repaired_in_a_moved_span_equals_one_there(F32, 2e-5);
}

#[test]
fn repaired_rows_see_all_before_them() {
    conformance::repaired_rows_see_all_before_them(BF16, conformance::Unseen::LeftOut);
}

#[test]
fn lanes_that_share_spans_equal_each_alone() {
    conformance::lanes_that_share_spans_equal_each_alone(BF16);
}

#[test]
fn a_draft_gives_the_bits_of_single_steps() {
    conformance::a_draft_gives_the_bits_of_single_steps(BF16);
}

#[test]
fn shares_are_the_lane_s_own() {
    conformance::shares_are_the_lane_s_own(BF16);
}

#[test]
fn the_span_with_the_matching_key_gets_the_share() {
    conformance::the_span_with_the_matching_key_gets_the_share(BF16);
}

#[test]
fn rows_come_out_and_go_in_as_they_are() {
    conformance::rows_come_out_and_go_in_as_they_are(BF16);
    conformance::rows_come_out_and_go_in_as_they_are(F32);
}

#[test]
fn rows_copied_elsewhere_give_the_same_bits() {
    conformance::rows_copied_elsewhere_give_the_same_bits(BF16);
}

#[test]
fn where_a_page_is_entered_does_not_show() {
    conformance::where_a_page_is_entered_does_not_show(BF16);
}

#[test]
fn a_copied_page_is_the_page() {
    conformance::a_copied_page_is_the_page(BF16);
}

#[test]
fn pages_that_lanes_share_in_part() {
    conformance::pages_that_lanes_share_in_part(BF16);
}

#[test]
fn a_context_in_one_span_shows_no_cut() {
    conformance::a_context_in_one_span_shows_no_cut(BF16);
}

#[test]
fn wrong_steps_are_refused() {
    conformance::wrong_steps_are_refused(BF16);
}

#[test]
fn states_show_neither_cuts_nor_neighbours() {
    conformance::states_show_neither_cuts_nor_neighbours(BF16);
}

/// Devices are compared with the reference; this checks the reference itself.
#[test]
fn the_epsilon_of_a_config_is_used() {
    let logits = |eps: &str| {
        let config = config_with("qwen3", &format!(r#""rms_norm_eps": {eps}"#));
        let mut device = F32(&config, LIMITS);
        let prompt = tokens(4, 1, config.vocab);
        run_in_blocks(&mut *device, &config, &prompt, &[4], &span(0, 4, 0))
    };
    assert_eq!(logits("1e-6"), logits("1e-6"));
    assert_ne!(logits("1e-6"), logits("0.5"));
}
