//! Opens a model: finds its files, chooses a device, checks the memory and loads the weights.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_core::config::Config;
use weft_core::device::Inspect;
use weft_core::engine::{Engine, RemoteTier, Speculate, Tiers, check_draft_tokenizer};
use weft_core::hub::{self, HubEnv, ModelRef};
use weft_core::model::Model;
use weft_core::store::{Store, StoredRows};
use weft_core::weights::{Coded, CodedRow, Form, Forms, Tensor, Weights, WeightsError};

use crate::device::{Chosen, DeviceChoice, DeviceOptions, ExpertsPlace, Tested};
use crate::error::Error;
use crate::llm::Llm;
use crate::memory::{CONTEXTS, MemoryPlan, Room, check_fit_together, default_ram_cache};
use crate::progress::{Event, Progress, Silent};

/// Bytes of weights between two progress reports.
const REPORT_BYTES: u64 = 1 << 20;

/// Options for opening a model. Every option has a default that suits most programs.
///
/// ```no_run
/// # fn main() -> Result<(), weft::Error> {
/// let mut llm = weft::Options::new()
///     .device(weft::DeviceChoice::Cpu)
///     .context(32_768)
///     .disk_cache("/var/cache/weft", 4 << 30)
///     .open("Qwen/Qwen3-0.6B")?;
/// println!("{}", llm.ask("Why is the sky blue?")?);
/// # Ok(())
/// # }
/// ```
pub struct Options {
    device_options: DeviceOptions,
    context: Option<usize>,
    contexts: usize,
    kv_memory: Option<u64>,
    threads: Option<usize>,
    offline: bool,
    quantize: Option<Coded>,
    ram_cache: Option<u64>,
    disk_cache: Option<(PathBuf, u64)>,
    remote: Option<Arc<dyn RemoteTier>>,
    stored_rows: StoredRows,
    speculate: Speculate,
    draft: Option<DraftModelChoice>,
    progress: Box<dyn Progress>,
}

/// The draft model, by its name or opened.
enum DraftModelChoice {
    Name(String),
    Model(Box<Model>),
}

/// The models on their devices.
struct OnDevice {
    memory: MemoryPlan,
    device: Box<dyn Inspect>,
    draft: Option<(MemoryPlan, Box<dyn Inspect>)>,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// Default length of the context in tokens: enough for a long document, and small enough for
    /// any machine.
    pub const DEFAULT_CONTEXT: usize = 8192;

    /// The defaults: the GPU if there is one, a context of 8,192 tokens (or fewer, if the
    /// model has fewer positions), and KV rows cached in memory but not on disk.
    pub fn new() -> Self {
        Self {
            device_options: DeviceOptions {
                device: DeviceChoice::Auto,
                experts: ExpertsPlace::Device,
                #[cfg(feature = "cuda")]
                launches: weft_cuda::Launches::Auto,
            },
            context: None,
            contexts: CONTEXTS,
            kv_memory: None,
            threads: None,
            offline: false,
            quantize: None,
            ram_cache: None,
            disk_cache: None,
            remote: None,
            stored_rows: StoredRows::Full,
            speculate: Speculate::Auto,
            draft: None,
            progress: Box::new(Silent),
        }
    }

