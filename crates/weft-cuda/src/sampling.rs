//! Draws on the GPU: the settings that choose tokens, and where the chosen tokens are published.
//!
//! The numbers of a draw are copied once; the GPU then updates them itself, token by token. Kernels
//! write tokens and shares of attention to pinned host memory. Each word carries the number of its
//! step, so that one read shows whether it has arrived. `kernels/sampling.cuh` says how a token is
//! chosen.

mod adjusted;

use std::sync::Arc;
use std::time::Duration;

use weft_core::config::Config;
use weft_core::device::Limits;
use weft_core::sampling::{Draw, Sampler, Sampling as Settings};

use self::adjusted::Adjusted;
use crate::driver::{Address, Argument, Gpu, Memory, Pinned, Stream};
use crate::error::CudaError;
use crate::in_flight::OutputDraw;
use crate::kernels::Kernels;
use crate::layouts::{Layout, layout};
use crate::tables::{FEW, max_cells};

/// Ranks that one block weighs.
pub(crate) const MOST_RANKS: usize = 128;
/// Blocks that draw a token together if there are more ranks. They wait for one another.
pub(crate) const WIDE_BLOCKS: usize = 16;
/// Threads of each of these blocks, and the most rows that one of them holds.
pub(crate) const WIDE_THREADS: usize = 512;
pub(crate) const MOST_WIDE_ROWS: usize = 62;
/// Sums that each block publishes to the others, alternating between two places: one for every
/// value of eight bits of a score.
pub(crate) const DIGITS: usize = 256;
/// Steps whose tokens and shares the host may still read.
pub(crate) const PUBLISHED_STEPS: usize = 64;
/// The token that a kernel publishes if it leaves the choice to the host.
pub(crate) const DECLINED: u32 = u32::MAX;
/// Rows that share one best score.
pub(crate) const SCORE_ROWS: usize = 16;
/// Words that a step publishes for an output whose log-probabilities are reported: the logit of its
/// token, the two halves of the sum of all weights, and each of the likeliest tokens with its logit.
pub(crate) const REPORT_WORDS: usize = 3 + 2 * Settings::MAX_LOGPROBS;
/// Blocks that add up the weights of an output, if they are not those of the persistent kernel.
pub(crate) const WEIGHT_BLOCKS: usize = 32;
/// How long the GPU waits for a mask before it leaves the choice to the host.
pub(crate) const MASK_PATIENCE: Duration = Duration::from_millis(200);
const PARTS_BYTES: usize = FEW * 2 * WIDE_BLOCKS * DIGITS * 8;

pub(crate) const CHOSEN: u32 = 1;
pub(crate) const DRAWN: u32 = 2;
pub(crate) const ADJUSTED: u32 = 4;
pub(crate) const FOLLOWED: u32 = 8;
pub(crate) const WIDE: u32 = 16;
pub(crate) const MASKED: u32 = 32;
pub(crate) const REPORTED: u32 = 64;
pub(crate) const RULED_OUT_EARLY: u32 = 1 << 30;
pub(crate) const RULED_OUT: u32 = 1 << 31;

/// A draw as kernels read it. They call it `Draw`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
struct DrawWords {
    flags: u32,
    vocab: u32,
    top_k: u32,
    index: u32,
    repetition: f32,
    frequency: f32,
    presence: f32,
    min_tokens: u32,
    scale: f64,
    least_weight: u64,
    share: u64,
    seed: u64,
    token_number: u32,
    share_number: u32,
    n_ranks: u32,
    gap: u32,
}

impl DrawWords {
    fn new(draw: &Draw, number: u32, followed: bool) -> Self {
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let flags = CHOSEN
            | flag(draw.temperature > 0.0, DRAWN)
            | flag(draw.adjusts, ADJUSTED)
            | flag(is_wide(draw), WIDE)
            | flag(draw.is_masked, MASKED)
            | flag(draw.n_logprobs.is_some(), REPORTED)
            | flag(followed, FOLLOWED);
        Self {
            flags,
            vocab: draw.vocab as u32,
            // More ranks than tokens means all tokens.
            top_k: draw.top_k.min(draw.vocab) as u32,
            index: draw.index as u32,
            repetition: draw.repetition_penalty,
            frequency: draw.frequency_penalty,
            presence: draw.presence_penalty,
            min_tokens: u32::try_from(draw.min_tokens).unwrap_or(u32::MAX),
            scale: draw.scale(),
            least_weight: draw.least_weight(),
            share: draw.share(),
            seed: draw.seed,
            token_number: number,
            share_number: number,
            // The likeliest token's logit is always needed.
            n_ranks: draw.n_logprobs.map_or(0, |n| n.max(1) as u32),
            gap: 0,
        }
    }
}

