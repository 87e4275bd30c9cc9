//! Plans the memory of a model, and the share of it that KV pages get.

use weft_core::config::Config;
use weft_core::device::{Limits, MAX_LANES, Need};
use weft_core::dtype::Dtype;
use weft_core::kv::{MAX_PAGES, PAGE_ROWS, pages_for};
use weft_core::weights::Forms;

use crate::device::Chosen;
use crate::error::Error;

/// Prompt tokens per step on the CPU.
const CPU_BLOCK_TOKENS: usize = 256;
/// Prompt tokens per step on a GPU. Larger steps use more of its parallelism.
#[cfg(feature = "cuda")]
const GPU_BLOCK_TOKENS: usize = 2048;

/// The prompt tokens that a step of a device takes at most.
#[must_use]
pub fn step_tokens(device: Chosen) -> usize {
    match device {
        #[cfg(feature = "cuda")]
        _ if device.is_gpu() => GPU_BLOCK_TOKENS,
        _ => CPU_BLOCK_TOKENS,
    }
}

/// Each piece of a prompt may leave its last page partly filled.
const SLACK_PAGES: usize = 32;

/// Contexts whose rows stay in pages if memory allows: the running one, and an earlier one.
pub const CONTEXTS: usize = 2;

/// KV pages take at most 1/4 of the free memory by default.
const FREE_SHARE: u64 = 4;

/// Space for the KV rows of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Maximum tokens of a context, prompt and answer together.
    pub context: usize,
    /// Number of contexts that should fit side by side, if memory allows.
    pub contexts: usize,
    /// Bytes for KV rows. Overrides `contexts`.
    pub kv_memory: Option<u64>,
}

/// The memory that a model uses on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The sizes that the device is created for.
    pub limits: Limits,
    /// The memory that the device allocates.
    pub need: Need,
    /// Free bytes before the model was loaded, if known.
    pub free: Option<u64>,
    /// The main memory of experts, if they lie there beside a GPU.
    pub experts: Option<ExpertMemory>,
    on_gpu: bool,
    /// Whether the GPU holds experts.
    has_experts: bool,
}

/// The main memory that experts use beside a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertMemory {
    /// The memory that they allocate.
    pub need: Need,
    /// Free bytes before they were loaded, if known.
    pub free: Option<u64>,
}

impl MemoryPlan {
    /// Plans the memory of a model on a device. `threads` applies to the CPU, and to experts in main
    /// memory; without it, all cores are used.
    ///
    /// # Errors
    /// [`Error::KvMemory`] if `room` has too few bytes; [`Error::Gpu`] if the GPU reports an error.
    pub fn new(
        config: &Config,
        forms: &Forms,
        room: &Room,
        device: Chosen,
        threads: Option<usize>,
    ) -> Result<Self, Error> {
        let free = device.free_memory()?;
        let mut plan = Self::with_free(config, forms, room, device, threads, free)?;
        if let Some(experts) = &mut plan.experts {
            experts.free = available_memory();
        }
        Ok(plan)
    }

