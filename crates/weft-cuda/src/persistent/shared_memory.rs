//! A block's shared memory: a ring of stages, and a stage for inputs in every warp.

use weft_core::config::Config;

use crate::matrices::Matrices;
use crate::pack::{STRIP_BYTES, strip_units};
use crate::shape::{COLUMN_STEP, Shape, UNIT_BYTES, WARPS, padded};

/// Units of a warp in a stage of weights, at most.
pub(crate) const PORTION_UNITS: usize = 4;
/// Bytes of 32 columns of one token.
pub(crate) const X_UNIT_BYTES: usize = 64;
/// Up to this many tokens, there is room for all of a warp's part of rows of up to `longest_strip`
/// units.
pub(crate) const WHOLE_TOKENS: usize = 4;
/// The fewest stages: a section's keys and values are in the ring at once, and so are tiles that
/// are computed together.
const FEWEST_STAGES: usize = 8;
/// The most stages that there are barriers for.
pub(crate) const MOST_STAGES: usize = 16;

/// How dynamic shared memory is used, by the number of tokens of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedMemory {
    pub(crate) dynamic_bytes: usize,
    stage_bytes: usize,
    hidden_units: usize,
    longest_strip: usize,
    /// The longest strip of coded tiles whose input is awaited part by part; none if there are none.
    coded_strip: usize,
    /// Units of an expert's input in a warp, and experts of a token; none without experts.
    expert_units: usize,
    n_chosen: usize,
}

impl SharedMemory {
    pub(crate) fn new(config: &Config, shape: &Shape, dynamic_bytes: usize) -> Self {
        let page_side_bytes = weft_core::kv::PAGE_ROWS * shape.dim * 2;
        let portion_bytes = WARPS * PORTION_UNITS * UNIT_BYTES;
        let coded = CodedStages::of(config, shape);
        let (expert_units, n_chosen) = config
            .experts
            .as_ref()
            .map_or((0, 0), |experts| (padded(experts.intermediate) / COLUMN_STEP, experts.chosen));
        Self {
            dynamic_bytes,
            stage_bytes: portion_bytes.max(page_side_bytes).max(coded.bytes),
            hidden_units: padded(config.hidden) / COLUMN_STEP,
            longest_strip: shape.chip.longest_strip(),
            coded_strip: coded.strip,
            expert_units,
            n_chosen,
        }
    }

    /// Bytes of a stage of the ring: weights of a portion of a tile, a strip of coded tiles, or a
    /// side of a page.
    pub(crate) fn stage_bytes(&self) -> usize {
        self.stage_bytes
    }

    /// Units of the longest strip whose input is awaited part by part.
    pub(crate) fn coded_strip(&self) -> usize {
        self.coded_strip
    }

    /// Why the kernel cannot run, if so. If the weights of norms do not fit a stage, it does not
    /// even compile.
    pub(crate) fn refusal(&self) -> Option<String> {
        if self.hidden_units * COLUMN_STEP * 2 > self.stage_bytes {
            return Some("the model's rows are too wide for its ring".to_owned());
        }
        let kib = self.dynamic_bytes >> 10;
        let reason = || {
            format!("its ring does not fit the {kib} KiB of shared memory that a block has here")
        };
        self.n_stages(1).is_none().then(reason)
    }

    /// Units, each of one token, in a warp's stage for inputs. A norm needs a whole row before any
    /// of it can be multiplied. For other rows there is room for a portion of each of eight tokens,
    /// for a strip of coded tiles, or for a warp's whole part of a few tokens; of experts, for the
    /// inputs of all that a token uses, or for one input of each of several tokens.
    pub(crate) fn x_units(&self, n_tokens: usize) -> usize {
        let whole = if n_tokens <= WHOLE_TOKENS { n_tokens * self.longest_strip } else { 0 };
        let rows = self.hidden_units.max(self.coded_strip) * n_tokens;
        let inputs = if n_tokens == 1 { self.n_chosen } else { n_tokens };
        rows.max(whole).max(PORTION_UNITS * 8).max(inputs * self.expert_units)
    }

