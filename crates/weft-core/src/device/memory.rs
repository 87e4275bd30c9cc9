//! How much memory a device takes, and for what.

use crate::config::Config;
use crate::dtype::Dtype;
use crate::kv::PAGE_ROWS;
use crate::weights::parameters;

/// How much memory a device takes when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens in one step, over all lanes.
    pub step_tokens: usize,
    /// Logit rows in one step, over all lanes.
    pub step_outputs: usize,
    /// Positions, and with them the longest context of a lane.
    pub positions: usize,
    /// KV pages.
    pub pages: usize,
}

/// Bytes that a device takes.
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
    /// What a device takes that keeps everything in this format, as the model has it.
    pub fn unpadded(config: &Config, limits: &Limits, dtype: Dtype) -> Self {
        let (q, kv) = (config.q_width(), config.kv_width());
        let row = config.hidden + 2 * q + 2 * kv + config.intermediate;
        let activations = limits.step_tokens * row * dtype.bytes();
        let rotations = 2 * limits.positions * config.head_dim * 4;
        let logits = limits.step_outputs * config.vocab * 4;
        Self {
            weights: parameters(config) * dtype.bytes() as u64,
            kv: (limits.pages * PAGE_ROWS) as u64 * config.kv_bytes_per_token(dtype),
            scratch: (activations + rotations + logits) as u64,
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.scratch
    }
}
