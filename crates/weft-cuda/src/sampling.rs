//! Draws on the GPU: what lanes' tokens are chosen by, and where the chosen ones are told.
//!
//! The numbers of a draw are copied once and then moved on by the GPU itself, token by token. Tokens and
//! shares of attention come back through memory of this machine that kernels write to: each word carries
//! the number of its step, so that one read tells whether it is there. `kernels/sampling.cuh` says how a
//! token is chosen.

use std::sync::Arc;

use weft::config::Config;
use weft::device::Limits;
use weft::sampling::{Adjustment, Draw, RuledOut, Sampler};

use crate::driver::{Address, Argument, Gpu, Launch, Memory, Pinned};
use crate::error::CudaError;
use crate::kernels::Kernels;
use crate::tables::{FEW, max_partials};

/// Ranks that a block weighs.
const MOST_RANKS: usize = 128;
/// Steps whose tokens and shares the host may still read.
pub(crate) const TOLD_STEPS: usize = 64;
/// What a kernel tells where it leaves the choice to the host.
const DECLINED: u32 = u32::MAX;
/// Rows whose best score is kept together.
const SCORE_ROWS: usize = 16;
const THREADS: usize = 256;

const CHOSEN: u32 = 1;
const DRAWN: u32 = 2;
const ADJUSTED: u32 = 4;
const FOLLOWED: u32 = 8;
const RULED_OUT_EARLY: u32 = 1 << 30;
const RULED_OUT: u32 = 1 << 31;

/// A draw as kernels read it. They call it `Draw`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
struct DrawWords {
    flags: u32,
    vocab: u32,
    top_k: u32,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    repetition: f32,
    frequency: f32,
    presence: f32,
    index: u32,
    min_tokens: u32,
    gap: u32,
    seed: u64,
    token_number: u32,
    share_number: u32,
}

impl DrawWords {
    fn new(draw: &Draw, number: u32, followed: bool) -> Self {
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let flags = CHOSEN
            | flag(draw.temperature > 0.0, DRAWN)
            | flag(draw.adjusts, ADJUSTED)
            | flag(followed, FOLLOWED);
        Self {
            flags,
            vocab: draw.vocab as u32,
            top_k: draw.top_k as u32,
            temperature: draw.temperature,
            top_p: draw.top_p,
            min_p: draw.min_p,
            repetition: draw.repetition_penalty,
            frequency: draw.frequency_penalty,
            presence: draw.presence_penalty,
            index: draw.index as u32,
            min_tokens: u32::try_from(draw.min_tokens).unwrap_or(u32::MAX),
            gap: 0,
            seed: draw.seed,
            token_number: number,
            share_number: number,
        }
    }
}

/// An adjustment as kernels read it.
#[derive(Clone, Copy)]
#[repr(C)]
struct AdjustmentWords {
    token: u32,
    mark: u32,
    bias: f32,
    output: u32,
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
}

/// What kernels get. They call it `Sampling`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SamplingAddresses {
    draws: Address,
    best: Address,
    bias: Address,
    marks: Address,
    told_tokens: Address,
    told_shares: Address,
    n_partials: u64,
}

impl Argument for SamplingAddresses {}

/// Whether the GPU can choose by this draw: it weighs a bounded number of ranks.
pub(crate) fn serves(draw: &Draw) -> bool {
    draw.temperature == 0.0 || (1..=MOST_RANKS).contains(&draw.top_k)
}

/// The memory of draws.
pub(crate) struct Sampling {
    /// `DrawWords` \[FEW\]
    draws: Memory,
    pinned_draws: Pinned,
    /// The best score of every 16 rows: \[FEW\]\[groups\]
    best: Memory,
    /// f32 \[FEW\]\[vocab\]
    bias: Memory,
    /// \[FEW\]\[vocab\]
    marks: Memory,
    /// `AdjustmentWords` \[FEW · vocab at most\]
    adjustments: Memory,
    /// \[TOLD_STEPS\]\[FEW\], then \[TOLD_STEPS\]\[partials\]: numbers of steps above what they tell
    told: Pinned,
    n_partials: usize,
    vocab: usize,
}

