//! Predicts how much GPU memory a device takes, with the same sums that its creation uses.

use weft_core::config::Config;
use weft_core::device::{Limits, Need};
use weft_core::kv::PAGE_ROWS;
use weft_core::weights::Forms;

use crate::buffers::{READ_BEYOND, laid_pages, sent_row};
use crate::expert_buffers;
use crate::persistent;
use crate::rows;
use crate::sampling::Sampling;
use crate::shape::{Chip, SQUARE, Shape, padded};
use crate::tables::{FEW, Family, GroupCounts, SEVERAL, Tables, max_cells, max_partials};

/// What the driver takes in addition: kernels, graphs, and gaps between allocations.
const DRIVER_BYTES: u64 = 96 << 20;

/// Bytes that a device with these limits takes, if it can run the forms at all.
pub fn need(config: &Config, forms: &Forms, limits: &Limits) -> Need {
    need_with(config, forms, limits, false)
}

/// The same if the experts lie in main memory.
pub fn need_without_experts(config: &Config, forms: &Forms, limits: &Limits) -> Need {
    need_with(config, forms, limits, true)
}

fn need_with(config: &Config, forms: &Forms, limits: &Limits, on_host: bool) -> Need {
    // How matrices are cut depends on the GPU, but not what they take.
    let shape = Shape::new(config, forms, Chip::HOPPER).ok();
    let shape = shape.map(|shape| shape.with_experts_on_host(on_host));
    let run_sums = shape.as_ref().map_or(0, |shape| run_sums(config, shape, limits));
    Need {
        weights: weights(config, shape.as_ref()),
        kv: limits.pages as u64 * page_bytes(config),
        scratch: scratch(config, limits, on_host) + run_sums + DRIVER_BYTES,
    }
}

/// Bytes of one KV page in all layers.
pub fn page_bytes(config: &Config) -> u64 {
    let dim = config.head_dim.next_multiple_of(32);
    (config.layers * config.kv_heads * 2 * PAGE_ROWS * dim * 2) as u64
}

fn weights(config: &Config, shape: Option<&Shape>) -> u64 {
    let matrices = shape.map_or(0, |shape| {
        let experts = shape.experts.as_ref().map_or(0, |experts| experts.matrix_bytes(config));
        shape.matrices.bytes(config) + experts
    });
    let (hidden, q, kv) = (config.hidden, config.q_width(), config.kv_width());
    // Two norms of the stream, two of heads, a bias; then the last norm.
    let vectors = 2 * padded(hidden) + 2 * padded(config.head_dim) + q + 2 * kv;
    (matrices + 2 * (config.layers * vectors + padded(hidden))) as u64
}

/// Sums of products' input, where warpgroups multiply.
fn run_sums(config: &Config, shape: &Shape, limits: &Limits) -> u64 {
    let tokens = limits.step_tokens;
    let experts = expert_buffers::run_sums_bytes(shape, config, tokens);
    shape.matrices.run_sums_bytes(config, tokens).max(experts) as u64
}

fn scratch(config: &Config, limits: &Limits, on_host: bool) -> u64 {
    let (q, kv) = (config.q_width(), config.kv_width());
    let dim = config.head_dim.next_multiple_of(32);
    let row = 2 * padded(config.hidden) + q + 2 * kv + padded(q) + padded(config.dense_width());
    // Where warpgroups multiply, three buffers have rows of several tokens and whole squares.
    let tokens = limits.step_tokens.max(FEW).next_multiple_of(SQUARE) + SEVERAL;
    let activations = tokens * row * 2 + 7 * READ_BEYOND;
    let logits = limits.step_outputs.max(FEW) * config.vocab * 4;
    let partials = max_partials(limits) * config.heads * ((dim + sent_row(dim)) * 4 + 8);
    let cells = max_cells(limits) * config.heads * 20;
    let rotations = 2 * limits.positions * config.head_dim * 4;
    let lists = [Family::Few, Family::Many].map(|family| Tables::bytes(limits, family));
    let counts = GroupCounts::BYTES;
    let parts = partials + cells;
    let laid = laid_pages(config, limits);
    let experts = expert_buffers::bytes(config, limits, on_host);
    let lists = lists.iter().sum::<usize>();
    let own = counts + activations + logits + parts + rotations + lists + laid + experts;
    let whole_plan = persistent::bytes(config, limits);
    (own + whole_plan + Sampling::bytes(config) + rows::bytes(config)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_core::shapes;

    #[test]
    fn weights_are_those_of_the_shape_and_little_padding() {
        for name in shapes::NAMES {
            let config = shapes::config(name).unwrap();
            let limits = Limits { step_tokens: 8, step_outputs: 8, positions: 64, pages: 1 };
            let own = need(&config, &Forms::default(), &limits).weights;
            let plain = 2 * weft_core::weights::parameters(&config);
            assert!(own >= plain && own < plain + plain / 8, "{name}: {own} of {plain}");
        }
    }

    /// The weights are all but those of experts, which are most of such a model, and little memory
    /// is left for sorting tokens by expert.
    #[test]
    fn experts_in_main_memory_take_nothing_here() {
        let config = shapes::config("qwen3-30b-a3b").unwrap();
        let limits = Limits { step_tokens: 2048, step_outputs: 16, positions: 8192, pages: 200 };
        let all = need(&config, &Forms::default(), &limits);
        let rest = need_without_experts(&config, &Forms::default(), &limits);
        let experts = 48 * 128 * 3 * 768 * 2048 * 2;
        assert_eq!(all.weights - rest.weights, experts);
        assert_eq!(all.kv, rest.kv);
        assert!(all.scratch - rest.scratch > 250 << 20, "{all:?} {rest:?}");
        let dense = shapes::config("qwen3-0.6b").unwrap();
        let [a, b] = [need, need_without_experts].map(|of| of(&dense, &Forms::default(), &limits));
        assert_eq!(a, b);
    }

    #[test]
    fn more_pages_take_more_and_nothing_else_does() {
        let config = shapes::config("qwen3-0.6b").unwrap();
        let limits = Limits { step_tokens: 2048, step_outputs: 16, positions: 8192, pages: 200 };
        let before = need(&config, &Forms::default(), &limits);
        // 112 KiB a token, and 4 more where warpgroups read a layer.
        assert_eq!(before.kv, 200 * 64 * 112 * 1024);
        let more = need(&config, &Forms::default(), &Limits { pages: 300, ..limits });
        assert_eq!(more.total() - before.total(), 100 * 64 * 116 * 1024);
    }
}
