//! The memory that a model takes, and how much of it KV pages may be.

use weft_core::config::Config;
use weft_core::device::{Limits, MAX_LANES};
use weft_core::kv::{PAGE_ROWS, pages_for};

use crate::error::CliError;
use crate::size;

/// Tokens of a prompt that one step runs on the CPU, and on a GPU, which wants more to do at once.
const CPU_BLOCK_TOKENS: usize = 256;
const GPU_BLOCK_TOKENS: usize = 2048;

/// Each piece of a prompt may leave its last page partly filled.
const SLACK_PAGES: usize = 32;

/// Contexts whose rows stay in pages where memory allows: that of the answer, and one kept beside it.
pub(crate) const CONTEXTS: usize = 2;

/// The share of the free memory that KV pages take unasked.
const FREE_SHARE: u64 = 4;

/// Whose memory a model is put into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// This machine's.
    Machine,
    /// The GPU's, of which so much is free.
    Gpu {
        /// Bytes.
        free: u64,
    },
}

impl Where {
    fn free(self) -> Option<u64> {
        match self {
            Self::Machine => available_memory(),
            Self::Gpu { free } => Some(free),
        }
    }
}

/// The memory a model takes.
pub(crate) struct Need {
    pub(crate) limits: Limits,
    pub(crate) weights: u64,
    pub(crate) kv: u64,
    pub(crate) scratch: u64,
    place: Where,
}

impl Need {
    /// With pages for `kv_memory` bytes of rows, or, where memory allows, for some contexts.
    pub(crate) fn new(
        config: &Config,
        context: usize,
        kv_memory: Option<u64>,
        contexts: usize,
        place: Where,
    ) -> Result<Self, CliError> {
        let (step_tokens, page_bytes) = match place {
            Where::Machine => {
                (CPU_BLOCK_TOKENS, PAGE_ROWS as u64 * config.kv_bytes_per_token(config.dtype))
            }
            Where::Gpu { .. } => (GPU_BLOCK_TOKENS, weft_cuda::page_bytes(config)),
        };
        let limits = Limits {
            step_tokens,
            step_outputs: MAX_LANES + 8,
            positions: context,
            pages: pages(context, contexts, page_bytes, kv_memory, place.free())?,
        };
        Ok(match place {
            Where::Machine => Self::on_machine(config, limits),
            Where::Gpu { .. } => {
                let weft_cuda::Need { weights, kv, scratch } = weft_cuda::Need::of(config, &limits);
                Self { limits, weights, kv, scratch, place }
            }
        })
    }

    fn on_machine(config: &Config, limits: Limits) -> Self {
        let row =
            config.hidden + 2 * config.q_width() + 2 * config.kv_width() + config.intermediate;
        let activations = limits.step_tokens * row * config.dtype.bytes();
        let tables = 2 * limits.positions * config.head_dim * 4;
        let logits = limits.step_outputs * config.vocab * 4;
        let page_bytes = PAGE_ROWS as u64 * config.kv_bytes_per_token(config.dtype);
        Self {
            limits,
            weights: config.parameters() * config.dtype.bytes() as u64,
            kv: limits.pages as u64 * page_bytes,
            scratch: (activations + tables + logits) as u64,
            place: Where::Machine,
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.weights + self.kv + self.scratch
    }

    /// Refuses what the memory cannot hold, before the system kills somebody for it.
    pub(crate) fn check_fits(&self) -> Result<(), CliError> {
        match self.place.free() {
            Some(free) if self.total() > free => Err(self.too_large(free)),
            _ => Ok(()),
        }
    }

    fn too_large(&self, free: u64) -> CliError {
        let whose = match self.place {
            Where::Machine => "",
            Where::Gpu { .. } => " on the GPU",
        };
        CliError::Memory(format!(
            "the model needs {} ({} of weights, {} of KV for contexts of {} tokens, {} of scratch) \
             and {} are free{whose}; lower --ctx-size or --kv-memory, or take a smaller model",
            size::bytes(self.total()),
            size::bytes(self.weights),
            size::bytes(self.kv),
            self.limits.positions,
            size::bytes(self.scratch),
            size::bytes(free),
        ))
    }
}

/// Pages for one context at least: an answer must find room whatever is kept.
fn pages(
    context: usize,
    contexts: usize,
    page_bytes: u64,
    kv_memory: Option<u64>,
    free: Option<u64>,
) -> Result<usize, CliError> {
    let least = pages_for(context) + SLACK_PAGES;
    let that_fit = |bytes: u64| usize::try_from(bytes / page_bytes).unwrap_or(usize::MAX);
    let Some(kv_memory) = kv_memory else {
        let wanted = contexts * pages_for(context) + SLACK_PAGES;
        let bound = free.map_or(wanted, |free| that_fit(free / FREE_SHARE));
        return Ok(wanted.min(bound).max(least));
    };
    let pages = that_fit(kv_memory).min(u32::MAX as usize);
    if pages < least {
        return Err(CliError::Usage(format!(
            "--kv-memory {} is too little for a context of {context} tokens; give {} or more, or \
             lower --ctx-size",
            size::bytes(kv_memory),
            least as u64 * page_bytes,
        )));
    }
    Ok(pages)
}

/// Memory that programs can still take, where the system tells: of the machine, and of the group
/// of processes this one runs in.
pub(crate) fn available_memory() -> Option<u64> {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/sys/fs/cgroup/memory.{name}")).ok()?.trim().parse().ok()
    };
    let group: Option<u64> =
        read("max").map(|max: u64| max.saturating_sub(read("current").unwrap_or(0)));
    [machine_memory(), group].into_iter().flatten().min()
}

fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_core::shapes;

    #[test]
    fn what_is_put_on_a_gpu_is_held_against_its_memory() {
        let config = shapes::config("qwen3-8b").unwrap();
        let need = |free| Need::new(&config, 8192, None, 2, Where::Gpu { free }).unwrap();
        need(24 << 30).check_fits().unwrap();
        let refused = need(12 << 30).check_fits().unwrap_err().to_string();
        assert!(refused.contains("12.9 GB are free on the GPU"), "{refused}");
        assert!(refused.contains("16.4 GB of weights"), "{refused}");
        // Whatever this machine has: a GPU of a terabyte holds the largest.
        let config = shapes::config("qwen3-32b").unwrap();
        let need = Need::new(&config, 8192, None, 2, Where::Gpu { free: 1 << 40 }).unwrap();
        need.check_fits().unwrap();
    }

    #[test]
    fn pages_hold_two_contexts_a_quarter_of_the_memory_and_never_less_than_one() {
        let of = |kv_memory, free| pages(6400, CONTEXTS, 1000, kv_memory, free).ok();
        assert_eq!(of(None, None), Some(200 + SLACK_PAGES));
        assert_eq!(of(None, Some(1 << 30)), Some(200 + SLACK_PAGES));
        assert_eq!(of(None, Some(640_000)), Some(160), "a quarter");
        assert_eq!(of(None, Some(4000)), Some(100 + SLACK_PAGES), "one context");
        assert_eq!(of(Some(500_000), Some(4000)), Some(500), "as the user says");
        let refused = pages(6400, CONTEXTS, 1000, Some(100_000), None).unwrap_err().to_string();
        assert!(refused.contains("6400") && refused.contains("132000"), "{refused}");
    }
}