    /// Stages of the ring in steps of some tokens; none if they do not fit.
    pub(crate) fn n_stages(&self, n_tokens: usize) -> Option<usize> {
        let x_bytes = WARPS * self.x_units(n_tokens) * X_UNIT_BYTES;
        let ring_bytes = self.dynamic_bytes.checked_sub(x_bytes)?;
        let n_stages = (ring_bytes / self.stage_bytes).min(MOST_STAGES);
        (n_stages >= FEWEST_STAGES).then_some(n_stages)
    }
}

/// What stages hold of coded matrices (`CodedStage` in `coded_product.cuh`).
struct CodedStages {
    /// Bytes of the largest.
    bytes: usize,
    /// Units of the longest strip of `proj` and `down`.
    strip: usize,
}

impl CodedStages {
    fn of(config: &Config, shape: &Shape) -> Self {
        let Matrices { qkv, proj, gate_up, down, head, .. } = &shape.matrices;
        let normed = qkv.all.iter().chain(&gate_up.all).chain([head]);
        let normed = normed.map(|(forms, _)| (forms, config.hidden, false));
        let proj = proj.all.iter().map(|(forms, _)| (forms, config.q_width(), true));
        let down = down.all.iter().map(|(forms, _)| (forms, config.intermediate, true));
        let experts = shape.experts.iter().flat_map(|own| {
            let width = own.experts.intermediate;
            let gate_up = own.gate_up.all.iter().map(|(forms, _)| (forms, config.hidden, false));
            gate_up.chain(own.down.all.iter().map(move |(forms, _)| (forms, width, false)))
        });
        let mut most = Self { bytes: 0, strip: 0 };
        for (forms, columns, is_awaited) in normed.chain(proj).chain(down).chain(experts) {
            let Some(unit_bytes) = forms.coded_bytes() else { continue };
            let eighth = padded(columns) / COLUMN_STEP;
            let strip = strip_units(eighth, shape.chip.longest_strip(), Some(unit_bytes));
            let strip_bytes = WARPS * strip * unit_bytes;
            let pairs = if strip < eighth { 0 } else { STRIP_BYTES / strip_bytes / 2 };
            most.bytes = most.bytes.max(strip_bytes * (2 * pairs).max(1));
            most.strip = most.strip.max(if is_awaited { strip } else { 0 });
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Chip;
    use weft_core::shapes;
    use weft_core::weights::Forms;

    /// Stages, and units of a warp's stage for inputs.
    fn sizes(name: &str, shared_kib: usize, n_tokens: usize) -> Option<(usize, usize)> {
        let config = shapes::config(name).unwrap();
        let shape = Shape::new(&config, &Forms::default(), Chip::HOPPER).unwrap();
        // Approximately the kernel's static shared memory.
        let shared = SharedMemory::new(&config, &shape, (shared_kib << 10) - 32_000);
        shared.n_stages(n_tokens).map(|n_stages| (n_stages, shared.x_units(n_tokens)))
    }

    #[test]
    fn an_h200_holds_what_models_up_to_8b_need() {
        assert_eq!(sizes("qwen3-0.6b", 227, 1), Some((11, 32)));
        assert_eq!(sizes("qwen3-0.6b", 227, 4), Some((10, 48)));
        assert_eq!(sizes("qwen3-0.6b", 227, 8), Some((11, 32)));
        assert_eq!(sizes("qwen3-1.7b", 227, 8), Some((10, 64)));
        assert_eq!(sizes("qwen3-8b", 227, 8), Some((8, 128)));
    }

    #[test]
    fn norms_of_very_wide_models_do_not_fit() {
        let holds = |hidden: usize| {
            let mut config = shapes::config("qwen3-8b").unwrap();
            config.hidden = hidden;
            let shape = Shape::new(&config, &Forms::default(), Chip::HOPPER).unwrap();
            SharedMemory::new(&config, &shape, shape.chip.shared_bytes).refusal().is_none()
        };
        assert!(holds(8192) && !holds(8193));
    }

    #[test]
    fn a_gpu_with_little_shared_memory_cannot() {
        assert_eq!(sizes("qwen3-0.6b", 99, 1), None);
        assert_eq!(sizes("qwen3-14b", 227, 8), None);
        assert!(sizes("qwen3-14b", 227, 4).is_some());
    }
}
