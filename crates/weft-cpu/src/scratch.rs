//! Memory inside the ops: one scratch per thread, and the step as a list of tokens.

use half::bf16;
use weft::config::Config;
use weft::device::{Limits, Step};
use weft::kv::Slot;

/// One thread's memory inside an op.
pub(crate) struct Scratch {
    /// One head, f32 \[head_dim\], before rotation and after it.
    pub(crate) head: Vec<f32>,
    pub(crate) rotated: Vec<f32>,
    /// One head, bf16 \[head_dim\].
    pub(crate) rounded: Vec<bf16>,
    /// The rotated queries of one KV head, f32 \[group\]\[stride of KV rows\], zeros past head_dim.
    pub(crate) queries: Vec<f32>,
    /// Their scores, f32 \[group\]\[positions\].
    pub(crate) scores: Vec<f32>,
    /// The sums of their exponentials, f32 \[group\].
    pub(crate) totals: Vec<f32>,
    /// Their weighted sums of values, f32 \[group\]\[head_dim\].
    pub(crate) sums: Vec<f32>,
}

impl Scratch {
    pub(crate) fn new(config: &Config, limits: &Limits, kv_stride: usize) -> Self {
        let (dim, group) = (config.head_dim, config.group());
        Self {
            head: vec![0.0; dim],
            rotated: vec![0.0; dim],
            rounded: vec![bf16::ZERO; dim],
            queries: vec![0.0; group * kv_stride],
            scores: vec![0.0; group * limits.positions],
            totals: vec![0.0; group],
            sums: vec![0.0; group * dim],
        }
    }
}

/// One token of a step.
pub(crate) struct TokenPlace {
    pub(crate) lane: usize,
    pub(crate) position: usize,
    pub(crate) slot: Slot,
}

/// Lists the tokens of a step, and which of them need logits. The lists have their capacity since
/// the device was made.
pub(crate) fn list(step: &Step<'_>, tokens: &mut Vec<TokenPlace>, outputs: &mut Vec<usize>) {
    tokens.clear();
    outputs.clear();
    for (index, lane) in step.lanes.iter().enumerate() {
        let places = lane.positions.iter().zip(lane.store_at);
        tokens.extend(places.map(|(position, slot)| TokenPlace {
            lane: index,
            position: *position as usize,
            slot: *slot,
        }));
        outputs.extend(tokens.len() - lane.n_outputs()..tokens.len());
    }
}
