//! Tables of what changes scores: biases, counts of tokens and tokens that are ruled out, for each
//! output.
//!
//! The host remembers what the tables hold, as long as it knows, and sends only what differs: a
//! draft has a table for each of its outputs, and one differs from the next by a token. Steps that
//! follow one another on the GPU count tokens that nobody asks for, so their tables are cleared.

use std::cmp::Ordering;
use std::sync::Arc;

use weft_core::sampling::{Adjustment, Draw, RuledOut};

use super::{RULED_OUT, RULED_OUT_EARLY};
use crate::driver::{Address, Gpu, Launch, Memory, Pinned, Stream};
use crate::error::CudaError;
use crate::in_flight::OutputDraw;
use crate::kernels::Kernels;
use crate::layouts::{Layout, layout};
use crate::tables::FEW;

const THREADS: usize = 256;
/// Entries that are copied without waiting. Longer lists are rare.
const PINNED: usize = 4096;
/// The bits of a mark that count: as the kernels' constant of this name.
const SEEN: u32 = RULED_OUT_EARLY - 1;

/// An adjustment as kernels read it. They call it `Adjustment`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct AdjustmentWords {
    token: u32,
    mark: u32,
    bias: f32,
    output: u32,
}

/// How kernels must lay it out.
pub(super) fn layout() -> Layout {
    layout!(AdjustmentWords as "Adjustment" { token, mark, bias, output })
}

impl AdjustmentWords {
    fn new(adjustment: &Adjustment, output: usize) -> Self {
        let seen = adjustment.seen.map_or(0, |count| 1 + count);
        let ruled_out = match adjustment.ruled_out {
            RuledOut::Never => 0,
            RuledOut::Early => RULED_OUT_EARLY,
            RuledOut::Always => RULED_OUT,
        };
        Self {
            token: adjustment.token,
            mark: seen | ruled_out,
            bias: adjustment.bias,
            output: output as u32,
        }
    }

    /// What a table holds for a token that is not adjusted.
    fn none(token: u32, output: usize) -> Self {
        Self { token, mark: 0, bias: 0.0, output: output as u32 }
    }
}

/// The entries of an output, by token.
fn list_of(of: &OutputDraw<'_>) -> Vec<AdjustmentWords> {
    let all = of.sampler.adjustments_after(of.drafted);
    all.iter().map(|adjustment| AdjustmentWords::new(adjustment, of.output)).collect()
}

/// The same from the entries of the output before it. Those of a draft differ by tokens that are
/// counted, as the GPU counts them: to list all anew takes longer than a token if there are many.
fn list_after(
    of: &OutputDraw<'_>,
    before: &OutputDraw<'_>,
    mut list: Vec<AdjustmentWords>,
) -> Vec<AdjustmentWords> {
    let more = of.drafted.strip_prefix(before.drafted);
    let Some(more) = more.filter(|_| std::ptr::eq(of.sampler, before.sampler)) else {
        return list_of(of);
    };
    list.iter_mut().for_each(|entry| entry.output = of.output as u32);
    let Draw { repetition_penalty, frequency_penalty, presence_penalty, .. } = of.draw;
    let counts = repetition_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0;
    for &token in more.iter().filter(|_| counts) {
        let at = list.binary_search_by_key(&token, |entry| entry.token).unwrap_or_else(|at| {
            list.insert(at, AdjustmentWords::none(token, of.output));
            at
        });
        let mark = &mut list[at].mark;
        *mark += if *mark & SEEN == 0 { 2 } else { 1 };
    }
    list
}

/// What the table of an output holds.
#[derive(Default)]
struct Held {
    /// By token, each once; none if nobody knows.
    entries: Option<Vec<AdjustmentWords>>,
    /// Whether the GPU counts the token that it chooses.
    counts: bool,
    /// Tokens that it has counted since.
    counted: Vec<u32>,
}

impl Held {
    /// Makes it hold other entries, which come by token, and adds those that differ to `changes`. The
    /// table must be cleared first if nobody knew what it held: returns whether.
    fn replace(
        &mut self,
        output: usize,
        new: Vec<AdjustmentWords>,
        changes: &mut Vec<AdjustmentWords>,
    ) -> bool {
        let counted = std::mem::take(&mut self.counted);
        let Some(old) = self.entries.take() else {
            changes.extend_from_slice(&new);
            self.entries = Some(new);
            return true;
        };
        let is_counted = |token: u32| counted.contains(&token);
        let (mut olds, mut news) = (old.iter().peekable(), new.iter().peekable());
        loop {
            let order = match (olds.peek(), news.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => old.token.cmp(&new.token),
            };
            let old = olds.next_if(|_| order.is_le());
            let new = news.next_if(|_| order.is_ge());
            match (old, new) {
                (Some(old), Some(new)) if old == new && !is_counted(new.token) => {}
                (_, Some(new)) => changes.push(*new),
                (Some(old), None) => changes.push(AdjustmentWords::none(old.token, output)),
                (None, None) => break,
            }
        }
        let has = |list: &[AdjustmentWords], token: u32| {
            list.binary_search_by_key(&token, |entry| entry.token).is_ok()
        };
        let mut unlisted: Vec<u32> =
            counted.into_iter().filter(|token| !has(&old, *token) && !has(&new, *token)).collect();
        unlisted.sort_unstable();
        unlisted.dedup();
        changes.extend(unlisted.iter().map(|token| AdjustmentWords::none(*token, output)));
        self.entries = Some(new);
        false
    }
}