    /// Plans the memory like [`new`](Self::new), with a given amount of free memory on the device.
    ///
    /// # Errors
    /// [`Error::KvMemory`]
    pub fn with_free(
        config: &Config,
        forms: &Forms,
        room: &Room,
        device: Chosen,
        #[cfg_attr(not(feature = "cpu"), expect(unused_variables))] threads: Option<usize>,
        free: Option<u64>,
    ) -> Result<Self, Error> {
        let plain_page = |dtype: Dtype| PAGE_ROWS as u64 * config.kv_bytes_per_token(dtype);
        let page_bytes = match device {
            #[cfg(feature = "cuda")]
            Chosen::Cuda(_) => weft_cuda::page_bytes(config),
            #[cfg(all(feature = "cuda", feature = "cpu"))]
            Chosen::CudaWithHostExperts => weft_cuda::page_bytes(config),
            #[cfg(feature = "cpu")]
            Chosen::Cpu => plain_page(Dtype::Bf16),
            Chosen::Reference => plain_page(config.dtype),
        };
        let limits = Limits {
            step_tokens: step_tokens(device),
            step_outputs: MAX_LANES + 8,
            positions: room.context,
            pages: pages(room, page_bytes, free)?,
        };
        #[cfg(feature = "cpu")]
        let n_threads = threads.unwrap_or_else(weft_cpu::n_cores);
        let (need, experts) = match device {
            #[cfg(feature = "cuda")]
            Chosen::Cuda(_) => (weft_cuda::need(config, forms, &limits), None),
            #[cfg(all(feature = "cuda", feature = "cpu"))]
            Chosen::CudaWithHostExperts => {
                let need = weft_cpu::need_of_experts(config, forms, limits.step_tokens, n_threads);
                let others = weft_cuda::need_without_experts(config, forms, &limits);
                (others, Some(ExpertMemory { need, free: None }))
            }
            #[cfg(feature = "cpu")]
            Chosen::Cpu => (weft_cpu::need(config, forms, &limits, n_threads), None),
            Chosen::Reference => (Need::unpadded(config, forms, &limits, config.dtype), None),
        };
        let on_gpu = device.is_gpu();
        let has_experts = on_gpu && experts.is_none() && config.experts.is_some();
        Ok(Self { limits, need, free, experts, on_gpu, has_experts })
    }

    /// Whether the device is a GPU.
    #[must_use]
    pub fn on_gpu(&self) -> bool {
        self.on_gpu
    }

    /// Checks that the model fits into the free memory, before the system kills a process for it.
    ///
    /// # Errors
    /// [`Error::TooLarge`] and [`Error::ExpertsTooLarge`]
    pub fn check_fits(&self) -> Result<(), Error> {
        if let Some(free) = self.free.filter(|free| self.need.total() > *free) {
            return Err(Error::TooLarge {
                need: self.need,
                free,
                context: self.limits.positions,
                on_gpu: self.on_gpu,
                has_experts: self.has_experts,
            });
        }
        match self.experts {
            Some(ExpertMemory { need, free: Some(free) }) if need.total() > free => {
                Err(Error::ExpertsTooLarge { need, free })
            }
            _ => Ok(()),
        }
    }
}

/// Checks that a model and its draft model fit together.
///
/// # Errors
/// [`Error::DraftTooLarge`]
pub(crate) fn check_fit_together(model: &MemoryPlan, draft: &MemoryPlan) -> Result<(), Error> {
    match model.free {
        Some(free) if model.need.total() + draft.need.total() > free => Err(Error::DraftTooLarge {
            need: model.need,
            draft: draft.need,
            free,
            on_gpu: model.on_gpu,
        }),
        _ => Ok(()),
    }
}

/// The number of pages: at least one context, so that an answer fits whatever else is cached.
fn pages(room: &Room, page_bytes: u64, free: Option<u64>) -> Result<usize, Error> {
    let least = pages_for(room.context) + SLACK_PAGES;
    let that_fit = |bytes: u64| usize::try_from(bytes / page_bytes).unwrap_or(usize::MAX);
    let Some(kv_memory) = room.kv_memory else {
        let wanted = room.contexts * pages_for(room.context) + SLACK_PAGES;
        let bound = free.map_or(wanted, |free| that_fit(free / FREE_SHARE));
        return Ok(wanted.min(bound).max(least));
    };
    let pages = that_fit(kv_memory).min(MAX_PAGES);
    if pages < least {
        return Err(Error::KvMemory {
            given: kv_memory,
            least: least as u64 * page_bytes,
            context: room.context,
        });
    }
    Ok(pages)
}

/// Default size of the RAM cache for KV rows of earlier prompts. It is small, because the pages of
/// the CPU device already lie in main memory.
pub fn default_ram_cache() -> u64 {
    const BYTES: u64 = 256 << 20;
    /// At most 1/16 of the free memory.
    const SHARE: u64 = 16;
    available_memory().map_or(BYTES, |free| BYTES.min(free / SHARE))
}

