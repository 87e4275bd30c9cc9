//! From a model's name to an engine: find it, check that it fits, read it with a bar.

use std::time::Instant;

use indicatif::ProgressBar;
use weft::config::Config;
use weft::device::{Device, Limits, MAX_LANES};
use weft::dtype::Dtype;
use weft::engine::Engine;
use weft::hub::{self, HubEnv, HubError, ModelRef};
use weft::kv::{PAGE_ROWS, pages_for};
use weft::model::{Model, ModelError};
use weft::reference;
use weft::weights::{Tensor, Weights, WeightsError};
use weft_cpu::{CpuDevice, Options};
use weft_cuda::{CudaDevice, CudaError, Launches};

use crate::args::{DeviceKind, Kernels, ModelArgs};
use crate::bundled;
use crate::error::CliError;
use crate::pull;
use crate::self_test;
use crate::size;
use crate::terminal;

/// Context where the user asks for none: enough for a long document, small enough to fit anywhere.
const DEFAULT_CONTEXT: usize = 8192;

/// Tokens of a prompt that one step runs.
const BLOCK_TOKENS: usize = 256;

/// A model ready to answer.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) engine: Engine,
}

/// Opens a model by its name: a folder, a model of the hub (downloaded if the cache has it not, or
/// not whole), or, without a name, the bundled one.
pub(crate) fn open(name: Option<&str>, args: &ModelArgs) -> Result<Model, CliError> {
    let Some(name) = name.or(args.model.as_deref()) else {
        return Ok(bundled::open()?);
    };
    let reference = ModelRef::parse(name)?;
    let mut env = HubEnv::from_env()?;
    env.offline |= args.offline;
    let folder = match hub::resolve(&reference, &env) {
        Err(
            HubError::NotCached { .. }
            | HubError::RevisionNotCached { .. }
            | HubError::Incomplete { .. },
        ) if !env.offline => pull::pull(&reference, &env, &*pull::progress(args.quiet))?,
        found => found?,
    };
    Ok(Model::open(&folder)?)
}

/// Opens a model and puts it on the device that the user asked for.
pub(crate) fn load(args: &ModelArgs) -> Result<Loaded, CliError> {
    let start = Instant::now();
    wanted_launches(args.device, args.kernels)?;
    let model = open(None, args)?;
    let (kind, tested) = choose_device(args, &model.config)?;
    let need = Need::new(&model.config, context(args, &model.config)?);
    need.check_fits()?;

    let bar = terminal::bar(args.quiet, need.weights, "loading", true);
    let counted = Counted { weights: &*model.weights, config: &model.config, bar: &bar };
    let device = kind.make(&model.config, &counted, need.limits, args.threads);
    let engine = Engine::new(&model, device?);
    bar.finish_and_clear();
    terminal::note(
        args.quiet,
        &format!(
            "{} {} · {}{tested} · {} of weights, {} of KV for {} tokens · loaded in {:.1} s",
            model.config.family,
            size::count(model.config.parameters()),
            engine.device().describe(),
            size::bytes(need.weights),
            size::bytes(need.kv),
            need.limits.positions,
            start.elapsed().as_secs_f64()
        ),
    );
    Ok(Loaded { model, engine })
}

/// The devices that this version has.
enum Chosen {
    Cuda(Launches),
    Cpu,
    Reference,
}

impl Chosen {
    fn make(
        &self,
        config: &Config,
        weights: &dyn Weights,
        limits: Limits,
        threads: Option<usize>,
    ) -> Result<Box<dyn Device>, CliError> {
        match self {
            Self::Cuda(launches) => cuda(config, weights, limits, *launches),
            Self::Reference => {
                Ok(reference::open(config, weights, limits).map_err(ModelError::from)?)
            }
            Self::Cpu => {
                let mut options = Options::new(limits);
                options.threads = threads.unwrap_or(options.threads);
                let device = CpuDevice::new(config, weights, options).map_err(ModelError::from)?;
                Ok(Box::new(device))
            }
        }
    }
}

/// Puts a model on the GPU.
pub(crate) fn cuda(
    config: &Config,
    weights: &dyn Weights,
    limits: Limits,
    launches: Launches,
) -> Result<Box<dyn Device>, CliError> {
    let options = weft_cuda::Options { limits, launches };
    match CudaDevice::new(config, weights, options) {
        Ok(device) => Ok(Box::new(device)),
        Err(CudaError::Weights(error)) => Err(ModelError::from(error).into()),
        Err(error) => Err(CliError::Gpu(error.to_string())),
    }
}