impl Sampling {
    pub(crate) fn new(gpu: &Arc<Gpu>, config: &Config, limits: &Limits) -> Result<Self, CudaError> {
        let vocab = config.vocab;
        let n_partials = max_partials(limits);
        let groups = vocab.div_ceil(SCORE_ROWS);
        let memory = |bytes| Memory::new(gpu, "sampling", bytes);
        Ok(Self {
            draws: memory(FEW * size_of::<DrawWords>())?,
            pinned_draws: Pinned::new(gpu, FEW * size_of::<DrawWords>())?,
            best: memory(FEW * groups * 4)?,
            bias: memory(FEW * vocab * 4)?,
            marks: memory(FEW * vocab * 4)?,
            adjustments: memory(FEW * vocab * size_of::<AdjustmentWords>())?,
            told: Pinned::new(gpu, TOLD_STEPS * (FEW + n_partials) * 8)?,
            n_partials,
            vocab,
        })
    }

    /// What it takes on the GPU.
    pub(crate) fn bytes(config: &Config) -> usize {
        let groups = config.vocab.div_ceil(SCORE_ROWS);
        let of_token = 2 * 4 + size_of::<AdjustmentWords>();
        FEW * (size_of::<DrawWords>() + groups * 4 + config.vocab * of_token)
    }

    pub(crate) fn addresses(&self) -> SamplingAddresses {
        let told = self.told.address();
        SamplingAddresses {
            draws: self.draws.address(),
            best: self.best.address(),
            bias: self.bias.address(),
            marks: self.marks.address(),
            told_tokens: told,
            told_shares: told.offset(TOLD_STEPS * FEW * 8),
            n_partials: self.n_partials as u64,
        }
    }

    /// Puts the draws of a step's outputs on the GPU, in the stream. The first step after it is number
    /// `number`; where `followed`, steps after that need nothing from here.
    pub(crate) fn upload(
        &mut self,
        gpu: &Gpu,
        kernels: &Kernels,
        samplers: &[(usize, &Sampler, Draw)],
        number: u32,
        followed: bool,
    ) -> Result<(), CudaError> {
        let mut all = [DrawWords::default(); FEW];
        let mut adjustments = Vec::new();
        for (output, sampler, draw) in samplers {
            all[*output] = DrawWords::new(draw, number, followed);
            if draw.adjusts {
                let list = sampler.adjustments();
                adjustments.extend(list.iter().map(|a| AdjustmentWords::new(a, *output)));
                for table in [&self.bias, &self.marks] {
                    let row = table.address().offset(output * self.vocab * 4);
                    gpu.clear(row, self.vocab * 4)?;
                }
            }
        }
        if !adjustments.is_empty() {
            self.adjustments.write(0, &adjustments)?;
            let grid = (adjustments.len().div_ceil(THREADS), 1);
            let launch = Launch { grid, threads: THREADS, early: false, cooperative: false };
            let n = adjustments.len() as u32;
            let (list, bias) = (self.adjustments.address(), self.bias.address());
            kernels.mark_tokens.launch(gpu, launch, &[&list, &n, &bias, &self.marks.address()])?;
        }
        self.pinned_draws.fill(0, &all);
        gpu.upload(self.draws.address(), &self.pinned_draws, size_of_val(&all))
    }

    /// The token that step `number` told for an output, once it has: `Some(None)` where the host is to
    /// choose.
    pub(crate) fn token(&self, number: u32, output: usize) -> Option<Option<u32>> {
        let told = self.told.load(number as usize % TOLD_STEPS * FEW + output);
        let token = (told >> 32 == u64::from(number)).then_some(told as u32)?;
        Some((token != DECLINED).then_some(token))
    }

    /// The sum over heads that step `number` told of a part's share of attention, once it has.
    pub(crate) fn share(&self, number: u32, part: usize) -> Option<f32> {
        let shares = TOLD_STEPS * FEW + number as usize % TOLD_STEPS * self.n_partials;
        let told = self.told.load(shares + part);
        (told >> 32 == u64::from(number)).then_some(f32::from_bits(told as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft::sampling::Sampling as Settings;

    #[test]
    fn structs_are_as_long_as_kernels_think() {
        assert_eq!((size_of::<DrawWords>(), size_of::<AdjustmentWords>()), (64, 16));
        assert_eq!(size_of::<SamplingAddresses>(), 56);
    }

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
        sampler.accept(7);
        sampler.accept(7);
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

    #[test]
    fn draws_over_too_many_ranks_are_the_host_s() {
        let is_served = |temperature, top_k| {
            let settings = Settings { temperature, top_k, ..Settings::default() };
            let sampler = Sampler::new(&settings, &[], &[], 1000).unwrap();
            serves(&sampler.next_draw().unwrap())
        };
        assert!(is_served(0.0, 0) && is_served(0.7, 20) && is_served(1.0, 128));
        assert!(!is_served(1.0, 0) && !is_served(1.0, 129));
    }
}
