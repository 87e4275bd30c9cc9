//! How a lane's last token spreads its attention over the lane's spans.

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft::config::Config;
use weft::device::{Buffer, Device, Span};
use weft::plan::{Op, plan};

use super::{Make, poisoned};
use crate::common::{Work, config, fill, run, span, tokens};

/// Shares sum to 1, and are the same bits alone or in a batch.
pub fn shares_are_the_lane_s_own(make: Make<'_>) {
    let cases = (prop::collection::vec((1_usize..90, 1_usize..20), 1..=6), any::<u32>());
    TestRunner::new(Cases::with_cases(20))
        .run(&cases, |(lanes, seed)| {
            let config = config("qwen3");
            let lanes = lanes.iter().enumerate();
            let works: Vec<Work> = lanes.map(|(i, lane)| after_a_span(i, *lane)).collect();
            let together = attention(make, &config, &works, seed);
            for (shares, work) in together.iter().zip(&works) {
                prop_assert_eq!(shares.len(), work.spans.len());
                prop_assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{:?}", shares);
                let alone = attention(make, &config, std::slice::from_ref(work), seed);
                prop_assert_eq!(shares, &alone[0]);
            }
            Ok(())
        })
        .unwrap();
}

/// A lane with new tokens after an old span.
fn after_a_span(lane: usize, (n_old, n_new): (usize, usize)) -> Work {
    let page = 4 * lane as u32;
    let own = span(page + 2, n_new, n_old);
    Work::new(&tokens(n_new, page, 101), 0, vec![span(page, n_old, 0)], own)
}

/// What each lane's last token attended to in a whole run, old spans filled.
fn attention(make: Make<'_>, config: &Config, works: &[Work], seed: u32) -> Vec<Vec<f32>> {
    let mut device = poisoned(make, config);
    works.iter().for_each(|work| fill(&mut *device, config, &work.spans[0], seed));
    run(&mut *device, &plan(config), works);
    (0..works.len()).map(|lane| device.attention(lane)).collect()
}

/// A span that holds the only key that matches the last token's query gets that layer's share: with
/// another such span in each of two layers, half each. Other tokens look elsewhere and do not count.
pub fn the_span_with_the_matching_key_gets_the_share(make: Make<'_>) {
    let config = config("llama");
    let moved = Span { home_position: 300, ..span(2, 30, 70) };
    let new = tokens(5, 1, config.vocab);
    let work = Work::new(&new, 35, vec![span(0, 70, 0), moved], span(3, 40, 100));
    // One device for all: what an earlier run attended to must not show.
    let mut device = poisoned(make, &config);
    let zeros = vec![0.0; config.kv_width()];
    for first in 0..3 {
        for second in 0..3 {
            for (layer, matching) in [first, second].into_iter().enumerate() {
                for (i, span) in work.spans.iter().enumerate() {
                    for row in 0..span.len {
                        let matches = i == matching && row == span.len - 3;
                        let key = if matches { &slow_channel(config.kv_heads) } else { &zeros };
                        device.write_kv_row(layer as u16, span.slot(row), key, &zeros);
                    }
                }
            }
            ask_with_the_last(&mut *device, &config, &work);
            let mut expected = [0.0; 3];
            expected[first] += 0.5;
            expected[second] += 0.5;
            let shares = device.attention(0);
            let close = shares.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4);
            assert!(close && shares.len() == 3, "{shares:?}, not {expected:?}");
        }
    }
}

/// Attends, the last token with a query that matches [`slow_channel`], the others with none.
fn ask_with_the_last(device: &mut dyn Device, config: &Config, work: &Work) {
    let mut queries = vec![0.0; (work.tokens.len() - 1) * config.q_width()];
    queries.extend(slow_channel(config.heads));
    device.write(Buffer::Q, &queries);
    run(device, &[Op::Attend { layer: 0 }, Op::Attend { layer: 1 }], std::slice::from_ref(work));
}

/// Heads of 10 that are all in the pair of channels that turns slowest, so that rotation within a
/// test's positions hardly shows: two of them score 126.
fn slow_channel(heads: usize) -> Vec<f32> {
    [0.0, 0.0, 0.0, 0.0, 20.0, 0.0, 0.0, 0.0, 0.0, 0.0].repeat(heads)
}
