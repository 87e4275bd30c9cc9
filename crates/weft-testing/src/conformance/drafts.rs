//! Drafts: a lane that runs several tokens of an answer in one step gives, in each output, the bits
//! that steps of one token give.

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::config::Config;
use weft_core::device::{Inspect, Limits, MAX_DRAFT, Span};
use weft_core::plan::plan;

use super::{LIMITS, Make, first_row, marks, poisoned_with};
use crate::{Work, config, fill, fill_before, run, span_from, tokens};

/// Up to eight lanes of two spans, each of two pages or three.
const WIDE: Limits = Limits { pages: 56, ..LIMITS };

/// A lane with an old span, its own rows, and a draft after them.
#[derive(Clone, Debug)]
struct Drafting {
    n_old: usize,
    n_own: usize,
    n_tokens: usize,
    first_rows: [usize; 2],
    marks: Vec<u32>,
}

fn drafting() -> impl Strategy<Value = Drafting> {
    // Many drafts cross the end of a page.
    let n_own = prop_oneof![1_usize..130, 57_usize..65];
    (1_usize..90, n_own, 1..=MAX_DRAFT, [first_row(), first_row()], marks(200)).prop_map(
        |(n_old, n_own, n_tokens, first_rows, marks)| Drafting {
            n_old,
            n_own,
            n_tokens,
            first_rows,
            marks,
        },
    )
}

/// Lanes that share the places of a step, each with a draft or with one token, equal steps of one
/// token of each lane alone, in every output: logits and attention, bit for bit. Rows that the draft
/// leaves behind are overwritten and do not show.
pub fn a_draft_gives_the_bits_of_single_steps(make: Make<'_>) {
    let cases = (prop::collection::vec(drafting(), 1..=MAX_DRAFT), any::<u32>());
    TestRunner::new(Cases::with_cases(24))
        .run(&cases, |(mut lanes, seed)| {
            let config = config("qwen3");
            // Each lane has a token; the first ones take the places that are left.
            let mut places = MAX_DRAFT - lanes.len();
            for lane in &mut lanes {
                lane.n_tokens = lane.n_tokens.min(1 + places);
                places -= lane.n_tokens - 1;
            }
            let works: Vec<Work> =
                lanes.iter().enumerate().map(|(i, lane)| work(i, lane, seed)).collect();
            let mut device = filled(make, &config, &works, seed);
            // A draft that is wrong from its second token on comes first.
            let wrong = |work: &Work| {
                let change = |token: &u32| (token + 1) % config.vocab as u32;
                let tokens = work.tokens[..1].iter().copied();
                let tokens = tokens.chain(work.tokens[1..].iter().map(change)).collect();
                Work { tokens, ..work.clone() }
            };
            run(&mut *device, &plan(&config), &works.iter().map(wrong).collect::<Vec<_>>());
            let together = outputs(&mut *device, &config, &works);
            let mut device = filled(make, &config, &works, seed);
            let singles = works.iter().flat_map(singles);
            let alone: Vec<_> = singles
                .flat_map(|work| outputs(&mut *device, &config, std::slice::from_ref(&work)))
                .collect();
            prop_assert!(together.iter().flat_map(|(l, _)| l).all(|logit| logit.is_finite()));
            prop_assert_eq!(together, alone);
            Ok(())
        })
        .unwrap();
}

/// The logits and the attention of every output.
fn outputs(device: &mut dyn Inspect, config: &Config, works: &[Work]) -> Vec<(Vec<f32>, Vec<f32>)> {
    let logits = run(device, &plan(config), works);
    let places = works
        .iter()
        .enumerate()
        .flat_map(|(lane, work)| (0..=work.last_output()).map(move |output| (lane, output)));
    logits.into_iter().zip(places.map(|(lane, output)| device.attention(lane, output))).collect()
}

/// A device with filled old rows.
fn filled(make: Make<'_>, config: &Config, works: &[Work], seed: u32) -> Box<dyn Inspect> {
    let mut device = poisoned_with(make, config, WIDE);
    for work in works {
        let [old, own] = &work.spans[..] else { panic!("two spans") };
        fill(&mut *device, config, old, seed);
        fill_before(&mut *device, config, own);
        let before = Span { len: own.len - work.tokens.len(), ..own.clone() };
        fill(&mut *device, config, &before, seed ^ 1);
    }
    device
}

fn work(lane: usize, case: &Drafting, seed: u32) -> Work {
    let Drafting { n_old, n_own, n_tokens, first_rows: [first_row, own_first_row], ref marks } =
        *case;
    let page = 7 * lane as u32;
    let old = Span { home_position: 11, ..span_from(page, first_row, n_old, 0) };
    let own = span_from(page + 3, own_first_row, n_own + n_tokens, n_old);
    let drafted = tokens(n_tokens, seed.wrapping_add(page), 101);
    Work { marks: marks.clone(), ..Work::new(&drafted, n_own, vec![old], own) }
}

/// The same tokens in steps of one.
fn singles(work: &Work) -> impl Iterator<Item = Work> + '_ {
    let n = work.tokens.len();
    (0..n).map(move |i| {
        let mut spans = work.spans.clone();
        spans[1].len -= n - 1 - i;
        Work {
            tokens: vec![work.tokens[i]],
            positions: vec![work.positions[i]],
            key_positions: vec![work.key_positions[i]],
            store_at: vec![work.store_at[i]],
            spans,
            ..work.clone()
        }
    })
}
