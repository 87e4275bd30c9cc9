//! States of last tokens: the same bits for any cut of a prompt and beside any neighbour.

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::device::{Inspect, Lane, Outputs, Step};
use weft_core::plan::{Op, plan};

use super::{FAMILIES, Make, parts, poisoned};
use crate::{Work, config, span, tokens};

/// The state of a prompt that runs in one step and alone equals its state if it runs in blocks,
/// each beside a block of another lane. Asking for states needs no logits.
pub fn states_show_neither_cuts_nor_neighbours(make: Make<'_>) {
    let family = prop::sample::select(&FAMILIES[..]);
    let cases = (1_usize..120, 1_usize..30, any::<u32>(), family, parts());
    TestRunner::new(Cases::with_cases(20))
        .run(&cases, |(n, n_other, seed, family, blocks)| {
            let config = config(family);
            let ops = plan(&config);
            let layers = &ops[..ops.len() - 1];
            let prompt = tokens(n, seed, config.vocab);
            let work = |tokens: &[u32], before: usize, first: u32| {
                let work = Work::new(tokens, before, Vec::new(), span(first, n.max(n_other), 0));
                Work { outputs: Outputs::None, ..work }
            };
            let alone = states(&mut *poisoned(make, &config), layers, &[work(&prompt, 0, 0)]);
            prop_assert_eq!(alone[0].len(), config.hidden);
            prop_assert!(alone[0].iter().all(|value| value.is_finite()));

            let mut device = poisoned(make, &config);
            let other = tokens(n_other, seed ^ 1, config.vocab);
            let (mut start, mut last) = (0, Vec::new());
            for block in blocks {
                let end = (start + block).min(n);
                if start < end {
                    let own = work(&prompt[start..end], start, 0);
                    last = states(&mut *device, layers, &[work(&other, 0, 8), own]).remove(1);
                }
                start = end;
            }
            prop_assert_eq!(&last, &alone[0]);
            Ok(())
        })
        .unwrap();
}

fn states(device: &mut dyn Inspect, layers: &[Op], works: &[Work]) -> Vec<Vec<f32>> {
    let lanes: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
    device.states(layers, &Step { lanes: &lanes }).unwrap()
}
