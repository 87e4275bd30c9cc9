//! The memory that a device needs.

use crate::config::Config;
use crate::dtype::Dtype;
use crate::kv::PAGE_ROWS;
use crate::routing::Route;
use crate::weights::Forms;

/// The sizes that a device is created for. They determine its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens in one step, over all lanes.
    pub step_tokens: usize,
    /// Logit rows in one step, over all lanes.
    pub step_outputs: usize,
    /// Maximum number of positions, and so the longest context of a lane.
    pub positions: usize,
    /// KV pages.
    pub pages: usize,
}

/// The memory that a device needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Weights.
    pub weights: u64,
    /// KV pages.
    pub kv: u64,
    /// Everything else.
    pub scratch: u64,
}

impl Need {
    /// The memory of a device that computes in this format and stores tensors without padding.
    pub fn unpadded(config: &Config, forms: &Forms, limits: &Limits, dtype: Dtype) -> Self {
        let (q, kv) = (config.q_width(), config.kv_width());
        let expert_h = config.experts.as_ref().map_or(0, |e| e.chosen * e.intermediate);
        let routes = config.experts.as_ref().map_or(0, |e| e.chosen * size_of::<Route>());
        let row = config.hidden + 2 * q + 2 * kv + config.dense_width() + expert_h;
        let activations = limits.step_tokens * (row * dtype.bytes() + routes);
        let rotations = 2 * limits.positions * config.head_dim * 4;
        let logits = limits.step_outputs * config.vocab * 4;
        Self {
            weights: forms.total_bytes(config, dtype),
            kv: (limits.pages * PAGE_ROWS) as u64 * config.kv_bytes_per_token(dtype),
            scratch: (activations + rotations + logits) as u64,
        }
    }

    /// The sum.
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.scratch
    }
}
