//! The subject of a bench: a model's dimensions, its weights, and its device.
//!
//! It leads from flags to a device with room for the tests.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use weft::device::Chosen;
use weft::memory::available_memory;
use weft_core::config::Config;
use weft_core::device::{Inspect, Limits};
use weft_core::engine::{Engine, Tiers};
use weft_core::hub::{self, HubEnv, ModelRef};
use weft_core::kv::PAGE_ROWS;
use weft_core::model::{Model, ModelError};
use weft_core::reference;
use weft_core::shapes;
use weft_core::weights::{Forms, Gguf, Quantised, RandomWeights, Safetensors, Weights};
use weft_cpu::{CpuDevice, Isa, Options};

use super::args::{Mix, ShapeArgs, SubjectArgs};
use super::file;
use crate::args::Kernels;
use crate::error::CliError;
use crate::load;
use crate::models;
use crate::size;
use crate::terminal;

/// The default shape.
const DEFAULT_SHAPE: &str = "qwen3-0.6b";

/// A model before it is loaded onto a device.
pub(crate) struct Subject {
    pub(crate) name: String,
    /// The source of the weights, as text.
    pub(crate) source: String,
    pub(crate) config: Config,
    pub(crate) weights: Box<dyn Weights>,
}

impl ShapeArgs {
    fn name(&self) -> &str {
        self.shape.as_deref().unwrap_or(DEFAULT_SHAPE)
    }

    /// The dimensions as a `config.json`.
    pub(crate) fn config_json(&self) -> Result<String, CliError> {
        let name = self.name();
        if name.ends_with(".json") {
            return std::fs::read_to_string(name).map_err(CliError::io(name));
        }
        shapes::json(name).map(str::to_owned).ok_or_else(|| {
            let known = shapes::NAMES.join(", ");
            CliError::Usage(format!("--shape {name} is unknown; give {known}, or a config.json"))
        })
    }
}

impl Subject {
    /// The model that the flags name.
    pub(crate) fn find(args: &SubjectArgs) -> Result<Self, CliError> {
        args.save.as_deref().map_or(Ok(()), |path| file::check_target("--save", path))?;
        let subject = match (&args.random.shape, &args.model) {
            (None, Some(model)) if models::is_bundled(Some(model)) => Self::bundled()?,
            (None, Some(model)) => Self::from_model(&models::resolve(model, args.quiet))?,
            _ => Self::of_shape(&args.random)?,
        };
        Ok(match (args.quantize, args.mix) {
            (None, None) => subject,
            (Some(quantize), _) => Self {
                weights: Box::new(Quantised::new(subject.weights, quantize.form())),
                source: format!("{}, {quantize}", subject.source),
                ..subject
            },
            (None, Some(Mix::Q4KM)) => Self {
                weights: Box::new(Quantised::q4_k_m(subject.weights, &subject.config)),
                source: format!("{}, q4_k_m", subject.source),
                ..subject
            },
        })
    }

    /// Dimensions and weights of a real model. Tokenizer and template are not measured.
    fn from_model(name: &str) -> Result<Self, CliError> {
        let path = hub::resolve(&ModelRef::parse(name)?, &HubEnv::from_env()?)?;
        let (config, weights): (Config, Box<dyn Weights>) = if path.is_file() {
            let gguf = Gguf::open(&path).map_err(ModelError::from)?;
            let config = gguf.config()?;
            let weights = gguf.weights(&config).map_err(ModelError::from)?;
            (config, Box::new(weights))
        } else {
            let config = Config::from_file(&path.join("config.json"))?;
            let weights = Safetensors::open(&path, &config).map_err(ModelError::from)?;
            (config, Box::new(weights))
        };
        let name = name.trim_end_matches('/').rsplit('/').next().unwrap_or(name).to_owned();
        Ok(Self { name, source: "files".to_owned(), config, weights })
    }

    /// The model that is part of the program.
    fn bundled() -> Result<Self, CliError> {
        let Model { config, weights, .. } = weft::bundled_model()?;
        let (name, source) = (models::BUNDLED.to_owned(), "bundled".to_owned());
        Ok(Self { name, source, config, weights })
    }

    /// Random weights.
    pub(crate) fn of_shape(args: &ShapeArgs) -> Result<Self, CliError> {
        let name = args.name();
        let config = Config::from_json(args.config_json()?.as_bytes())?;
        let stem = Path::new(name).file_stem().filter(|_| name.ends_with(".json"));
        Ok(Self {
            name: stem.map_or(name.to_owned(), |stem| stem.to_string_lossy().into_owned()),
            source: format!("random, seed {}", args.seed),
            weights: Box::new(RandomWeights::new(&config, args.seed)),
            config,
        })
    }

    /// The forms of its matrices.
    pub(crate) fn forms(&self) -> Forms {
        Forms::of(&*self.weights, &self.config)
    }