    /// Sets the device.
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.device_options.device = device;
        self
    }

    /// Sets where the experts of a mixture of experts lie. In main memory, beside a GPU that runs
    /// the rest, they need no GPU memory, and answers take longer.
    pub fn experts(mut self, place: ExpertsPlace) -> Self {
        self.device_options.experts = place;
        self
    }

    /// Sets how a GPU launches kernels. The default measures a persistent kernel and
    /// a graph, and takes the faster one.
    #[cfg(feature = "cuda")]
    pub fn launches(mut self, launches: weft_cuda::Launches) -> Self {
        self.device_options.launches = launches;
        self
    }

    /// Sets the maximum length of a context in tokens, prompt and answer together.
    pub fn context(mut self, tokens: usize) -> Self {
        self.context = Some(tokens);
        self
    }

    /// Sets the number of contexts that should fit on the device side by side, if memory allows.
    pub fn contexts(mut self, contexts: usize) -> Self {
        self.contexts = contexts;
        self
    }

    /// Sets the bytes for KV rows on the device. Overrides [`contexts`](Self::contexts).
    pub fn kv_memory(mut self, bytes: u64) -> Self {
        self.kv_memory = Some(bytes);
        self
    }

    /// Sets the number of threads of the CPU device.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Forbids downloads.
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Quantises the weights to this form while they are loaded, such as
    /// [`weft_core::weights::Coded::int(4)`](Coded::int): less memory and more tokens a second, for
    /// answers that differ a little.
    pub fn quantize(mut self, form: Coded) -> Self {
        self.quantize = Some(form);
        self
    }

    /// Sets the bytes of main memory for KV rows of earlier prompts.
    pub fn ram_cache(mut self, bytes: u64) -> Self {
        self.ram_cache = Some(bytes);
        self
    }

    /// Sets a folder for the KV rows of documents, and its maximum size in bytes.
    /// [`Llm::save`](crate::Llm::save) writes the rows to this folder; a later process reads them
    /// instead of computing them again.
    pub fn disk_cache(mut self, folder: impl Into<PathBuf>, bytes: u64) -> Self {
        self.disk_cache = Some((folder.into(), bytes));
        self
    }

    /// Sets a store that several machines share, for the KV rows of documents. It needs a
    /// [`disk_cache`](Self::disk_cache), which is its cache on this machine.
    pub fn remote(mut self, remote: Arc<dyn RemoteTier>) -> Self {
        self.remote = Some(remote);
        self
    }

    /// Sets how the KV rows of approximate reuse are stored on disk and in the remote store. The
    /// default is [`StoredRows::Full`].
    pub fn stored_rows(mut self, rows: StoredRows) -> Self {
        self.stored_rows = rows;
        self
    }

    /// Sets how much answers are drafted, if a question does not say. Drafts change the speed of an
    /// answer and nothing else.
    pub fn speculate(mut self, speculate: Speculate) -> Self {
        self.speculate = speculate;
        self
    }

    /// Sets a small model with the same tokenizer that drafts answers: a folder, a GGUF file, or a
    /// name on the hub. It runs on the same device, and its memory is planned with the model's.
    pub fn draft(mut self, name: impl Into<String>) -> Self {
        self.draft = Some(DraftModelChoice::Name(name.into()));
        self
    }

    /// Sets an opened model as the draft model, like [`draft`](Self::draft).
    pub fn draft_model(mut self, model: Model) -> Self {
        self.draft = Some(DraftModelChoice::Model(Box::new(model)));
        self
    }

    /// Sets the receiver of progress reports about downloading and loading.
    pub fn progress(mut self, progress: impl Progress + 'static) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Opens a model: a folder, a GGUF file, or a name on the Hugging Face hub. A model that is not
    /// in the hub's cache is downloaded.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(self, name: &str) -> Result<Llm, Error> {
        let model = self.find(name)?;
        self.load(model)
    }

    /// Finds a model's files, downloads missing ones, and reads everything except the weights.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn find(&self, name: &str) -> Result<Model, Error> {
        let reference = ModelRef::parse(name)?;
        let mut env = HubEnv::from_env()?;
        env.offline |= self.offline;
        let folder = match hub::resolve(&reference, &env) {
            #[cfg(feature = "hub")]
            Err(error) if error.is_missing() && !env.offline => {
                crate::pull::pull(&reference, &env, &*self.progress)?
            }
            found => found?,
        };
        Ok(Model::open(&folder)?)
    }

    /// Loads a model, such as one that [`find`](Self::find) returned.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn load(mut self, model: Model) -> Result<Llm, Error> {
        let draft = match self.draft.take() {
            None => None,
            Some(DraftModelChoice::Name(name)) => Some(self.find(&name)?),
            Some(DraftModelChoice::Model(model)) => Some(*model),
        };
        if let Some(draft) = &draft {
            check_draft_tokenizer(&draft.tokenizer, &model.tokenizer)?;
        }
        let model = match self.quantize {
            Some(form) => model.quantised(form)?,
            None => model,
        };
        let chosen = self.device_options.choose(&model.config)?;
        let load = |chosen| self.load_onto(chosen, &model, draft.as_ref());
        let (loaded, tested) = chosen.test_beside(&model.config, || load(chosen))?;
        if let Tested::Failed(reason) = &tested {
            self.progress.report(Event::SelfTestFailed { reason });
        }
        let OnDevice { memory, device, draft: draft_device } =
            loaded.map_or_else(|| load(Chosen::Reference), Ok)?;
        self.progress.report(Event::Loaded);
        let (tiers, warning) = self.tiers(&model.config);
        let mut engine = Engine::with_tiers(&model, device, tiers);
        engine.set_speculation(self.speculate);
        let (draft_memory, draft_device) = draft_device.unzip();
        if let (Some(draft), Some(device)) = (&draft, draft_device) {
            engine.set_draft_model(draft, device)?;
        }
        Ok(Llm::new(model, engine, (memory, draft_memory), tested, warning))
    }

    /// Plans the memory of both models, then loads them.
    fn load_onto(
        &self,
        chosen: Chosen,
        model: &Model,
        draft: Option<&Model>,
    ) -> Result<OnDevice, Error> {
        let room = self.room(&model.config)?;
        let forms = Forms::of(&*model.weights, &model.config);
        let memory = MemoryPlan::new(&model.config, &forms, &room, chosen, self.threads)?;
        memory.check_fits()?;
        let beside = |draft: &Model| self.plan_draft(draft, chosen, &room, &memory);
        let plan = draft.map(beside).transpose()?;
        let draft_weights = plan.as_ref().map_or(0, |(_, plan)| plan.need.weights);
        let (size_bytes, have_bytes) = (memory.need.weights + draft_weights, AtomicU64::new(0));
        let make = |model: &Model, chosen: Chosen, memory: &MemoryPlan| {
            let counted = Counted {
                weights: &*model.weights,
                config: &model.config,
                size_bytes,
                have_bytes: &have_bytes,
                progress: &*self.progress,
            };
            chosen.make(&model.config, &counted, memory.limits, self.threads)
        };
        let device = make(model, chosen, &memory)?;
        let draft = match (draft, plan) {
            (Some(draft), Some((chosen, plan))) => {
                let device = make(draft, chosen, &plan)?;
                Some((plan, device))
            }
            _ => None,
        };
        Ok(OnDevice { memory, device, draft })
    }

    /// The device and the memory of a draft model beside a model.
    fn plan_draft(
        &self,
        draft: &Model,
        chosen: Chosen,
        room: &Room,
        memory: &MemoryPlan,
    ) -> Result<(Chosen, MemoryPlan), Error> {
        let config = &draft.config;
        let is_reference = matches!(chosen, Chosen::Reference);
        let whole = DeviceOptions { experts: ExpertsPlace::Device, ..self.device_options };
        let chosen = if is_reference { chosen } else { whole.choose(config)? };
        // A draft model with fewer positions drafts the beginning of long contexts alone.
        let context = room.context.min(config.max_positions);
        let room = Room { context, kv_memory: None, ..*room };
        let left = memory.free.map(|free| free.saturating_sub(memory.need.total()));
        let forms = Forms::of(&*draft.weights, config);
        let plan = MemoryPlan::with_free(config, &forms, &room, chosen, self.threads, left)?;
        check_fit_together(memory, &plan)?;
        Ok((chosen, plan))
    }

    /// The space for KV rows that these options give a model.
    ///
    /// # Errors
    /// [`Error::ContextTooLong`] and [`Error::ContextTooShort`]
    pub fn room(&self, config: &Config) -> Result<Room, Error> {
        let most = config.max_positions;
        let context = self.context.unwrap_or(Self::DEFAULT_CONTEXT.min(most));
        match context {
            wanted if wanted > most => Err(Error::ContextTooLong { wanted, most }),
            wanted if wanted < 2 => Err(Error::ContextTooShort { wanted }),
            context => Ok(Room { context, contexts: self.contexts, kv_memory: self.kv_memory }),
        }
    }

    /// If the folder cannot be used, there is a warning and no disk tier: answers take longer, and
    /// stay the same.
    fn tiers(&self, config: &Config) -> (Tiers, Option<String>) {
        let ram_bytes = self.ram_cache.unwrap_or_else(default_ram_cache);
        let (store, warning) = match &self.disk_cache {
            None | Some((_, 0)) => (None, None),
            Some((folder, bytes)) => match Store::open(folder, *bytes) {
                Ok(store) => (Some(store), None),
                Err(error) => (None, Some(format!("KV rows are not saved on disk: {error}"))),
            },
        };
        let stored_rows = self.stored_rows.form(config.head_dim);
        (Tiers { ram_bytes, store, remote: self.remote.clone(), stored_rows }, warning)
    }
}

