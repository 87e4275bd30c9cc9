//! Contexts of one span each, and page tables that share their first pages.

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::config::Config;
use weft_core::device::{Inspect, Limits, Outputs, Span};
use weft_core::kv::{PAGE_ROWS, PageId, pages_for};

use super::{Make, Results, first_row, marks, poisoned_with, results};
use crate::{Work, config, fill_before, fill_rows, poison, tokens};

/// Page tables of eight lanes that share little; prompts of several pages in one step.
const WIDE: Limits = Limits { step_tokens: 400, step_outputs: 400, positions: 900, pages: 48 };

/// A lane whose table starts with that of an earlier one.
#[derive(Clone, Debug)]
struct Branch {
    /// The index of that lane, and the number of shared rows.
    of: prop::sample::Index,
    at: Place,
    /// Its own rows after them, and new tokens.
    n_old: usize,
    n_new: usize,
    /// The tokens' distance before their rows: they do not see all shared rows.
    back: usize,
    marks: Vec<u32>,
}

/// Where a lane's table diverges from another.
#[derive(Clone, Copy, Debug)]
enum Place {
    Anywhere(prop::sample::Index),
    /// At the end of one of its pages.
    EndOfPage(prop::sample::Index),
    /// After its last row.
    End,
}

fn branch() -> impl Strategy<Value = Branch> {
    let at = prop_oneof![
        any::<prop::sample::Index>().prop_map(Place::Anywhere),
        any::<prop::sample::Index>().prop_map(Place::EndOfPage),
        Just(Place::End),
    ];
    let back = prop_oneof![4 => Just(0), 1 => 1_usize..150];
    (any::<prop::sample::Index>(), at, 0_usize..80, 1_usize..9, back, marks(400)).prop_map(
        |(of, at, n_old, n_new, back, marks)| Branch { of, at, n_old, n_new, back, marks },
    )
}

/// Old rows of a lane before its new tokens, and the pages of both.
struct Context {
    span: Span,
    n_old: usize,
}

/// Lanes of one span each share their first pages. They diverge at the end of a page, or inside a
/// page of which the second lane has a copy. Their logits and attention equal those of each lane
/// alone, bit for bit.
pub fn pages_that_lanes_share_in_part(make: Make<'_>) {
    let branches = prop::collection::vec(branch(), 2..=8);
    let first = (first_row(), prop::sample::select(vec![0, 0, 33]));
    TestRunner::new(Cases::with_cases(40))
        .run(&(branches, 1_usize..200, first, any::<u32>()), |(branches, n_old, first, seed)| {
            let config = config("qwen3");
            let mut device = poisoned_with(make, &config, WIDE);
            let works = lay_out(&mut *device, &config, &branches, n_old, first, seed);
            let (logits, attention) = results(&mut *device, &config, &works);
            prop_assert!(logits.iter().flatten().all(|logit| logit.is_finite()));
            let mut alone: Results = Default::default();
            for work in &works {
                poison(&mut *device, &config);
                lay_out(&mut *device, &config, &branches, n_old, first, seed);
                let own = results(&mut *device, &config, std::slice::from_ref(work));
                alone.0.extend(own.0);
                alone.1.extend(own.1);
            }
            prop_assert_eq!(logits, alone.0);
            prop_assert_eq!(attention, alone.1);
            Ok(())
        })
        .unwrap();
}

/// Writes the old rows of all lanes. A page inside which lanes diverge is copied. There are `n_old`
/// rows before the first lane. All lanes start at the same row of a page, at the same home.
fn lay_out(
    device: &mut dyn Inspect,
    config: &Config,
    branches: &[Branch],
    n_old: usize,
    (first_row, home_position): (usize, usize),
    seed: u32,
) -> Vec<Work> {
    let mut free = 0..WIDE.pages as PageId;
    let mut take = |n: usize| free.by_ref().take(n).collect::<Vec<_>>();
    let pages = take(pages_for(first_row + n_old));
    let span = Span { pages, first_row, len: n_old, home_position, position: 0 };
    fill_before(device, config, &span);
    fill_rows(device, config, &span, 0..n_old, seed);
    let mut contexts = vec![Context { span, n_old }];
    let mut works = Vec::new();
    for (index, branch) in branches.iter().enumerate() {
        let from = branch.of.get(&contexts);
        let shared = match branch.at {
            Place::Anywhere(row) => row.index(from.n_old) + 1,
            Place::EndOfPage(page) => {
                let page = page.index(pages_for(first_row + from.n_old)) + 1;
                from.n_old.min(page * PAGE_ROWS - first_row)
            }
            Place::End => from.n_old,
        };
        let (whole, rest) = ((first_row + shared) / PAGE_ROWS, (first_row + shared) % PAGE_ROWS);
        let len = shared + branch.n_old + branch.n_new;
        let mut pages = from.span.pages[..whole].to_vec();
        pages.extend(take(pages_for(first_row + len) - whole));
        if rest > 0 {
            device.copy_rows(from.span.pages[whole], pages[whole], rest);
        }
        let (n_old, span) = (shared + branch.n_old, Span { pages, len, ..from.span.clone() });
        let seed = seed.wrapping_add(1000 * index as u32);
        fill_rows(device, config, &span, shared..n_old, seed);
        let new = tokens(branch.n_new, seed, config.vocab);
        let (outputs, marks) = ([Outputs::All, Outputs::Last][index % 2], branch.marks.clone());
        let mut work = Work { outputs, marks, ..Work::new(&new, n_old, Vec::new(), span.clone()) };
        let back = branch.back.min(n_old) as u32;
        work.positions.iter_mut().for_each(|position| *position -= back);
        works.push(work);
        contexts.push(Context { span, n_old });
    }
    works
}