/// How the GPU launches ops, where the flags ask for a GPU and there is one; nothing where they
/// ask for another device, or leave the choice and there is no GPU.
pub(crate) fn wanted_launches(
    device: DeviceKind,
    kernels: Kernels,
) -> Result<Option<Launches>, CliError> {
    let launches = match kernels {
        Kernels::Reference => return Ok(None),
        Kernels::Ops => Launches::Ops,
        Kernels::Auto | Kernels::Graph => Launches::Graph,
    };
    let must = device == DeviceKind::Cuda || matches!(kernels, Kernels::Graph | Kernels::Ops);
    if device == DeviceKind::Cpu {
        let message = "--kernels graph and ops need a CUDA device; leave out --device cpu";
        return if must { Err(CliError::Gpu(message.to_owned())) } else { Ok(None) };
    }
    match weft_cuda::probe() {
        Ok(_) => Ok(Some(launches)),
        Err(error) if must => {
            Err(CliError::Gpu(format!("{error}; or use --device cpu and --kernels auto")))
        }
        Err(_) => Ok(None),
    }
}

/// Chooses the device, and tells how its self-test went. The fast devices compute in bf16, so a
/// float32 model stays on the reference device: nothing loses precision unasked.
fn choose_device(args: &ModelArgs, config: &Config) -> Result<(Chosen, String), CliError> {
    let launches = wanted_launches(args.device, args.kernels)?;
    let no_gpu = args.device == DeviceKind::Auto && launches.is_none();
    let no_gpu = if no_gpu && weft_cuda::probe().is_err() { " (no CUDA device)" } else { "" };
    if args.kernels == Kernels::Reference || config.dtype != Dtype::Bf16 {
        return Ok((Chosen::Reference, no_gpu.to_owned()));
    }
    let (chosen, tested) = match launches {
        Some(launches) => (Chosen::Cuda(launches), self_test::run_cuda()),
        None => (Chosen::Cpu, self_test::run()),
    };
    Ok(match tested {
        Ok(passed) => (chosen, format!("{no_gpu} · self-test {:.0} ms", passed.time_ms())),
        Err(reason) => {
            eprintln!(
                "weft: SELF-TEST FAILED: {reason}; answering slowly, on the reference device"
            );
            (Chosen::Reference, " · SELF-TEST FAILED".to_owned())
        }
    })
}

pub(crate) fn context(args: &ModelArgs, config: &Config) -> Result<usize, CliError> {
    let wanted = args.ctx_size.unwrap_or(DEFAULT_CONTEXT.min(config.max_positions));
    if wanted > config.max_positions {
        return Err(CliError::Usage(format!(
            "--ctx-size {wanted} is beyond the {} positions this model was made for",
            config.max_positions
        )));
    }
    if wanted < 2 {
        return Err(CliError::Usage(
            "--ctx-size must hold a prompt and an answer: 2 or more".into(),
        ));
    }
    Ok(wanted)
}

/// The memory a model takes.
pub(crate) struct Need {
    pub(crate) limits: Limits,
    pub(crate) weights: u64,
    pub(crate) kv: u64,
    pub(crate) scratch: u64,
}

impl Need {
    pub(crate) fn new(config: &Config, context: usize) -> Self {
        let limits = Limits {
            step_tokens: BLOCK_TOKENS,
            step_outputs: MAX_LANES + 8,
            positions: context,
            pages: pages_for(context),
        };
        let row =
            config.hidden + 2 * config.q_width() + 2 * config.kv_width() + config.intermediate;
        let activations = limits.step_tokens * row * config.dtype.bytes();
        let tables = 2 * context * config.head_dim * 4;
        let logits = limits.step_outputs * config.vocab * 4;
        Self {
            limits,
            weights: config.parameters() * config.dtype.bytes() as u64,
            kv: (limits.pages * PAGE_ROWS) as u64 * config.kv_bytes_per_token(config.dtype),
            scratch: (activations + tables + logits) as u64,
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.weights + self.kv + self.scratch
    }

    /// Refuses what the machine cannot hold, before the system kills somebody for it.
    fn check_fits(&self) -> Result<(), CliError> {
        let Some(free) = available_memory() else { return Ok(()) };
        if self.total() <= free {
            return Ok(());
        }
        Err(CliError::Memory(format!(
            "the model needs {} ({} of weights, {} of KV for {} tokens) and {} are free; \
             lower --ctx-size or take a smaller model",
            size::bytes(self.total()),
            size::bytes(self.weights),
            size::bytes(self.kv),
            self.limits.positions,
            size::bytes(free),
        )))
    }
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

/// Weights that move a bar as they are read.
struct Counted<'a> {
    weights: &'a dyn Weights,
    config: &'a Config,
    bar: &'a ProgressBar,
}

impl Weights for Counted<'_> {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        let bytes = self.config.dtype.bytes();
        self.weights.read(tensor, &mut |row, values| {
            self.bar.inc((values.len() * bytes) as u64);
            visit(row, values);
        })
    }
}
