//! The models of `weft serve`: opens, plans and loads them for the server's registry, each with the
//! same flags.

use std::path::Path;
use std::time::SystemTime;

use weft::Options;
use weft_core::chunk::Which;
use weft_core::config::Config;
use weft_core::engine::Speculate;
use weft_core::hub::{self, HubEnv, HubError, ModelRef, RepoRef};
use weft_core::model::{Model, is_gguf};
use weft_core::weights::{Code, Form, Forms, Gguf, Safetensors, Weights, parameters, tensors};
use weft_server::{
    About, LoadFailure, LoadProgress, Loaded, MemoryNeed, ModelName, ModelSource, OpenModel,
};

use crate::args::{CacheArgs, ModelArgs};
use crate::error::CliError;
use crate::load;
use crate::models;
use crate::progress::Bars;
use crate::resident::{self, Identity};
use crate::terminal;
use crate::tiers::RegisteredChunks;

/// The flags that hold for all models.
#[derive(Clone)]
pub(crate) struct ServedModels {
    pub(crate) args: ModelArgs,
    pub(crate) cache: CacheArgs,
    pub(crate) speculate: Speculate,
    /// Whether a `--ctx-size` that a model does not reach is lowered to its positions. It holds for
    /// all models, so with several it is the most that each may have; for one it is an error.
    pub(crate) lowers_context: bool,
}

/// A model whose small files are read.
struct Opened {
    name: ModelName,
    model: Model,
    served: ServedModels,
}

impl ServedModels {
    /// The flags with a model's name.
    fn args_of(&self, model: &ModelName) -> ModelArgs {
        let name = Some(model.name.clone()).filter(|name| name != models::BUNDLED);
        ModelArgs { model: name, ..self.args.clone() }
    }

    /// Lowers the flag's context to what a model has, with a warning.
    fn lower_context(&self, args: &mut ModelArgs, model: &ModelName, positions: usize) {
        let Some(wanted) = args.ctx_size.filter(|wanted| *wanted > positions) else { return };
        if self.lowers_context {
            terminal::warn(&format!(
                "--ctx-size {wanted} exceeds the {positions} positions of {}; it gets {positions}",
                model.id
            ));
            args.ctx_size = Some(positions);
        }
    }
}

impl ModelSource for ServedModels {
    fn open(
        &self,
        model: &ModelName,
        progress: &LoadProgress,
    ) -> Result<Box<dyn OpenModel>, LoadFailure> {
        let mut args = self.args_of(model);
        args.bars = Bars::reporting_to(args.quiet, progress.clone()).into();
        let opened = {
            let _shown = args.bars().begin();
            load::open(None, &args).map_err(|error| failure(model, error))?
        };
        self.lower_context(&mut args, model, opened.config.max_positions);
        let served = Self { args, ..self.clone() };
        Ok(Box::new(Opened { name: model.clone(), model: opened, served }))
    }

    fn about(&self, model: &ModelName) -> Option<About> {
        let args = self.args_of(model);
        let context = |config: &Config| {
            args.ctx_size.unwrap_or(Options::DEFAULT_CONTEXT).min(config.max_positions)
        };
        let about =
            |config: &Config, weights: &dyn Weights| about(config, weights, context(config));
        let Some(name) = &args.model else {
            let model = weft::bundled_model().ok()?;
            return Some(about(&model.config, &*model.weights));
        };
        // Nothing is downloaded, and no tokenizer read.
        let reference = ModelRef::parse(&models::full_name(name)).ok()?;
        let path = hub::resolve(&reference, &HubEnv::from_env().ok()?).ok()?;
        if path.is_file() && is_gguf(&path) {
            let gguf = Gguf::open(&path).ok()?;
            let config = gguf.config().ok()?;
            return Some(about(&config, &gguf.weights(&config).ok()?));
        }
        let config = Config::from_file(&path.join(hub::CONFIG_FILE)).ok()?;
        Some(about(&config, &Safetensors::open(&path, &config).ok()?))
    }

    fn changed(&self, model: &ModelName) -> Option<SystemTime> {
        let name = self.args_of(model).model?;
        let reference = ModelRef::parse(&models::full_name(&name)).ok()?;
        let path = hub::resolve(&reference, &HubEnv::from_env().ok()?).ok()?;
        std::fs::metadata(path).ok()?.modified().ok()
    }

    fn unloaded(&self) {
        weft_cpu::release_free_memory();
    }

    /// Names of the hub and of its cache, and the bundled model: a client names no path.
    fn find(&self, asked: &str) -> Option<ModelName> {
        if asked == models::BUNDLED {
            return Some(ModelName::new(asked, asked));
        }
        let name = models::full_name(asked);
        if Path::new(&name).exists() || RepoRef::parse(&name).is_err() {
            return None;
        }
        let mut env = HubEnv::from_env().ok()?;
        env.offline |= self.args.offline;
        let found = hub::resolve(&ModelRef::parse(&name).ok()?, &env);
        let may_be_there = found.is_ok() || found.is_err_and(|error| error.is_missing());
        (may_be_there && (!env.offline || is_cached(&name))).then(|| ModelName::new(&name, &name))
    }