/// The tables of all outputs.
pub(super) struct Adjusted {
    /// f32 \[FEW\]\[vocab\]
    bias: Memory,
    /// \[FEW\]\[vocab\]
    marks: Memory,
    /// `AdjustmentWords` \[FEW · vocab at most\]
    list: Memory,
    pinned: Pinned,
    held: [Held; FEW],
    vocab: usize,
}

impl Adjusted {
    pub(super) fn new(gpu: &Arc<Gpu>, vocab: usize) -> Result<Self, CudaError> {
        let memory = |bytes| Memory::new(gpu, "sampling", bytes);
        let entry = size_of::<AdjustmentWords>();
        Ok(Self {
            bias: memory(FEW * vocab * 4)?,
            marks: memory(FEW * vocab * 4)?,
            list: memory(FEW * vocab * entry)?,
            pinned: Pinned::new(gpu, PINNED * entry)?,
            held: Default::default(),
            vocab,
        })
    }

    /// Bytes that it takes on the GPU.
    pub(super) fn bytes(vocab: usize) -> usize {
        FEW * vocab * (2 * 4 + size_of::<AdjustmentWords>())
    }

    pub(super) fn bias(&self) -> Address {
        self.bias.address()
    }

    pub(super) fn marks(&self) -> Address {
        self.marks.address()
    }

