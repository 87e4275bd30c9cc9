//! From a model's name to an engine: find it, check that it fits, read it with a bar.

use std::path::PathBuf;
use std::time::Instant;

use indicatif::ProgressBar;
use weft::config::Config;
use weft::device::{Limits, MAX_LANES};
use weft::engine::Engine;
use weft::hub::{self, HubEnv, HubError, ModelRef};
use weft::kv::{PAGE_ROWS, pages_for};
use weft::model::Model;
use weft::reference;
use weft::weights::{Tensor, Weights, WeightsError};

use crate::args::{DeviceKind, Kernels, ModelArgs};
use crate::error::CliError;
use crate::pull;
use crate::size;
use crate::terminal;

/// Context where the user asks for none: enough for a long document, small enough to fit anywhere.
const DEFAULT_CONTEXT: usize = 8192;

/// Tokens of a prompt that one step runs.
const BLOCK_TOKENS: usize = 128;

/// A model ready to answer.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) engine: Engine,
}

/// Finds a model's folder, downloading the model if the cache has it not or not whole.
pub(crate) fn find(name: Option<&str>, args: &ModelArgs) -> Result<PathBuf, CliError> {
    let Some(name) = name.or(args.model.as_deref()) else {
        return Err(CliError::NoModel(
            "no model given; name a folder or `org/name` with --model, or set WEFT_MODEL"
                .to_owned(),
        ));
    };
    let reference = ModelRef::parse(name)?;
    let mut env = HubEnv::from_env()?;
    env.offline |= args.offline;
    match hub::resolve(&reference, &env) {
        Err(
            HubError::NotCached { .. }
            | HubError::RevisionNotCached { .. }
            | HubError::Incomplete { .. },
        ) if !env.offline => Ok(pull::pull(&reference, &env, &*pull::progress(args.quiet))?),
        found => Ok(found?),
    }
}

/// Opens a model and puts it on the device that the user asked for.
pub(crate) fn load(args: &ModelArgs) -> Result<Loaded, CliError> {
    let why = choose_device(args)?;
    let folder = find(None, args)?;
    let start = Instant::now();
    let model = Model::open(&folder)?;
    let need = Need::new(&model.config, context(args, &model.config)?);
    need.check_fits()?;

    let bar = terminal::bar(args.quiet, need.weights, "loading", true);
    let counted = Counted { weights: &*model.weights, config: &model.config, bar: &bar };
    let device = reference::open(&model.config, &counted, need.limits)
        .map_err(weft::model::ModelError::from)?;
    bar.finish_and_clear();
    let engine = Engine::new(&model, device);
    terminal::note(
        args.quiet,
        &format!(
            "{} · {why} · {} · {} of weights, {} of KV for {} tokens · loaded in {:.1} s",
            folder_name(&model),
            engine.device().describe(),
            size::bytes(need.weights),
            size::bytes(need.kv),
            need.limits.positions,
            start.elapsed().as_secs_f64()
        ),
    );
    Ok(Loaded { model, engine })
}

fn folder_name(model: &Model) -> String {
    format!("{} {}", model.config.family, size::count(model.config.parameters()))
}

/// Which device runs, and why it is that one.
fn choose_device(args: &ModelArgs) -> Result<&'static str, CliError> {
    match (args.device, args.kernels) {
        (DeviceKind::Cuda, _) => Err(CliError::Gpu(
            "--device cuda: this version has no CUDA device; use --device cpu".to_owned(),
        )),
        (_, Kernels::Graph | Kernels::Ops) => Err(CliError::Gpu(
            "--kernels graph and ops need a CUDA device, which this version does not have; \
             use --kernels reference"
                .to_owned(),
        )),
        (DeviceKind::Auto, _) => Ok("CPU (this version has no CUDA device)"),
        (DeviceKind::Cpu, _) => Ok("CPU"),
    }
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

/// The memory a model takes on the reference device.
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

/// Memory that programs can still take, where the system tells.
pub(crate) fn available_memory() -> Option<u64> {
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
