//! Loads the model that the flags name, and shows the progress.

use std::time::Instant;

use weft::device::{Chosen, Tested};
use weft::memory::MemoryPlan;
use weft::{DeviceChoice, Llm, Options};
use weft_core::config::Config;
use weft_core::dtype::Dtype;
use weft_core::engine::Engine;
use weft_core::model::Model;
use weft_core::weights::Forms;
use weft_cuda::Launches;

use crate::args::{CacheArgs, DeviceArgs, DeviceKind, Kernels, ModelArgs};
use crate::error::CliError;
use crate::models;
use crate::size;
use crate::terminal;
use crate::tiers;

/// A model ready to answer.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) engine: Engine,
}

impl Loaded {
    /// Prints the warnings about cached rows since the last call. Such faults never change an
    /// answer.
    pub(crate) fn print_warnings(&mut self) {
        self.engine.take_warnings().iter().for_each(|warning| terminal::warn(warning));
    }

    /// A hash of everything that determines the bits of this model's rows on this device.
    pub(crate) fn fingerprint(&self) -> String {
        self.model.fingerprint(&self.engine.device().kv_family())
    }
}

/// Opens a model: a folder, a model on the hub (downloaded if the cache lacks it or a part of it),
/// a name in the cache without its organisation, a name like `qwen3:0.6b`, or, without a name, the
/// bundled model. Its weights are quantised when they are read if the user asks for that.
pub(crate) fn open(name: Option<&str>, args: &ModelArgs) -> Result<Model, CliError> {
    let model = open_as_it_is(name.or(args.model.as_deref()), args)?;
    Ok(match args.quantize {
        Some(quantize) => model.quantised(quantize.form()).map_err(weft::Error::from)?,
        None => model,
    })
}

/// The same with the weights in the form of their files.
fn open_as_it_is(name: Option<&str>, args: &ModelArgs) -> Result<Model, CliError> {
    match name {
        Some(name) if !models::is_bundled(Some(name)) => {
            let name = models::resolve(name, args.quiet);
            models::check_form(&name)?;
            Ok(options(args).find(&name)?)
        }
        _ => Ok(weft::bundled_model()?),
    }
}

/// Opens a model and loads it onto the device that the user asked for.
pub(crate) fn load(args: &ModelArgs, cache: &CacheArgs) -> Result<Loaded, CliError> {
    load_after(args, cache, |_| Ok(()))
}

/// The same, with a check of what else the user named, between the model's small files and its
/// weights.
pub(crate) fn load_after(
    args: &ModelArgs,
    cache: &CacheArgs,
    check: impl FnOnce(&Model) -> Result<(), CliError>,
) -> Result<Loaded, CliError> {
    wanted_launches(&args.device)?;
    let _shown = args.bars().begin();
    let model = open(None, args)?;
    check(&model)?;
    load_model(model, args, cache)
}

/// Says what the bundled model is, if it is the one in use, and how to get another.
pub(crate) fn introduce(args: &ModelArgs, quiet: bool) {
    if models::is_bundled(args.model.as_deref()) {
        let text = format!(
            "the bundled demo model answers only about documents; `-m {}` gets a real one",
            models::SMALL
        );
        terminal::note(quiet, &text);
    }
}

/// Loads an opened model onto the device that the user asked for.
pub(crate) fn load_model(
    model: Model,
    args: &ModelArgs,
    cache: &CacheArgs,
) -> Result<Loaded, CliError> {
    let start = Instant::now();
    let launches = wanted_launches(&args.device)?;
    let options = match launches {
        Some(launches) => options(args).device(DeviceChoice::Cuda).launches(launches),
        None if args.device.kernels == Kernels::Reference => {
            options(args).device(DeviceChoice::Reference)
        }
        None => options(args).device(DeviceChoice::Cpu),
    };
    let mut options = tiers::keep(with_room(options, cache), cache)?;
    if let Some(draft) = &args.draft {
        options = options.draft_model(open_as_it_is(Some(draft), args)?);
    }
    let mut llm = options.load(model)?;
    llm.take_warnings().iter().for_each(|warning| terminal::warn(warning));
    let no_gpu = args.device.kind == DeviceKind::Auto && launches.is_none();
    let no_gpu = if no_gpu && weft_cuda::probe().is_err() { " (no CUDA device)" } else { "" };
    let line = if terminal::is_verbose() {
        describe(&llm, no_gpu, start)
    } else {
        banner(args, &llm, start)
    };
    terminal::note(args.quiet, &line);
    let (model, mut engine) = llm.into_parts();
    if cache.no_cache {
        engine.disable_cache();
    }
    Ok(Loaded { model, engine })
}

