//! The attention of a lane's last token to the stretches between the lane's marks.

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::config::Config;
use weft_core::device::{Buffer, Inspect, Limits, MAX_MARKS, Span};
use weft_core::plan::Op;

use super::{LIMITS, Make, Results, first_row, marks, poisoned, poisoned_with, results};
use crate::{Work, config, fill, fill_before, run, span, span_from, tokens};

/// Two spans of two pages for each lane, plus one page if they start late in a page.
const WIDE: Limits = Limits { pages: 32, ..LIMITS };

#[derive(Clone, Debug)]
struct LaneCase {
    n_old: usize,
    n_new: usize,
    first_rows: [usize; 2],
    marks: Vec<u32>,
}

fn lane_case() -> impl Strategy<Value = LaneCase> {
    // Some marks are beyond the visible rows.
    (1_usize..90, 1_usize..20, [first_row(), first_row()], marks(160))
        .prop_map(|(n_old, n_new, first_rows, marks)| LaneCase { n_old, n_new, first_rows, marks })
}

/// Shares sum to 1, equal the attention to the rows between the marks, and have the same bits alone
/// or in a batch. Marks change nothing else.
pub fn shares_are_the_lane_s_own(make: Make<'_>) {
    let cases = (prop::collection::vec(lane_case(), 1..=6), any::<u32>());
    TestRunner::new(Cases::with_cases(20))
        .run(&cases, |(lanes, seed)| {
            let config = config("qwen3");
            let lanes = lanes.iter().enumerate();
            let works: Vec<Work> = lanes.map(|(i, lane)| after_a_span(i, lane)).collect();
            let (logits, together) = run_filled(make, &config, &works, seed);
            // The maximum number of marks: the share of each position.
            let all: Vec<u32> = (1..=MAX_MARKS as u32).collect();
            let marked = |work: &Work| Work { marks: all.clone(), ..work.clone() };
            let marked: Vec<Work> = works.iter().map(marked).collect();
            let (logits_marked, of_positions) = run_filled(make, &config, &marked, seed);
            prop_assert_eq!(logits, logits_marked);
            for ((shares, work), of_positions) in together.iter().zip(&works).zip(of_positions) {
                prop_assert_eq!(shares.len(), work.marks.len() + 1);
                prop_assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{:?}", shares);
                let starts = [0].into_iter().chain(work.marks.iter().map(|mark| *mark as usize));
                let ends = work.marks.iter().map(|mark| *mark as usize).chain([MAX_MARKS + 1]);
                let last = work.positions[work.positions.len() - 1] as usize;
                for ((share, start), end) in shares.iter().zip(starts).zip(ends) {
                    let sum: f32 = of_positions[start..end].iter().sum();
                    prop_assert!((share - sum).abs() < 1e-5, "{start}..{end}: {share}, not {sum}");
                    prop_assert!(start <= last || *share == 0.0, "{start} is not seen: {share}");
                }
                let alone = run_filled(make, &config, std::slice::from_ref(work), seed);
                prop_assert_eq!(shares, &alone.1[0]);
            }
            Ok(())
        })
        .unwrap();
}

/// A lane with new tokens after an old span.
fn after_a_span(lane: usize, case: &LaneCase) -> Work {
    let LaneCase { n_old, n_new, first_rows: [first_row, own_first_row], ref marks } = *case;
    let page = 5 * lane as u32;
    let old = span_from(page, first_row, n_old, 0);
    let own = span_from(page + 3, own_first_row, n_new, n_old);
    let marks = marks.clone();
    Work { marks, ..Work::new(&tokens(n_new, page, 101), 0, vec![old], own) }
}

/// A whole run with filled old spans.
fn run_filled(make: Make<'_>, config: &Config, works: &[Work], seed: u32) -> Results {
    let mut device = poisoned_with(make, config, WIDE);
    for work in works {
        fill(&mut *device, config, &work.spans[0], seed);
        fill_before(&mut *device, config, &work.spans[1]);
    }
    results(&mut *device, config, works)
}

/// The stretch with the only key that matches the last token's query gets that layer's share. With
/// one such stretch in each of two layers, each gets half. Queries of other tokens match other keys
/// and do not count.
pub fn the_span_with_the_matching_key_gets_the_share(make: Make<'_>) {
    let config = config("llama");
    let moved = Span { home_position: 300, ..span_from(2, 50, 30, 70) };
    let new = tokens(5, 1, config.vocab);
    let by_span = Work::new(&new, 35, vec![span(0, 70, 0), moved], span_from(4, 7, 40, 100));
    // Inside a page, at the end of a page or span, one row long, and never visible.
    let anywhere = Work { marks: vec![1, 37, 64, 67, 68, 70, 84, 99, 137, 140], ..by_span.clone() };
    let without = Work { marks: Vec::new(), ..by_span.clone() };
    // One device for all runs: attention of an earlier run must not count.
    let mut device = poisoned(make, &config);
    for (work, positions) in [
        (&by_span, &[67, 97, 137][..]),
        (&anywhere, &[0, 36, 37, 63, 64, 67, 69, 70, 84, 99, 136, 138, 139]),
        (&without, &[0, 97]),
    ] {
        for first in positions {
            for second in positions {
                write_matching_keys(&mut *device, &config, work, [*first, *second]);
                ask_with_the_last(&mut *device, &config, work);
                let mut expected = vec![0.0; work.marks.len() + 1];
                for position in [first, second] {
                    expected[work.marks.partition_point(|mark| mark <= position)] += 0.5;
                }
                let shares = device.attention(0, work.last_output());
                let close = shares.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4);
                let is_all = shares.len() == expected.len();
                assert!(close && is_all, "{first} and {second}: {shares:?}, not {expected:?}");
            }
        }
    }
}

/// Gives a lane one key in each of two layers that matches the query of [`ask_with_the_last`]. Rows
/// before its spans match too, but do not belong to it.
fn write_matching_keys(device: &mut dyn Inspect, config: &Config, work: &Work, at: [u32; 2]) {
    let (zeros, matching) = (vec![0.0; config.kv_width()], slow_channel(config.kv_heads));
    for (layer, position) in at.into_iter().enumerate() {
        for span in &work.spans {
            for slot in (1..=span.first_row as u32).map(|before| span.slot(0) - before) {
                device.write_kv_row(layer as u16, slot, &matching, &zeros);
            }
            for row in 0..span.len {
                let matches = span.position + row == position as usize;
                let key = if matches { &matching } else { &zeros };
                device.write_kv_row(layer as u16, span.slot(row), key, &zeros);
            }
        }
    }
}

/// Runs `attend`. The last token's query matches [`slow_channel`], those of the others match no
/// key.
fn ask_with_the_last(device: &mut dyn Inspect, config: &Config, work: &Work) {
    let mut queries = vec![0.0; (work.tokens.len() - 1) * config.q_width()];
    queries.extend(slow_channel(config.heads));
    device.write(Buffer::Q, &queries);
    run(device, &[Op::Attend { layer: 0 }, Op::Attend { layer: 1 }], std::slice::from_ref(work));
}

/// Heads of value 10 in the pair of channels that rotates slowest, so that rotation within a test's
/// positions has little effect: two of them score 126.
fn slow_channel(heads: usize) -> Vec<f32> {
    [0.0, 0.0, 0.0, 0.0, 20.0, 0.0, 0.0, 0.0, 0.0, 0.0].repeat(heads)
}