/// Weights that report how many bytes have been read.
struct Counted<'a> {
    weights: &'a dyn Weights,
    config: &'a Config,
    size_bytes: u64,
    have_bytes: &'a AtomicU64,
    progress: &'a dyn Progress,
}

impl Counted<'_> {
    fn count(&self, more: u64) {
        let before = self.have_bytes.fetch_add(more, Ordering::Relaxed);
        let have_bytes = before + more;
        if before / REPORT_BYTES != have_bytes / REPORT_BYTES {
            self.progress.report(Event::Loading { have_bytes, size_bytes: self.size_bytes });
        }
    }
}

impl Weights for Counted<'_> {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        let bytes = self.config.dtype.bytes();
        self.weights.read(tensor, &mut |row, values| {
            self.count((values.len() * bytes) as u64);
            visit(row, values);
        })
    }

    fn read_rows(
        &self,
        tensor: Tensor,
        rows: Range<usize>,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        let bytes = self.config.dtype.bytes();
        self.weights.read_rows(tensor, rows, &mut |row, values| {
            self.count((values.len() * bytes) as u64);
            visit(row, values);
        })
    }

    fn is_shared_by_rows(&self, tensor: Tensor) -> bool {
        self.weights.is_shared_by_rows(tensor)
    }

    fn form(&self, tensor: Tensor) -> Form {
        self.weights.form(tensor)
    }

    fn read_coded(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        let form = self.form(tensor);
        self.weights.read_coded(tensor, &mut |row, codes| {
            self.count(form.bytes(1, codes.codes.len(), self.config.dtype));
            visit(row, codes);
        })
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.weights.fingerprint()
    }
}

#[cfg(all(test, feature = "bundled"))]
mod tests {
    use super::*;

    #[test]
    fn a_draft_model_that_does_not_fit_beside_its_model_is_refused() {
        let model = crate::bundled_model().unwrap();
        let options = Options::new().device(DeviceChoice::Reference);
        let room = options.room(&model.config).unwrap();
        let forms = Forms::of(&*model.weights, &model.config);
        let on = Chosen::Reference;
        let mut memory =
            MemoryPlan::with_free(&model.config, &forms, &room, on, None, Some(1 << 40));
        let memory = memory.as_mut().unwrap();
        options.plan_draft(&model, on, &room, memory).unwrap();
        memory.free = Some(memory.need.total() + 1);
        memory.check_fits().unwrap();
        let refused = options.plan_draft(&model, on, &room, memory).err();
        assert!(matches!(refused, Some(Error::DraftTooLarge { .. })), "{refused:?}");
    }
}