/// A prompt that runs cold in one span equals the same prompt after a prefix that another lane
/// computed. Whole pages belong to that lane, the last page is a copy of its first rows, and the
/// rest runs in blocks of any size beside the other lane. All logits and shares have the same bits.
pub fn a_context_in_one_span_shows_no_cut(make: Make<'_>) {
    let blocks = prop_oneof![
        prop::collection::vec(1_usize..4, 1..9),
        prop::collection::vec(1_usize..120, 1..5),
    ];
    let pages = Just((0..WIDE.pages as PageId).collect::<Vec<_>>()).prop_shuffle();
    let cases = (2_usize..280, any::<prop::sample::Index>(), blocks, marks(300), pages);
    TestRunner::new(Cases::with_cases(24))
        .run(&(cases, any::<u32>()), |((n, cut, blocks, marks, pages), seed)| {
            let config = config("qwen3");
            let prompt = tokens(n, seed, config.vocab);
            let cut = cut.index(n - 1) + 1;
            let mut cold = Cold::new(make, &config, &prompt, &marks);
            let mut warm = Warm::new(make, &config, &prompt, &marks, cut, &blocks, &pages);
            let mut start = cut;
            for size in blocks.iter().copied().chain([n]) {
                let end = n.min(start + size);
                if start == end {
                    break;
                }
                let (logits, shares) = warm.run(start..end);
                let (cold_logits, cold_shares) = cold.run(end);
                prop_assert!(logits.iter().flatten().all(|logit| logit.is_finite()));
                prop_assert_eq!(&logits[..], &cold_logits[start..], "{}..{}", start, end);
                prop_assert_eq!(shares, cold_shares, "{}..{}", start, end);
                start = end;
            }
            Ok(())
        })
        .unwrap();
}

/// A device that computes each prompt in one step.
struct Cold<'a> {
    device: Box<dyn Inspect>,
    config: &'a Config,
    prompt: &'a [u32],
    marks: &'a [u32],
}

impl<'a> Cold<'a> {
    fn new(make: Make<'_>, config: &'a Config, prompt: &'a [u32], marks: &'a [u32]) -> Self {
        Self { device: poisoned_with(make, config, WIDE), config, prompt, marks }
    }

    /// Logits of the prompt's first `n` tokens, and the shares of the last one.
    fn run(&mut self, n: usize) -> (Vec<Vec<f32>>, Vec<f32>) {
        let marks = self.marks.to_vec();
        let own = crate::span(0, n, 0);
        let work = Work { marks, ..Work::new(&self.prompt[..n], 0, Vec::new(), own) };
        let (logits, mut shares) = results(&mut *self.device, self.config, &[work]);
        (logits, shares.remove(0))
    }
}

/// A device on which another lane has computed the shared prefix, and more.
struct Warm<'a> {
    device: Box<dyn Inspect>,
    config: &'a Config,
    prompt: &'a [u32],
    marks: &'a [u32],
    own: Span,
    /// The other lane, its number of rows, and its further tokens.
    other: Span,
    n_other: usize,
}

impl<'a> Warm<'a> {
    fn new(
        make: Make<'_>,
        config: &'a Config,
        prompt: &'a [u32],
        marks: &'a [u32],
        cut: usize,
        blocks: &[usize],
        pages: &[PageId],
    ) -> Self {
        let mut device = poisoned_with(make, config, WIDE);
        let (other_pages, pages) = pages.split_at(WIDE.pages / 2);
        let place = |pages: Vec<PageId>| Span { pages, ..crate::span(0, 0, 0) };
        let other = place(other_pages.to_vec());
        // The other lane continues differently, so that a wrongly visible row changes the result.
        let mut others = prompt[..cut].to_vec();
        others.extend(tokens(1 + cut % 90, 77, config.vocab));
        let mut n_other = 0;
        for size in blocks.iter().rev().copied().chain([others.len()]) {
            let end = others.len().min(n_other + size);
            if n_other < end {
                let block = &others[n_other..end];
                let work = Work::new(block, n_other, Vec::new(), other.clone());
                results(&mut *device, config, &[work]);
            }
            n_other = end;
        }

        let (whole, rest) = (cut / PAGE_ROWS, cut % PAGE_ROWS);
        let mut table = other_pages[..whole].to_vec();
        table.extend(&pages[..pages_for(prompt.len()) - whole]);
        if rest > 0 {
            device.copy_rows(other_pages[whole], table[whole], rest);
        }
        Self { device, config, prompt, marks, own: place(table), other, n_other }
    }

    /// Runs a block of the prompt, preceded in the step by a token of the other lane. Returns the
    /// logits of the block, and the shares of its last token.
    fn run(&mut self, block: std::ops::Range<usize>) -> (Vec<Vec<f32>>, Vec<f32>) {
        let beside = Work::new(&[5], self.n_other, Vec::new(), self.other.clone());
        let marks = self.marks.to_vec();
        let tokens = &self.prompt[block.clone()];
        let work = Work { marks, ..Work::new(tokens, block.start, Vec::new(), self.own.clone()) };
        let (mut logits, mut shares) = results(&mut *self.device, self.config, &[beside, work]);
        self.n_other += 1;
        (logits.split_off(1), shares.remove(1))
    }
}