/// The kernels' arguments. They call it `Sampling`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SamplingAddresses {
    draws: Address,
    best: Address,
    bias: Address,
    marks: Address,
    published_tokens: Address,
    published_shares: Address,
    n_cells: u64,
    parts: Address,
    gates: Address,
    likely: Address,
    weights: Address,
    told_logits: Address,
    given_masks: Address,
    masks: Address,
    late: Address,
}

// SAFETY: `repr(C)`, with the fields of the kernels' `Sampling`.
unsafe impl Argument for SamplingAddresses {}

/// Structs that kernels must lay out as here.
pub(crate) fn layouts() -> [Layout; 3] {
    [
        layout!(DrawWords as "Draw" {
            flags, vocab, top_k, index, repetition, frequency, presence, min_tokens, scale,
            least_weight, share, seed, token_number, share_number, n_ranks, gap,
        }),
        adjusted::layout(),
        layout!(SamplingAddresses as "Sampling" {
            draws, best, bias, marks, published_tokens, published_shares, n_cells, parts, gates, likely,
            weights, told_logits, given_masks, masks, late,
        }),
    ]
}

/// How the tokens of a step are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Chosen {
    /// From logits that it fetches.
    #[default]
    ByHost,
    /// On the GPU.
    ByGpu(Needs),
}

/// What the draws of a step need besides the kernel that chooses by one block per output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Needs {
    /// Many blocks per output, for draws among all ranks.
    pub(crate) wide: bool,
    /// Masks from the host.
    pub(crate) masks: bool,
    /// Sums for log-probabilities.
    pub(crate) reports: bool,
}

impl Chosen {
    /// How a step with these draws chooses its tokens.
    pub(crate) fn by<'a>(draws: impl Iterator<Item = &'a Draw>) -> Self {
        let add = |needs: Needs, draw: &Draw| Needs {
            wide: needs.wide || is_wide(draw),
            masks: needs.masks || draw.is_masked,
            reports: needs.reports || draw.n_logprobs.is_some(),
        };
        let all = draws.fold(None, |needs, draw| Some(add(needs.unwrap_or_default(), draw)));
        all.map_or(Self::ByHost, Self::ByGpu)
    }

    /// What is needed on the GPU.
    pub(crate) fn needs(self) -> Needs {
        match self {
            Self::ByHost => Needs::default(),
            Self::ByGpu(needs) => needs,
        }
    }
}

/// Best scores of a vocabulary: one for every [`SCORE_ROWS`] rows.
pub(crate) fn n_best(vocab: usize) -> usize {
    vocab.div_ceil(SCORE_ROWS)
}

/// Words of a mask: a bit for every token.
pub(crate) fn n_mask_words(vocab: usize) -> usize {
    vocab.div_ceil(32)
}

/// Whether a draw is among more ranks than one block weighs.
fn is_wide(draw: &Draw) -> bool {
    draw.temperature > 0.0 && !(1..=MOST_RANKS).contains(&draw.top_k)
}

/// The memory of draws.
pub(crate) struct Sampling {
    /// `DrawWords` \[FEW\]
    draws: Memory,
    pinned_draws: Pinned,
    /// The best score of every 16 rows: \[FEW\]\[groups\]
    best: Memory,
    adjusted: Adjusted,
    /// \[PUBLISHED_STEPS\]\[FEW\], then \[PUBLISHED_STEPS\]\[cells\], then
    /// \[PUBLISHED_STEPS\]\[FEW\]\[REPORT_WORDS\]: the step's number in the upper half, the value in
    /// the lower
    published: Pinned,
    /// The best logit of every 16 rows: \[FEW\]\[groups\]
    likely: Memory,
    /// u64 \[FEW\]
    weights: Memory,
    /// \[FEW\]\[mask words\]: the step's number in the upper half, 32 bits in the lower
    given_masks: Pinned,
    /// The same on the GPU, without numbers.
    masks: Memory,
    /// \[FEW\]
    late: Memory,
    /// Sums that blocks that draw together publish to one another: \[FEW\]\[2\]\[blocks\]\[words\]
    parts: Memory,
    /// How often one of them has waited for the others: \[FEW\]
    gates: Memory,
    serves_wide: bool,
    n_cells: usize,
    vocab: usize,
}

