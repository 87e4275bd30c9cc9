//! What is known of the models, for lists of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::OwnedMutexGuard;

use super::{About, Entry, EntryState, MemoryNeed, Registry, Stage};
use crate::http::LoadStage;
use crate::model_info::ModelInfo;
use crate::worker::Phase;

/// Whether a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Status {
    Unloaded,
    /// It is being downloaded or loaded, or waits for its turn, and this share of it is done.
    Loading(LoadStage, f64),
    Loaded,
    /// It failed twice in a short time.
    Failed,
    Unloading,
}

impl Status {
    /// The name of the status, as llama.cpp has it for the first three.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading(stage, _) => stage.name(),
            Self::Loaded => "loaded",
            Self::Failed => "failed",
            Self::Unloading => "unloading",
        }
    }
}

/// A model in a list.
pub(crate) struct Listed {
    pub(crate) entry: Arc<Entry>,
    pub(crate) status: Status,
    /// If it is loaded.
    pub(crate) info: Option<Arc<ModelInfo>>,
    pub(crate) need: Option<MemoryNeed>,
    /// How long it stays loaded if nobody uses it; `None` is for ever.
    pub(crate) stays: Option<Duration>,
}

impl Listed {
    fn new(slot: &EntryState, keep: Option<Duration>) -> Self {
        let entry = Arc::clone(&slot.entry);
        let (mut info, mut need, mut stays) = (None, None, None);
        let status = match &slot.stage {
            Stage::Unloaded => Status::Unloaded,
            Stage::Unloading(_) => Status::Unloading,
            Stage::Loaded(served) => {
                need = served.need.get();
                let used =
                    || if slot.users > 0 { Duration::ZERO } else { slot.last_used.elapsed() };
                stays = keep.map(|keep| keep.saturating_sub(used()));
                match &*served.worker.phase().borrow() {
                    Phase::Ready(ready) => {
                        info = Some(Arc::clone(ready));
                        Status::Loaded
                    }
                    Phase::Loading => {
                        let (stage, done) = entry.progress.get();
                        Status::Loading(stage, done)
                    }
                    Phase::Down | Phase::Unloadable(_) => Status::Failed,
                    Phase::Ended => Status::Unloading,
                }
            }
        };
        Self { entry, status, info, need, stays }
    }

    /// What is known of the model without loading it, if anything.
    pub(crate) fn about(&self) -> Option<&About> {
        self.entry.about.get().filter(|about| about.context > 0)
    }

    pub(crate) fn parameters(&self) -> u64 {
        let of_files = || self.about().map(|about| about.parameters);
        self.info.as_ref().map(|info| info.parameters).or_else(of_files).unwrap_or_default()
    }

    /// Tokens of a context.
    pub(crate) fn context(&self) -> Option<usize> {
        let of_files = || self.about().map(|about| about.context);
        self.info.as_ref().map(|info| info.context).or_else(of_files)
    }

    /// The bytes of memory that it takes, as far as they are known.
    pub(crate) fn bytes(&self) -> u64 {
        let planned = self.need.map(|need| need.bytes).filter(|bytes| *bytes > 0);
        let of_weights = || self.about().map(|about| about.weight_bytes);
        let in_16_bits = || Some(self.info.as_ref()?.parameters.saturating_mul(2));
        planned.or_else(of_weights).or_else(in_16_bits).unwrap_or_default()
    }
}

/// What files said of models that may never have been loaded, by their names, and when the files
/// had changed then. Whoever holds it reads files: a cache may have hundreds of models, and many
/// clients may list them at once.
#[derive(Default)]
pub(super) struct Known(HashMap<String, (Option<SystemTime>, Option<About>)>);

impl Registry {
    /// All models, in the order of the command line, then those that clients had loaded.
    pub(crate) fn list(&self) -> Vec<Listed> {
        let keep = self.settings.keep_loaded;
        self.slots().iter().map(|slot| Listed::new(slot, keep)).collect()
    }

    /// The same with what their files say, and those that clients may have loaded. Reads files for
    /// models that were never loaded.
    pub(crate) async fn list_all(self: &Arc<Self>) -> Vec<Listed> {
        let registry = Arc::clone(self);
        let mut known = self.lock_known().await;
        let read = move || {
            let mut all = registry.list();
            for name in registry.present() {
                if !all.iter().any(|listed| listed.entry.name.id == name.id) {
                    all.push(Listed::new(&EntryState::new(super::entry(name, false)), None));
                }
            }
            all.iter().for_each(|listed| registry.read_about(&listed.entry, &mut known));
            let is_listed = |id: &str| all.iter().any(|listed| listed.entry.name.id == id);
            known.0.retain(|id, _| is_listed(id));
            all
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_default()
    }

    /// One of the models.
    pub(crate) async fn show(self: &Arc<Self>, entry: &Arc<Entry>) -> Listed {
        let (registry, listed) = (Arc::clone(self), Arc::clone(entry));
        let mut known = self.lock_known().await;
        let read = move || registry.read_about(&listed, &mut known);
        // A list without it is as good.
        let _ = tokio::task::spawn_blocking(read).await;
        let slots = self.slots();
        let same = |slot: &&EntryState| slot.entry.name.id == entry.name.id;
        let keep = self.settings.keep_loaded;
        match slots.iter().find(same) {
            Some(slot) => Listed::new(slot, keep),
            None => Listed::new(&EntryState::new(Arc::clone(entry)), keep),
        }
    }

    fn present(&self) -> Vec<super::ModelName> {
        if self.settings.allow_load { self.source.present() } else { Vec::new() }
    }

    /// Waits for its turn to read the files of models.
    async fn lock_known(&self) -> OwnedMutexGuard<Known> {
        Arc::clone(&self.known).lock_owned().await
    }

    /// Asks the source once, and again if the model's files have changed.
    fn read_about(&self, entry: &Entry, known: &mut Known) {
        if entry.about.get().is_some() {
            return;
        }
        let changed = self.source.changed(&entry.name);
        let about = match known.0.get(&entry.name.id) {
            Some((at, about)) if changed.is_some() && *at == changed => about.clone(),
            _ => self.source.about(&entry.name),
        };
        // Clients may ask for names of which there are no files.
        if changed.is_some() {
            known.0.insert(entry.name.id.clone(), (changed, about.clone()));
        }
        if let Some(about) = about {
            let _ = entry.about.set(about);
        }
    }
}
