//! How much memory the reference device takes, before it is made.

use crate::config::Config;
use crate::device::{Limits, Need};
use crate::kv::PAGE_ROWS;

/// What a device with these limits takes.
pub fn need(config: &Config, limits: &Limits) -> Need {
    let row = config.hidden + 2 * config.q_width() + 2 * config.kv_width() + config.intermediate;
    let activations = limits.step_tokens * row * config.dtype.bytes();
    let rotations = 2 * limits.positions * config.head_dim * 4;
    let logits = limits.step_outputs * config.vocab * 4;
    Need {
        weights: config.parameters() * config.dtype.bytes() as u64,
        kv: limits.pages as u64 * page_bytes(config),
        scratch: (activations + rotations + logits) as u64,
    }
}

/// Bytes of one KV page in all layers.
pub fn page_bytes(config: &Config) -> u64 {
    PAGE_ROWS as u64 * config.kv_bytes_per_token(config.dtype)
}