    /// Refuses tests that exceed the model's positions.
    pub(crate) fn check_positions(&self, rows: usize) -> Result<(), CliError> {
        let most = self.config.max_positions;
        if rows <= most {
            return Ok(());
        }
        Err(CliError::Usage(format!(
            "the tests need {rows} positions, and {} has {most}; lower -d, -p or -n",
            self.name
        )))
    }

    /// Loads the model onto the device that the flags ask for.
    pub(crate) fn open(&self, args: &SubjectArgs, limits: Limits) -> Result<OnDevice, CliError> {
        let launches = load::wanted_launches(&args.device)?;
        let chosen = launches.map_or(Chosen::Cpu, Chosen::Cuda);
        let chosen = chosen.with_experts(args.device.experts.place(), &self.config)?;
        self.check_fits(args, &limits, chosen)?;
        let start = Instant::now();
        terminal::note(args.quiet, &format!("{} ({}): loading", self.name, self.source));
        let (config, weights) = (&self.config, &*self.weights);
        let (threads, mut device): (usize, Box<dyn Inspect>) = match (launches, args.device.kernels)
        {
            (Some(_), _) => (1, chosen.make(config, weights, limits, args.device.threads)?),
            (None, Kernels::Reference) => {
                (1, reference::open(config, weights, limits).map_err(ModelError::from)?)
            }
            (None, _) => {
                let threads = threads(args);
                let isa = args.isa.map_or_else(Isa::choose, Ok).map_err(weft::Error::from)?;
                let options = Options { limits, threads, isa };
                let device = CpuDevice::new(config, weights, options).map_err(ModelError::from)?;
                (threads, Box::new(device))
            }
        };
        // What is compiled beside the first steps must not be measured.
        device.warm_up().map_err(|error| CliError::Gpu(error.to_string()))?;
        let took = start.elapsed().as_secs_f64();
        terminal::note(args.quiet, &format!("{} · loaded in {took:.1} s", device.describe()));
        if let (true, Some(details)) = (terminal::is_verbose(), device.details()) {
            terminal::note(args.quiet, &details);
        }
        Ok(OnDevice { device, threads })
    }

    /// An engine with the model, and with the bundled model's tokenizer.
    pub(crate) fn engine(
        &self,
        args: &SubjectArgs,
        limits: Limits,
        tiers: Tiers,
    ) -> Result<Engine, CliError> {
        let tokenizer = Arc::clone(&weft::bundled_model()?.tokenizer);
        if self.config.vocab < tokenizer.vocab_size() as usize {
            return Err(CliError::Usage(format!(
                "{} has {} tokens; answers are made of the {} that the bundled model has",
                self.name,
                self.config.vocab,
                tokenizer.vocab_size()
            )));
        }
        let OnDevice { device, .. } = self.open(args, limits)?;
        // The device has the weights; these only identify the rows.
        let model = Model {
            name: self.name.clone(),
            ..Model::random(self.config.clone(), args.random.seed, tokenizer)
        };
        Ok(Engine::with_tiers(&model, device, tiers))
    }

    /// Checks that the model fits into the free memory, before the system kills a process for it.
    fn check_fits(
        &self,
        args: &SubjectArgs,
        limits: &Limits,
        chosen: Chosen,
    ) -> Result<(), CliError> {
        let on_gpu = matches!(chosen, Chosen::Cuda(_) | Chosen::CudaWithHostExperts);
        let (weights, kv, free) = if on_gpu {
            let need = match chosen {
                Chosen::CudaWithHostExperts => weft_cuda::need_without_experts,
                _ => weft_cuda::need,
            };
            let need = need(&self.config, &self.forms(), limits);
            let facts = weft_cuda::probe().map_err(|error| CliError::Gpu(error.to_string()))?;
            (need.weights, need.kv + need.scratch, Some(facts.free_bytes as u64))
        } else {
            let dtype = self.config.dtype;
            let rows = (limits.pages * PAGE_ROWS) as u64;
            let weights = self.forms().total_bytes(&self.config, dtype);
            (weights, rows * self.config.kv_bytes_per_token(dtype), available_memory())
        };
        let need = weights + kv + ((args.bandwidth_mib as u64) << 20);
        if free.is_none_or(|free| need <= free) {
            return Ok(());
        }
        Err(CliError::Memory(format!(
            "the bench needs {} ({} of weights, {} of KV) and only {} is free{}; \
             use a smaller shape, depth or batch",
            size::bytes(need),
            size::bytes(weights),
            size::bytes(kv),
            size::bytes(free.unwrap_or(0)),
            if on_gpu { " on the GPU" } else { "" },
        )))
    }
}

/// A model on its device.
pub(crate) struct OnDevice {
    pub(crate) device: Box<dyn Inspect>,
    /// Threads of the device.
    pub(crate) threads: usize,
}

/// Threads that the flags ask for.
pub(crate) fn threads(args: &SubjectArgs) -> usize {
    args.device.threads.unwrap_or_else(weft_cpu::n_cores)
}