    fn present(&self) -> Vec<ModelName> {
        let all = HubEnv::from_env().and_then(|env| hub::list(&env)).unwrap_or_default();
        let is_whole = |model: &hub::CachedModel| {
            model.revisions.iter().any(|revision| revision.missing.is_empty())
        };
        let whole = all.into_iter().filter(is_whole);
        whole.map(|model| ModelName::new(&model.id, &model.id)).collect()
    }
}

fn is_cached(name: &str) -> bool {
    let resolve = || hub::resolve(&ModelRef::parse(name)?, &HubEnv::from_env()?);
    resolve().is_ok()
}

impl OpenModel for Opened {
    fn about(&self) -> About {
        let config = &self.model.config;
        let context = self.served.args.ctx_size.unwrap_or(Options::DEFAULT_CONTEXT);
        about(config, &*self.model.weights, context.min(config.max_positions))
    }

    fn plan(&self) -> Result<MemoryNeed, LoadFailure> {
        let ServedModels { args, cache, .. } = &self.served;
        let planned = load::plan(&self.model, args, cache);
        let plan = planned.map_err(|error| failure(&self.name, error))?;
        let on_gpu = plan.on_gpu();
        let lazy_bytes = if on_gpu { 0 } else { plan.need.kv };
        Ok(MemoryNeed { bytes: plan.need.total(), lazy_bytes, free_bytes: plan.free, on_gpu })
    }

    fn load(self: Box<Self>) -> Result<Loaded, LoadFailure> {
        let Self { name, model, served } = *self;
        let _shown = served.args.bars().begin();
        load(&name.id, model, &served).map_err(|error| failure(&name, error))
    }
}

fn load(id: &str, model: Model, served: &ServedModels) -> Result<Loaded, CliError> {
    let ServedModels { args, cache, speculate, .. } = served;
    let load::Loaded { model, mut engine } = load::load_model(model, args, cache)?;
    engine.set_speculation(*speculate);
    load::introduce(args, args.quiet);
    let registered = RegisteredChunks::open(cache, &model.tokenizer);
    let shelf = match registered {
        Ok(RegisteredChunks { shelf, library }) => {
            for chunk in library.list(&Which::default()) {
                if let Err(error) = engine.restore(chunk.clone()) {
                    terminal::warn(&error.to_string());
                }
            }
            Some(shelf).filter(|_| !cache.no_cache)
        }
        Err(error) => {
            terminal::warn(&format!("chunks are lost when the server ends: {error}"));
            None
        }
    };
    let about = resident::Loaded {
        on_gpu: engine.device().kv_family().starts_with("CUDA"),
        has_gpu: weft_cuda::probe().is_ok(),
        kernels: resident::kernels(args.device.kernels),
        experts: resident::experts(args.device.experts),
        context: engine.context(),
        default_context: Options::DEFAULT_CONTEXT.min(model.config.max_positions),
        no_cache: cache.no_cache,
        kv_memory: cache.kv_memory,
        ram_cache: cache.ram_cache,
        disk_cache: cache.disk_cache,
        stored_rows: cache.stored_rows.unwrap_or_default(),
        remote: cache.remote.remote.clone(),
    };
    let identity = Identity::of_server(args, cache, about);
    let identity = serde_json::to_value(identity).unwrap_or_default();
    Ok(Loaded { id: id.to_owned(), model, engine, shelf, identity })
}

/// What is known of a model without loading it.
fn about(config: &Config, weights: &dyn Weights, context: usize) -> About {
    let forms = Forms::of(weights, config);
    // The bytes in each form.
    let mut found: Vec<(String, u64)> = Vec::new();
    for tensor in tensors(config) {
        let form = match forms.of_tensor(tensor.tensor) {
            Form::Plain => config.dtype.to_string(),
            Form::Coded(coded) => match coded.code {
                Code::Int { bits } | Code::Uint { bits } => format!("int{bits}"),
                Code::Fp8 => "fp8".to_owned(),
                Code::Table(_) => "table4".to_owned(),
            },
        };
        let bytes = forms.bytes(&tensor, config.dtype);
        match found.iter_mut().find(|(name, _)| *name == form) {
            Some((_, sum)) => *sum += bytes,
            None => found.push((form, bytes)),
        }
    }
    found.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    About {
        context,
        family: config.family.to_string(),
        parameters: parameters(config),
        forms: found.into_iter().map(|(form, _)| form).collect(),
        weight_bytes: forms.total_bytes(config, config.dtype),
    }
}