/// The line after loading a model: its name, the device, and how long it took.
fn banner(args: &ModelArgs, llm: &Llm, start: Instant) -> String {
    let name = models::short_name(args.model.as_deref());
    let form = args.quantize.map_or_else(String::new, |form| format!(" {form}"));
    let device = llm.device();
    let device = device.split(" (").next().unwrap_or_default();
    let failed = match llm.tested() {
        Tested::Failed(_) => " · SELF-TEST FAILED",
        Tested::Passed(_) | Tested::Earlier | Tested::NotNeeded => "",
    };
    let draft = args.draft.as_deref().map_or_else(String::new, |draft| {
        format!(" · drafts by {}", models::short_name(Some(draft)))
    });
    format!("{name}{form} · {device}{draft}{failed} · {:.1} s", start.elapsed().as_secs_f64())
}

/// The same with details.
fn describe(llm: &Llm, no_gpu: &str, start: Instant) -> String {
    let tested = match llm.tested() {
        Tested::Passed(passed) => format!(" · self-test {}", size::time_ms(passed.time_ms())),
        Tested::Earlier => " · self-test passed earlier".to_owned(),
        Tested::Failed(_) => " · SELF-TEST FAILED".to_owned(),
        Tested::NotNeeded => String::new(),
    };
    let details = llm.device_details().map_or_else(String::new, |text| format!(" ({text})"));
    let MemoryPlan { limits, need, experts, .. } = llm.memory();
    let experts = experts.map_or_else(String::new, |experts| {
        format!(" + {} of experts in main memory", size::bytes(experts.need.total()))
    });
    let config = llm.config();
    let draft = llm.draft_memory().map_or_else(String::new, |draft| {
        format!(" · draft model {}", size::bytes(draft.need.total()))
    });
    format!(
        "{} {} · {}{details}{no_gpu}{tested} · {} of weights + {} of KV + {} of scratch = {}{experts}, \
         context {}{draft} · loaded in {:.1} s",
        config.family,
        size::count(weft_core::weights::parameters(config)),
        llm.device(),
        size::bytes(need.weights),
        size::bytes(need.kv),
        size::bytes(need.scratch),
        size::bytes(need.total()),
        limits.positions,
        start.elapsed().as_secs_f64()
    )
}

/// The flags of a model, except its device.
fn options(args: &ModelArgs) -> Options {
    let mut options = Options::new().offline(args.offline).progress(args.bars().clone());
    if let Some(context) = args.ctx_size {
        options = options.context(context);
    }
    if let Some(threads) = args.device.threads {
        options = options.threads(threads);
    }
    options.experts(args.device.experts.place())
}

fn with_room(mut options: Options, cache: &CacheArgs) -> Options {
    if let Some(contexts) = cache.contexts {
        options = options.contexts(contexts);
    }
    if let Some(bytes) = cache.kv_memory {
        options = options.kv_memory(bytes);
    }
    options
}

/// The memory that a model needs on this machine's CPU.
pub(crate) fn memory(
    config: &Config,
    forms: &Forms,
    args: &ModelArgs,
    cache: &CacheArgs,
) -> Result<MemoryPlan, CliError> {
    let room = with_room(options(args), cache).room(config)?;
    let device = if config.dtype == Dtype::Bf16 { Chosen::Cpu } else { Chosen::Reference };
    Ok(MemoryPlan::new(config, forms, &room, device, args.device.threads)?)
}

/// The memory that an opened model will take on the device that it is loaded onto.
pub(crate) fn plan(
    model: &Model,
    args: &ModelArgs,
    cache: &CacheArgs,
) -> Result<MemoryPlan, CliError> {
    let room = with_room(options(args), cache).room(&model.config)?;
    let forms = Forms::of(&*model.weights, &model.config);
    let device = match wanted_launches(&args.device)? {
        _ if model.config.dtype != Dtype::Bf16 => Chosen::Reference,
        Some(launches) => Chosen::Cuda(launches),
        None if args.device.kernels == Kernels::Reference => Chosen::Reference,
        None => Chosen::Cpu,
    };
    let device = device.with_experts(args.device.experts.place(), &model.config)?;
    Ok(MemoryPlan::new(&model.config, &forms, &room, device, args.device.threads)?)
}

/// How the GPU launches ops. `None` if the flags ask for another device, or if they leave the
/// choice and there is no GPU.
pub(crate) fn wanted_launches(wanted: &DeviceArgs) -> Result<Option<Launches>, CliError> {
    let launches = match wanted.kernels {
        Kernels::Reference => return Ok(None),
        Kernels::Ops => Launches::Ops,
        Kernels::Persistent => Launches::Persistent,
        Kernels::Graph => Launches::Graph,
        Kernels::Auto => Launches::Auto,
    };
    let must = wanted.kind == DeviceKind::Cuda || wanted.kernels != Kernels::Auto;
    if wanted.kind == DeviceKind::Cpu {
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
