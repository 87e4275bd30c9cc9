//! Memory inside the ops: one scratch per thread, and the step as a list of tokens.

use half::bf16;
use weft_core::config::Config;
use weft_core::device::{Limits, Reporting, Step};
use weft_core::kv::Slot;

use crate::coded::RUN;
use crate::pack::BLOCK_ROWS;
use crate::tiles::{self, Tiles};

/// One thread's memory inside an op.
pub(crate) struct Scratch {
    /// One head, f32 \[head_dim\], before rotation and after it.
    pub(crate) head: Vec<f32>,
    pub(crate) rotated: Vec<f32>,
    /// One head, bf16 \[head_dim\].
    pub(crate) rounded: Vec<bf16>,
    /// The rotated queries of one tile, bf16 \[queries\]\[head_dim\].
    pub(crate) queries: Vec<bf16>,
    /// Their scores, f32 \[queries\]\[positions\].
    pub(crate) scores: Vec<f32>,
    /// How many rows each sees.
    pub(crate) seen: Vec<usize>,
    /// The sums of their exponentials, f32 \[queries\].
    pub(crate) totals: Vec<f32>,
    /// Their weighted sums of values, f32 \[queries\]\[stride of values\].
    pub(crate) sums: Vec<f32>,
    /// Two blocks of codes as bf16, \[2\]\[widest matrix\]\[64\]; empty if all weights are plain.
    pub(crate) unpacked: Vec<bf16>,
    /// Weighted sums of the experts' outputs, f32 \[tokens\]\[two blocks\]; empty in dense models.
    pub(crate) weighted: Vec<[f32; 2 * BLOCK_ROWS]>,
}

/// The lengths of a scratch's vectors.
struct Lengths {
    dim: usize,
    queries: usize,
    positions: usize,
    kv_stride: usize,
    unpacked: usize,
    weighted: usize,
}

impl Lengths {
    fn of(config: &Config, limits: &Limits, kv_stride: usize, coded: bool) -> Self {
        let queries = tiles::MAX_TOKENS * config.group();
        let expert_width = config.experts.as_ref().map_or(0, |e| e.intermediate);
        let widest = [config.hidden, config.q_width(), config.dense_width(), expert_width];
        let widest = widest.into_iter().fold(0, usize::max);
        let weighted = if config.experts.is_some() { limits.step_tokens } else { 0 };
        let unpacked = if coded { 2 * widest.next_multiple_of(RUN) * BLOCK_ROWS } else { 0 };
        let (dim, positions) = (config.head_dim, limits.positions);
        Self { dim, queries, positions, kv_stride, unpacked, weighted }
    }
}

impl Scratch {
    pub(crate) fn new(config: &Config, limits: &Limits, kv_stride: usize, coded: bool) -> Self {
        let lengths = Lengths::of(config, limits, kv_stride, coded);
        let Lengths { dim, queries, positions, kv_stride, unpacked, weighted } = lengths;
        Self {
            head: vec![0.0; dim],
            rotated: vec![0.0; dim],
            rounded: vec![bf16::ZERO; dim],
            queries: vec![bf16::ZERO; queries * dim],
            scores: vec![0.0; queries * positions],
            seen: vec![0; queries],
            totals: vec![0.0; queries],
            sums: vec![0.0; queries * kv_stride],
            unpacked: vec![bf16::ZERO; unpacked],
            weighted: vec![[0.0; 2 * BLOCK_ROWS]; weighted],
        }
    }

    /// Bytes of all that [`Scratch::new`] allocates.
    pub(crate) fn bytes(config: &Config, limits: &Limits, kv_stride: usize, coded: bool) -> u64 {
        let lengths = Lengths::of(config, limits, kv_stride, coded);
        let Lengths { dim, queries, positions, kv_stride, unpacked, weighted } = lengths;
        let floats = 2 * dim + queries * (positions + 1 + kv_stride) + weighted * 2 * BLOCK_ROWS;
        let bf16s = dim + queries * dim + unpacked;
        let bytes = floats * size_of::<f32>() + bf16s * size_of::<bf16>();
        (bytes + queries * size_of::<usize>()) as u64
    }
}

/// One token of a step.
pub(crate) struct TokenPlace {
    pub(crate) lane: usize,
    pub(crate) position: usize,
    pub(crate) key_position: usize,
    pub(crate) slot: Slot,
    /// The row of shares that reports its attention, if any.
    pub(crate) share_row: Option<usize>,
}

/// The step as lists. Their capacity is allocated when the device is created.
pub(crate) struct Lists {
    /// All tokens, lane by lane.
    pub(crate) tokens: Vec<TokenPlace>,
    /// Tokens that need logits.
    pub(crate) outputs: Vec<usize>,
    /// The groups of tokens that attend together.
    pub(crate) tiles: Tiles,
}

impl Lists {
    pub(crate) fn new(config: &Config, limits: &Limits, n_threads: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(limits.step_tokens),
            outputs: Vec::with_capacity(limits.step_outputs),
            tiles: Tiles::new(config, limits, n_threads),
        }
    }

    /// Lists a step's tokens.
    pub(crate) fn fill(&mut self, step: &Step<'_>, reporting: &Reporting) {
        let Self { tokens, outputs, tiles } = self;
        tokens.clear();
        outputs.clear();
        tiles.fill(step);
        for (index, lane) in step.lanes.iter().enumerate() {
            tokens.extend((0..lane.tokens.len()).map(|i| TokenPlace {
                lane: index,
                position: lane.positions[i] as usize,
                key_position: lane.key_positions[i] as usize,
                slot: lane.store_at[i],
                share_row: reporting.row_of_token(index, i),
            }));
            let end = tokens.len();
            outputs.extend(end - lane.n_outputs()..end);
        }
    }
}