/// What a client may read of an error: no path of this machine.
fn failure(model: &ModelName, error: CliError) -> LoadFailure {
    use weft::pull::PullError;
    let is_unknown = matches!(
        &error,
        CliError::Hub(HubError::NotCached { .. } | HubError::RevisionNotCached { .. })
            | CliError::Pull(PullError::RepoNotFound { .. } | PullError::RevisionNotFound { .. })
    );
    let text = without_path(&error.to_string(), model);
    let hidden = LoadFailure::hidden(error);
    let message = text.unwrap_or_else(|| hidden.message.clone());
    LoadFailure { message, is_unknown, ..hidden }
}

/// An error's text with the model's name instead of its path; `None` if another path is left.
fn without_path(text: &str, model: &ModelName) -> Option<String> {
    let path = Path::new(&model.name);
    let whole = path.canonicalize().ok();
    let paths = [whole.as_deref(), std::path::absolute(path).ok().as_deref(), Some(path)]
        .map(|path| path.map(|path| path.display().to_string()));
    let mut text = text.to_owned();
    for path in paths.into_iter().flatten().filter(|path| path.contains(std::path::MAIN_SEPARATOR))
    {
        text = text.replace(path.trim_end_matches(std::path::MAIN_SEPARATOR), &model.id);
    }
    let is_path = |word: &str| {
        let word = word.trim_start_matches(['"', '\'', '(', '`']);
        word.starts_with(['/', '~']) || Path::new(word).is_absolute()
    };
    (!text.split_whitespace().any(is_path)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{DeviceArgs, DeviceKind};

    #[test]
    fn clients_read_no_paths() {
        let model = ModelName::new("/srv/models/mine/", "mine");
        let read = |text: &str| without_path(text, &model);
        let text = "/srv/models/mine/model.safetensors: it is cut off";
        assert_eq!(read(text).as_deref(), Some("mine/model.safetensors: it is cut off"));
        assert_eq!(read("\"/srv/models/mine\" holds 3/4").as_deref(), Some("\"mine\" holds 3/4"));
        assert_eq!(read("no /etc/passwd"), None);
        assert_eq!(read("no (\"/etc/passwd\")"), None);
    }

    #[test]
    fn the_bundled_model_is_known_without_loading_it() {
        let served = ServedModels {
            args: ModelArgs::default(),
            cache: CacheArgs::default(),
            speculate: Speculate::Auto,
            lowers_context: false,
        };
        let about = served.about(&ModelName::new(models::BUNDLED, models::BUNDLED)).unwrap();
        assert_eq!(about.forms, ["bf16"]);
        assert!(about.context > 0 && about.parameters > 0 && about.weight_bytes > 0, "{about:?}");
    }

    /// One flag holds for all models, also for one with fewer positions.
    #[test]
    fn a_context_that_one_of_several_models_lacks_is_lowered() {
        let (name, cache) =
            (ModelName::new(models::BUNDLED, models::BUNDLED), CacheArgs::default());
        let plan = |lowers_context| {
            let args = ModelArgs { ctx_size: Some(1 << 20), ..ModelArgs::default() };
            let (cache, speculate) = (cache.clone(), Speculate::Auto);
            let served = ServedModels { args, cache, speculate, lowers_context };
            let opened = served.open(&name, &LoadProgress::default()).unwrap();
            opened.plan().map(|_| opened.about().context).map_err(|failure| failure.message)
        };
        let positions = weft::bundled_model().unwrap().config.max_positions;
        assert_eq!(plan(true), Ok(positions));
        let refused = plan(false).unwrap_err();
        assert!(refused.contains("--ctx-size 1048576 exceeds"), "{refused}");
    }

    /// The system hands out pages of main memory when they are first written, so those that a
    /// model has reserved still look free.
    #[test]
    fn rows_on_the_cpu_are_reserved_and_taken_later() {
        let args = ModelArgs {
            device: DeviceArgs { kind: DeviceKind::Cpu, ..DeviceArgs::default() },
            ..ModelArgs::default()
        };
        let (cache, speculate) = (CacheArgs::default(), Speculate::Auto);
        let served = ServedModels { args, cache, speculate, lowers_context: false };
        let name = ModelName::new(models::BUNDLED, models::BUNDLED);
        let need = served.open(&name, &LoadProgress::default()).unwrap().plan().unwrap();
        assert!(!need.on_gpu);
        assert!((1..need.bytes).contains(&need.lazy_bytes), "{need:?}");
    }

    #[test]
    fn clients_name_no_files() {
        let args = ModelArgs { offline: true, ..ModelArgs::default() };
        let (cache, speculate) = (CacheArgs::default(), Speculate::Auto);
        let served = ServedModels { args, cache, speculate, lowers_context: false };
        for path in ["/", "/tmp", "..", "./x", "~/x", "src", "", "a b", "org/no-such-model-here"] {
            assert_eq!(served.find(path), None, "{path}");
        }
        assert_eq!(served.find("weft-tiny").unwrap().id, "weft-tiny");
    }
}