/// Memory that this process can still allocate, if the system reports it: the smaller of the
/// machine's and the cgroup's.
pub fn available_memory() -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/memory.{name}")).ok();
    available(machine_memory(), read)
}

/// The smaller of a machine's free memory and that of a cgroup, whose files `read` reads.
fn available(machine: Option<u64>, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let number = |name: &str| read(name)?.trim().parse().ok();
    let group: Option<u64> =
        number("max").map(|max: u64| max.saturating_sub(number("current").unwrap_or(0)));
    [machine, group].into_iter().flatten().min()
}

/// Linux has a file for it, macOS a program; other systems do not say.
fn machine_memory() -> Option<u64> {
    if cfg!(target_os = "macos") {
        let output = std::process::Command::new("/usr/bin/vm_stat").output().ok()?;
        return of_vm_stat(&String::from_utf8_lossy(&output.stdout));
    }
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some(number_after(&text, "MemAvailable:")? * 1024)
}

/// What `vm_stat` prints: the pages that are free, and those that are given up first.
fn of_vm_stat(text: &str) -> Option<u64> {
    let pages = number_after(text, "Pages free:")? + number_after(text, "Pages inactive:")?;
    Some(pages * number_after(text, "(page size of")?)
}

/// The number that follows a name.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let word = text.split_once(name)?.1.split_whitespace().next()?;
    word.trim_end_matches('.').parse().ok()
}

