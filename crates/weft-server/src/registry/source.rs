//! Where models come from: what the caller of the server implements, so that the registry can
//! open, plan and load models without knowing a device or a file.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::http::LoadProgress;
use crate::model_info::{Load, LoadError, Loaded};

/// The names of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// The name by which the source opens it.
    pub name: String,
    /// The name that clients use, and that answers carry. Never a path.
    pub id: String,
    /// Other names that clients may use.
    pub aliases: Vec<String>,
}

impl ModelName {
    /// A model without other names.
    pub fn new(name: impl Into<String>, id: impl Into<String>) -> Self {
        Self { name: name.into(), id: id.into(), aliases: Vec::new() }
    }

    /// Whether clients call the model so.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// The memory that a model will take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// All bytes of weights, KV rows and scratch memory.
    pub bytes: u64,
    /// Those that are reserved at once and taken from the system as they are used.
    pub lazy_bytes: u64,
    /// Bytes that the device has free now, if the system says.
    pub free_bytes: Option<u64>,
    /// Whether the memory is a GPU's.
    pub on_gpu: bool,
}

/// What is known of a model without loading it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Tokens of a context.
    pub context: usize,
    /// The family, such as `Qwen3`.
    pub family: String,
    /// Numbers of the model.
    pub parameters: u64,
    /// How its matrices are stored, the most frequent form first.
    pub forms: Vec<String>,
    /// Bytes of the weights.
    pub weight_bytes: u64,
}

/// Why a model is not there.
#[derive(Clone, Debug)]
pub struct LoadFailure {
    /// The whole reason, for the operator.
    pub error: Arc<LoadError>,
    /// The reason for clients: it names no path.
    pub message: String,
    /// Whether there is no model of that name.
    pub is_unknown: bool,
}

impl LoadFailure {
    /// A failure whose reason clients may not read.
    pub fn hidden(error: impl Into<LoadError>) -> Self {
        let message = "it cannot be loaded; the server's log says why".to_owned();
        Self { error: Arc::new(error.into()), message, is_unknown: false }
    }
}

/// A model that is open: everything except its weights has been read.
pub trait OpenModel {
    /// What is known of it.
    fn about(&self) -> About;

    /// Plans the memory that it takes, with what is free now.
    ///
    /// # Errors
    /// It cannot be planned: a setting does not fit the model.
    fn plan(&self) -> Result<MemoryNeed, LoadFailure>;

    /// Loads it.
    ///
    /// # Errors
    /// It cannot be loaded.
    fn load(self: Box<Self>) -> Result<Loaded, LoadFailure>;
}

/// Opens models by their names. Calls may take long, and come from several threads.
pub trait ModelSource: Send + Sync + 'static {
    /// Opens a model, downloading it if that is allowed.
    ///
    /// # Errors
    /// There is no such model, or its files are damaged.
    fn open(
        &self,
        model: &ModelName,
        progress: &LoadProgress,
    ) -> Result<Box<dyn OpenModel>, LoadFailure>;

    /// What is known of a model without opening it for good. Nothing is downloaded.
    fn about(&self, model: &ModelName) -> Option<About> {
        let _ = model;
        None
    }

    /// When the model's files last changed, if that is known: what was said of it holds until then.
    fn changed(&self, model: &ModelName) -> Option<SystemTime> {
        let _ = model;
        None
    }

    /// Called after a model was unloaded: memory that it left with the process can be given back.
    fn unloaded(&self) {}

    /// The model that a client means, if clients may name models beyond those that are served.
    fn find(&self, asked: &str) -> Option<ModelName> {
        let _ = asked;
        None
    }

    /// Models that [`find`](Self::find) finds without a download.
    fn present(&self) -> Vec<ModelName> {
        Vec::new()
    }
}

/// A model that one function loads.
pub(crate) struct OneModel(Arc<Mutex<Load>>);

impl OneModel {
    pub(crate) fn new(load: Load) -> Self {
        Self(Arc::new(Mutex::new(load)))
    }
}

impl ModelSource for OneModel {
    fn open(&self, _: &ModelName, _: &LoadProgress) -> Result<Box<dyn OpenModel>, LoadFailure> {
        Ok(Box::new(Self(Arc::clone(&self.0))))
    }
}

impl OpenModel for OneModel {
    fn about(&self) -> About {
        About::default()
    }

    fn plan(&self) -> Result<MemoryNeed, LoadFailure> {
        Ok(MemoryNeed::default())
    }

    fn load(self: Box<Self>) -> Result<Loaded, LoadFailure> {
        // A load that panicked may be tried again.
        let mut load = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        load().map_err(LoadFailure::hidden)
    }
}