impl Sampling {
    pub(crate) fn new(gpu: &Arc<Gpu>, config: &Config, limits: &Limits) -> Result<Self, CudaError> {
        let vocab = config.vocab;
        let n_cells = max_cells(limits);
        let groups = n_best(vocab);
        let memory = |bytes| Memory::new(gpu, "sampling", bytes);
        Ok(Self {
            draws: memory(FEW * size_of::<DrawWords>())?,
            pinned_draws: Pinned::new(gpu, FEW * size_of::<DrawWords>())?,
            best: memory(FEW * groups * 4)?,
            adjusted: Adjusted::new(gpu, vocab)?,
            published: Pinned::new(
                gpu,
                PUBLISHED_STEPS * (FEW * (1 + REPORT_WORDS) + n_cells) * 8,
            )?,
            likely: memory(FEW * groups * 4)?,
            weights: memory(FEW * 8)?,
            given_masks: Pinned::new(gpu, FEW * n_mask_words(vocab) * 8)?,
            masks: memory(FEW * n_mask_words(vocab) * 4)?,
            late: memory(FEW * 4)?,
            parts: memory(PARTS_BYTES)?,
            gates: memory(FEW * 4)?,
            // Blocks that wait for one another must all be resident.
            serves_wide: vocab <= WIDE_BLOCKS * WIDE_THREADS * MOST_WIDE_ROWS
                && gpu.facts.chip.n_sms >= WIDE_BLOCKS,
            n_cells,
            vocab,
        })
    }

    /// Bytes that it takes on the GPU.
    pub(crate) fn bytes(config: &Config) -> usize {
        let groups = n_best(config.vocab);
        let of_output = size_of::<DrawWords>() + 2 * groups * 4 + 8 + 2 * 4;
        let mask = n_mask_words(config.vocab) * 4;
        FEW * (of_output + mask) + Adjusted::bytes(config.vocab) + PARTS_BYTES
    }

    /// Whether the GPU can choose by this draw.
    pub(crate) fn serves(&self, draw: &Draw) -> bool {
        self.serves_wide || !is_wide(draw)
    }

    pub(crate) fn addresses(&self) -> SamplingAddresses {
        let published = self.published.address();
        SamplingAddresses {
            draws: self.draws.address(),
            best: self.best.address(),
            bias: self.adjusted.bias(),
            marks: self.adjusted.marks(),
            published_tokens: published,
            published_shares: published.offset(PUBLISHED_STEPS * FEW * 8),
            n_cells: self.n_cells as u64,
            parts: self.parts.address(),
            gates: self.gates.address(),
            likely: self.likely.address(),
            weights: self.weights.address(),
            told_logits: published.offset(self.first_report() * 8),
            given_masks: self.given_masks.address(),
            masks: self.masks.address(),
            late: self.late.address(),
        }
    }

    /// The first published word of log-probabilities.
    fn first_report(&self) -> usize {
        PUBLISHED_STEPS * (FEW + self.n_cells)
    }

