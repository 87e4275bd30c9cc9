//! From a model's name to an engine: find it, check that it fits, read it with a bar.

use std::time::Instant;

use indicatif::ProgressBar;
use weft_core::config::Config;
use weft_core::device::{Device, Limits};
use weft_core::dtype::Dtype;
use weft_core::engine::Engine;
use weft_core::hub::{self, HubEnv, HubError, ModelRef};
use weft_core::model::{Model, ModelError};
use weft_core::reference;
use weft_core::weights::{Tensor, Weights, WeightsError};
use weft_cpu::{CpuDevice, Options};
use weft_cuda::{CudaDevice, CudaError, Launches};

use crate::args::{CacheArgs, DeviceKind, Kernels, ModelArgs};
use crate::bundled;
use crate::error::CliError;
use crate::memory::{CONTEXTS, Need, Where};
use crate::pull;
use crate::self_test;
use crate::size;
use crate::terminal;
use crate::tiers;

/// Context where the user asks for none: enough for a long document, small enough to fit anywhere.
const DEFAULT_CONTEXT: usize = 8192;

/// A model ready to answer.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) engine: Engine,
}

impl Loaded {
    /// Tells what went wrong with kept rows since the last time; the answers are unaffected.
    pub(crate) fn tell_warnings(&mut self) {
        self.engine.take_warnings().iter().for_each(|warning| terminal::warn(warning));
    }

    /// What decides the bits of this model's rows on this device.
    pub(crate) fn fingerprint(&self) -> String {
        self.model.fingerprint(&self.engine.device().kv_family())
    }
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
pub(crate) fn load(args: &ModelArgs, cache: &CacheArgs) -> Result<Loaded, CliError> {
    wanted_launches(args.device, args.kernels)?;
    load_model(open(None, args)?, args, cache)
}

/// Puts an opened model on the device that the user asked for.
pub(crate) fn load_model(
    model: Model,
    args: &ModelArgs,
    cache: &CacheArgs,
) -> Result<Loaded, CliError> {
    let start = Instant::now();
    let (kind, tested) = choose_device(args, &model.config)?;
    let context = context(args, &model.config)?;
    let contexts = cache.contexts.unwrap_or(CONTEXTS);
    let need = Need::new(&model.config, context, cache.kv_memory, contexts, kind.place()?)?;
    need.check_fits()?;

    let bar = terminal::bar(args.quiet, need.weights, "loading", true);
    let counted = Counted { weights: &*model.weights, config: &model.config, bar: &bar };
    let device = kind.make(&model.config, &counted, need.limits, args.threads);
    let engine = Engine::with_tiers(&model, device?, tiers::open(cache));
    bar.finish_and_clear();
    terminal::note(
        args.quiet,
        &format!(
            "{} {} · {}{tested} · {} of weights + {} of KV + {} of scratch = {}, context {} · \
             loaded in {:.1} s",
            model.config.family,
            size::count(model.config.parameters()),
            engine.device().describe(),
            size::bytes(need.weights),
            size::bytes(need.kv),
            size::bytes(need.scratch),
            size::bytes(need.total()),
            need.limits.positions,
            start.elapsed().as_secs_f64()
        ),
    );
    let mut loaded = Loaded { model, engine };
    loaded.tell_warnings();
    Ok(loaded)
}

/// The devices that this version has.
enum Chosen {
    Cuda(Launches),
    Cpu,
    Reference,
}

impl Chosen {
    /// Whose memory it takes.
    fn place(&self) -> Result<Where, CliError> {
        match self {
            Self::Cuda(_) => gpu_memory(),
            Self::Cpu | Self::Reference => Ok(Where::Machine),
        }
    }

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

/// What is free on the GPU.
pub(crate) fn gpu_memory() -> Result<Where, CliError> {
    let facts = weft_cuda::probe().map_err(|error| CliError::Gpu(error.to_string()))?;
    Ok(Where::Gpu { free: facts.free_bytes as u64 })
}

/// Puts a model on the GPU.
pub(crate) fn cuda(
    config: &Config,
    weights: &dyn Weights,
    limits: Limits,
    launches: Launches,
) -> Result<Box<dyn Device>, CliError> {
    let options = weft_cuda::Options { launches, ..weft_cuda::Options::new(limits) };
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
        Kernels::Persistent => Launches::Persistent,
        Kernels::Graph => Launches::Graph,
        Kernels::Auto => Launches::Auto,
    };
    let must = device == DeviceKind::Cuda || kernels != Kernels::Auto;
    if device == DeviceKind::Cpu {
        let message =
            "--kernels persistent, graph and ops need a CUDA device; leave out --device cpu";
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
        Some(launches) => (Chosen::Cuda(launches), self_test::run_cuda(launches)),
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

    fn fingerprint(&self) -> [u8; 32] {
        self.weights.fingerprint()
    }
}