    /// Makes the tables of adjusted outputs hold what their draws need, in the stream. If steps
    /// follow the next one, nobody knows afterwards what they hold.
    pub(super) fn prepare(
        &mut self,
        gpu: &Gpu,
        kernels: &Kernels,
        draws: &[OutputDraw<'_>],
        followed: bool,
    ) -> Result<(), CudaError> {
        let (mut changes, mut last) = (Vec::new(), None);
        self.held.iter_mut().for_each(|held| held.counts = false);
        for of @ OutputDraw { output, .. } in draws.iter().filter(|of| of.draw.adjusts) {
            let list = match last {
                Some((before, list)) => list_after(of, before, list),
                None => list_of(of),
            };
            last = Some((of, list.clone()));
            if self.held[*output].replace(*output, list, &mut changes) {
                let row = output * self.vocab * 4;
                for table in [&self.bias, &self.marks] {
                    gpu.clear(table, row..row + self.vocab * 4)?;
                }
            }
            match followed {
                true => self.held[*output] = Held::default(),
                false => self.held[*output].counts = true,
            }
        }
        self.send(gpu, kernels, &changes)
    }

    fn send(
        &mut self,
        gpu: &Gpu,
        kernels: &Kernels,
        changes: &[AdjustmentWords],
    ) -> Result<(), CudaError> {
        if changes.is_empty() {
            return Ok(());
        }
        if changes.len() <= PINNED {
            self.pinned.fill(0, changes);
            gpu.upload(Stream::Compute, &self.list, &self.pinned, size_of_val(changes))?;
        } else {
            self.list.write(0, changes)?;
        }
        let grid = (changes.len().div_ceil(THREADS), 1);
        let launch = Launch { grid, threads: THREADS, early: false, cooperative: false };
        let n = changes.len() as u32;
        let (list, bias) = (self.list.address(), self.bias.address());
        kernels.mark_tokens.launch(gpu, launch, &[&list, &n, &bias, &self.marks.address()])
    }

    /// Notes that the GPU has chosen a token for an output, and so counted it.
    pub(super) fn chose(&mut self, output: usize, token: u32) {
        let held = &mut self.held[output];
        if std::mem::take(&mut held.counts) {
            held.counted.push(token);
        }
    }

    pub(super) fn forget(&mut self) {
        self.held = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_core::sampling::{Sampler, Sampling as Settings};

    #[test]
    fn what_is_adjusted_reaches_the_kernel_as_marks() {
        let settings = Settings {
            repetition_penalty: 1.5,
            logit_bias: vec![(7, -2.0)],
            stop_ids: vec![3],
            ignore_eos: true,
            min_tokens: 4,
            ..Settings::default()
        };
        let mut sampler = Sampler::new(&settings, &[5, 7], &[9], 20).unwrap();
        sampler.accept(7).unwrap();
        sampler.accept(7).unwrap();
        let list = sampler.adjustments();
        let of = |token: u32| {
            let words = list.iter().map(|a| AdjustmentWords::new(a, 2)).find(|a| a.token == token);
            words.map(|a| (a.mark, a.bias, a.output))
        };
        assert_eq!(of(5), Some((1, 0.0, 2)), "in the prompt alone");
        assert_eq!(of(7), Some((3, -2.0, 2)), "twice in the output");
        assert_eq!(of(3), Some((RULED_OUT_EARLY, 0.0, 2)));
        assert_eq!(of(9), Some((RULED_OUT, 0.0, 2)));
        assert_eq!(list.len(), 4);
    }

    /// Tables as the GPU has them after some changes.
    fn apply(table: &mut Vec<(u32, u32)>, changes: &[AdjustmentWords]) {
        for change in changes {
            table.retain(|(token, _)| *token != change.token);
            if change.mark != 0 {
                table.push((change.token, change.mark));
            }
        }
        table.sort_unstable();
    }

    #[test]
    fn only_what_differs_is_sent() {
        let entry = |(token, mark): &(u32, u32)| AdjustmentWords {
            mark: *mark,
            ..AdjustmentWords::none(*token, 3)
        };
        let list = |of: &[(u32, u32)]| of.iter().map(entry).collect::<Vec<_>>();
        let (mut held, mut table) = (Held::default(), Vec::new());
        let mut send = |held: &mut Held, of: &[(u32, u32)]| {
            let mut changes = Vec::new();
            let clears = held.replace(3, list(of), &mut changes);
            if clears {
                table.clear();
            }
            apply(&mut table, &changes);
            assert_eq!(table, of, "the table holds what was asked for");
            (clears, changes.len())
        };
        assert_eq!(send(&mut held, &[(5, 1), (7, 2), (9, 1)]), (true, 3));
        assert_eq!(send(&mut held, &[(5, 1), (7, 2), (9, 1)]), (false, 0));
        assert_eq!(send(&mut held, &[(5, 1), (7, 3), (8, 2)]), (false, 3));
        assert_eq!(send(&mut held, &[]), (false, 3));
        assert_eq!(send(&mut held, &[(4, 2)]), (false, 1));
        held = Held::default();
        assert_eq!(send(&mut held, &[(1, 2)]), (true, 1));
    }

    #[test]
    fn what_the_gpu_counted_is_sent_anew() {
        let entry = |token, mark| AdjustmentWords { mark, ..AdjustmentWords::none(token, 0) };
        let mut held = Held::default();
        held.replace(0, vec![entry(5, 2), entry(7, 2)], &mut Vec::new());
        // One that the list has, twice one that it has not, one that it will have.
        [7, 6, 6, 8].into_iter().for_each(|token| held.counted.push(token));
        let mut changes = Vec::new();
        assert!(!held.replace(0, vec![entry(5, 2), entry(7, 2), entry(8, 2)], &mut changes));
        assert_eq!(changes, [entry(7, 2), entry(8, 2), entry(6, 0)]);
        changes.clear();
        assert!(!held.replace(0, vec![entry(5, 2), entry(7, 2), entry(8, 2)], &mut changes));
        assert_eq!(changes, []);
    }
    #[test]
    fn the_list_of_a_draft_s_output_follows_from_the_one_before() {
        let penalised = Settings {
            repetition_penalty: 1.5,
            logit_bias: vec![(7, -2.0)],
            stop_ids: vec![3],
            min_tokens: 6,
            ..Settings::default()
        };
        let plain = Settings { repetition_penalty: 1.0, ..penalised.clone() };
        for settings in [penalised, plain] {
            let mut sampler = Sampler::new(&settings, &[5, 7, 11], &[9], 20).unwrap();
            sampler.accept(7).unwrap();
            // Tokens that are new, seen, biased, ruled out, and twice in the draft.
            let drafted = [4, 5, 7, 3, 4];
            let of = |n: usize| {
                let (sampler, drafted) = (&sampler, &drafted[..n]);
                OutputDraw {
                    output: n,
                    sampler,
                    drafted,
                    draw: sampler.draw_after(drafted).unwrap(),
                }
            };
            let mut list = list_of(&of(0));
            for n in 1..=drafted.len() {
                list = list_after(&of(n), &of(n - 1), list);
                assert_eq!(list, list_of(&of(n)), "{n} drafted");
            }
            // Another lane's list is its own.
            let other = Sampler::new(&settings, &[1], &[], 20).unwrap();
            let draw = other.next_draw().unwrap();
            let other = OutputDraw { output: 6, sampler: &other, drafted: &[], draw };
            assert_eq!(list_after(&other, &of(5), list), list_of(&other));
        }
    }
}