    /// Copies the draws of a step's outputs to the GPU, in the stream. The next step has the number
    /// `number`; if `followed`, the steps after it need no further copy.
    pub(crate) fn upload(
        &mut self,
        gpu: &Gpu,
        kernels: &Kernels,
        draws: &[OutputDraw<'_>],
        number: u32,
        followed: bool,
    ) -> Result<(), CudaError> {
        let mut all = [DrawWords::default(); FEW];
        for of in draws {
            all[of.output] = DrawWords::new(&of.draw, number, followed);
        }
        self.adjusted.prepare(gpu, kernels, draws, followed)?;
        if draws.iter().any(|of| of.draw.n_logprobs.is_some()) {
            // A launch that failed may have left sums behind.
            gpu.clear(&self.weights, 0..FEW * 8)?;
        }
        self.pinned_draws.fill(0, &all);
        gpu.upload(Stream::Compute, &self.draws, &self.pinned_draws, size_of_val(&all))
    }

    /// Notes that the GPU has chosen a token for an output: it has counted it if scores are
    /// adjusted.
    pub(crate) fn chose(&mut self, output: usize, token: u32) {
        self.adjusted.chose(output, token);
    }

    /// The tables of adjustments may hold anything: nobody knows how far a launch came.
    pub(crate) fn forget_adjustments(&mut self) {
        self.adjusted.forget();
    }

    /// The token that step `number` published for an output, if it has arrived; `Some(None)` if the
    /// host must choose.
    pub(crate) fn token(&self, number: u32, output: usize) -> Option<Option<u32>> {
        let published = self.published.load(number as usize % PUBLISHED_STEPS * FEW + output);
        let token = (published >> 32 == u64::from(number)).then_some(published as u32)?;
        Some((token != DECLINED).then_some(token))
    }

    /// Writes the mask of an output of step `number`, which comes after a draft, where the step,
    /// which may be running, reads it. If the sampler has none to give, no token is allowed: the
    /// choice is then left to the sampler, which says why it cannot go on.
    pub(crate) fn give_mask(
        &self,
        number: u32,
        output: usize,
        (sampler, drafted): (&Sampler, &[u32]),
    ) {
        let n_words = n_mask_words(self.vocab);
        let write = |mask: &[u32]| {
            let words = mask.iter().copied().chain(std::iter::repeat(0)).take(n_words);
            for (i, bits) in words.enumerate() {
                let word = u64::from(number) << 32 | u64::from(bits);
                self.given_masks.store(output * n_words + i, word);
            }
        };
        if sampler.read_mask_after(drafted, write).is_err() {
            write(&[]);
        }
    }

    /// Word `word` of the log-probabilities that step `number` published for an output, if it has
    /// arrived: see [`REPORT_WORDS`].
    pub(crate) fn report_word(&self, number: u32, output: usize, word: usize) -> Option<u32> {
        let of_step = (number as usize % PUBLISHED_STEPS * FEW + output) * REPORT_WORDS;
        let published = self.published.load(self.first_report() + of_step + word);
        (published >> 32 == u64::from(number)).then_some(published as u32)
    }

    /// A cell's share of attention, summed over heads, that step `number` published, if it has
    /// arrived.
    pub(crate) fn share(&self, number: u32, cell: usize) -> Option<f32> {
        let shares = PUBLISHED_STEPS * FEW + number as usize % PUBLISHED_STEPS * self.n_cells;
        let published = self.published.load(shares + cell);
        (published >> 32 == u64::from(number)).then_some(f32::from_bits(published as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_over_many_ranks_take_many_blocks() {
        let draw = |(temperature, top_k)| {
            let settings = Settings { temperature, top_k, ..Settings::default() };
            Sampler::new(&settings, &[], &[], 1000).unwrap().next_draw().unwrap()
        };
        let of = |all: &[(f32, usize)]| {
            let draws: Vec<Draw> = all.iter().copied().map(draw).collect();
            Chosen::by(draws.iter())
        };
        let by_gpu = |wide| Chosen::ByGpu(Needs { wide, ..Needs::default() });
        assert_eq!(of(&[]), Chosen::ByHost);
        assert_eq!(of(&[(0.0, 0), (0.7, 20), (1.0, 128)]), by_gpu(false));
        assert_eq!(of(&[(0.0, 0), (1.0, 0), (0.7, 20)]), by_gpu(true));
        assert_eq!(of(&[(1.0, 129)]), by_gpu(true));
    }

    #[test]
    fn a_draw_s_numbers_are_those_of_the_definition() {
        let settings = Settings { top_k: 5000, top_p: 0.5, min_p: 0.25, ..Settings::default() };
        let draw = Sampler::new(&settings, &[], &[], 1000).unwrap().next_draw().unwrap();
        let words = DrawWords::new(&draw, 1, true);
        assert_eq!((words.flags, words.n_ranks), (CHOSEN | DRAWN | FOLLOWED | WIDE, 0));
        assert_eq!((words.top_k, words.share, words.least_weight), (1000, 1 << 31, 1 << 38));
        assert_eq!(words.scale, std::f64::consts::LOG2_E * 4_294_967_296.0);
    }

    #[test]
    fn what_is_masked_or_reported_is_needed_by_the_step() {
        let draw = Sampler::new(&Settings::default(), &[], &[], 9).unwrap().next_draw().unwrap();
        let draw = Draw { temperature: 0.0, ..draw };
        let masked = Draw { is_masked: true, ..draw };
        let reported = Draw { n_logprobs: Some(0), ..draw };
        let needs = |draws: &[Draw]| {
            let Needs { wide, masks, reports } = Chosen::by(draws.iter()).needs();
            (wide, masks, reports)
        };
        assert_eq!(needs(&[draw, masked]), (false, true, false));
        assert_eq!(needs(&[reported, draw]), (false, false, true));
        assert_eq!(needs(&[reported, masked]), (false, true, true));
        let words = DrawWords::new(&reported, 1, false);
        assert_eq!((words.flags, words.n_ranks), (CHOSEN | REPORTED, 1), "the first rank at least");
        assert_eq!(DrawWords::new(&masked, 1, false).flags, CHOSEN | MASKED);
    }
}