/// Formats a number of bytes with a decimal unit and three digits: `1.19 GB`.
pub fn in_bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "cuda")]
    #[test]
    fn what_is_put_on_a_gpu_is_held_against_its_memory() {
        use weft_core::shapes;
        let room = Room { context: 8192, contexts: 2, kv_memory: None };
        let plan = |name, free| {
            let config = shapes::config(name).unwrap();
            let cuda = Chosen::Cuda(weft_cuda::Launches::Auto);
            MemoryPlan::with_free(&config, &Forms::default(), &room, cuda, None, Some(free))
                .unwrap()
        };
        plan("qwen3-8b", 24 << 30).check_fits().unwrap();
        let refused = plan("qwen3-8b", 12 << 30).check_fits().unwrap_err().to_string();
        assert!(refused.contains("12.9 GB is free on the GPU"), "{refused}");
        assert!(refused.contains("16.4 GB of weights"), "{refused}");
        plan("qwen3-32b", 1 << 40).check_fits().unwrap();
    }

    /// Experts count to main memory by their true size, and the rest to the GPU's.
    #[cfg(all(feature = "cuda", feature = "cpu"))]
    #[test]
    fn experts_in_main_memory_are_held_against_main_memory() {
        use weft_core::shapes;
        let room = Room { context: 8192, contexts: 2, kv_memory: None };
        let config = shapes::config("qwen3-30b-a3b").unwrap();
        let plan = |device, free| {
            MemoryPlan::with_free(&config, &Forms::default(), &room, device, Some(1), Some(free))
                .unwrap()
        };
        let whole = plan(Chosen::Cuda(weft_cuda::Launches::Auto), 24 << 30);
        let refused = whole.check_fits().unwrap_err().to_string();
        assert!(refused.contains("free on the GPU") && refused.contains("experts"), "{refused}");
        let split = plan(Chosen::CudaWithHostExperts, 24 << 30);
        split.check_fits().unwrap();
        let experts = split.experts.unwrap();
        assert_eq!(experts.need.weights, 48 * 128 * 3 * 768 * 2048 * 2);
        assert_eq!(split.need.weights + experts.need.weights, whole.need.weights);
        let with = |free| MemoryPlan {
            experts: Some(ExpertMemory { free: Some(free), ..experts }),
            ..split.clone()
        };
        with(64 << 30).check_fits().unwrap();
        let refused = with(32 << 30).check_fits().unwrap_err().to_string();
        assert!(refused.contains("58.0 GB of weights"), "{refused}");
        assert!(refused.contains("34.4 GB is free"), "{refused}");
        // On a card that the rest does not fit either, experts are no way out.
        let refused = plan(Chosen::CudaWithHostExperts, 1 << 30).check_fits().unwrap_err();
        assert!(!refused.to_string().contains("experts"), "{refused}");
    }

    #[test]
    fn a_draft_model_is_held_against_what_the_model_leaves() {
        let config = weft_core::shapes::config("qwen3-0.6b").unwrap();
        let room = Room { context: 4096, contexts: 1, kv_memory: None };
        let plan = |free| {
            let (forms, device) = (Forms::default(), Chosen::Reference);
            MemoryPlan::with_free(&config, &forms, &room, device, None, Some(free)).unwrap()
        };
        let model = plan(16 << 30);
        check_fit_together(&model, &plan(8 << 30)).unwrap();
        let total = model.need.total();
        let tight = MemoryPlan { free: Some(total + total / 2), ..model };
        tight.check_fits().unwrap();
        let refused = check_fit_together(&tight, &plan(total / 2)).unwrap_err().to_string();
        assert!(refused.contains("draft model") && refused.contains("is free"), "{refused}");
    }

    #[test]
    fn every_system_s_free_memory_is_read() {
        let mac = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n\
                   Pages free:                               10000.\n\
                   Pages active:                            300000.\n\
                   Pages inactive:                           20000.\n";
        assert_eq!(of_vm_stat(mac), Some(30_000 * 16_384));
        assert_eq!(of_vm_stat("vm_stat: no such thing"), None);
        assert_eq!(
            number_after("MemTotal: 9 kB\nMemAvailable:   12 kB", "MemAvailable:"),
            Some(12)
        );
        if cfg!(any(target_os = "linux", target_os = "macos")) {
            assert!(machine_memory().is_some_and(|bytes| bytes > 1 << 20));
        }
    }

    /// As in a container, whose machine has more.
    #[test]
    fn the_limit_of_a_cgroup_counts() {
        let free = |machine, max: &str, current: &str| {
            let files = [("max", max), ("current", current)];
            available(machine, |name| {
                let (_, text) = files.iter().find(|(file, _)| *file == name)?;
                (!text.is_empty()).then(|| format!("{text}\n"))
            })
        };
        assert_eq!(free(Some(5000), "1000", "400"), Some(600));
        assert_eq!(free(Some(5000), "1000", "1100"), Some(0));
        assert_eq!(free(Some(5000), "1000", ""), Some(1000));
        assert_eq!(free(Some(100), "1000", "400"), Some(100));
        assert_eq!(free(None, "1000", "400"), Some(600));
        for no_limit in ["max", ""] {
            assert_eq!(free(Some(5000), no_limit, "400"), Some(5000));
            assert_eq!(free(None, no_limit, "400"), None);
        }
    }

    #[test]
    fn bytes_keep_three_digits() {
        assert_eq!(in_bytes(999), "999 B");
        assert_eq!(in_bytes(1_192_099_840), "1.19 GB");
        assert_eq!(in_bytes(114_688), "115 kB");
    }

    #[test]
    fn pages_hold_two_contexts_a_quarter_of_the_memory_and_never_less_than_one() {
        let room = |kv_memory| Room { context: 6400, contexts: CONTEXTS, kv_memory };
        let of = |kv_memory, free| pages(&room(kv_memory), 1000, free).ok();
        assert_eq!(of(None, None), Some(200 + SLACK_PAGES));
        assert_eq!(of(None, Some(1 << 30)), Some(200 + SLACK_PAGES));
        assert_eq!(of(None, Some(640_000)), Some(160), "a quarter");
        assert_eq!(of(None, Some(4000)), Some(100 + SLACK_PAGES), "one context");
        assert_eq!(of(Some(500_000), Some(4000)), Some(500), "as the user says");
        let most = pages(&room(Some(u64::MAX)), 1, None).unwrap();
        assert!(u32::try_from(most * PAGE_ROWS).is_ok(), "{most} pages have rows without a slot");
        let refused = pages(&room(Some(100_000)), 1000, None).unwrap_err().to_string();
        assert!(refused.contains("6400") && refused.contains("132 kB"), "{refused}");
    }
}
