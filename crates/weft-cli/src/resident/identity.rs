//! What a server has loaded, and whether a command would load the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use weft_core::hub::{self, HubEnv, ModelRef};
use weft_core::store::StoredRows;
use weft_core::weights::PartName;

use crate::args::{CacheArgs, DeviceKind, ExpertsAt, Kernels, ModelArgs};
use crate::models;
use crate::tiers::{Budget, chunk_folder};

/// A model's files and everything else that changes answers.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Identity {
    version: String,
    /// The model's folder or GGUF file; `None` for the bundled model.
    path: Option<PathBuf>,
    /// Name, length and time of change of each file.
    files: Vec<(String, u64, u64)>,
    cache_dir: Option<PathBuf>,
    chunk_dir: Option<PathBuf>,
    /// The instruction set that the environment asks for.
    isa: Option<String>,
    /// What the weights are quantised to while loading.
    quantize: Option<String>,
    /// The draft model's folder or GGUF file.
    draft: Option<PathBuf>,
    /// Only a server knows these.
    #[serde(default)]
    loaded: Loaded,
}

/// What a server found when it loaded the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Loaded {
    pub(crate) on_gpu: bool,
    /// Whether a command that leaves the device open would take a GPU.
    pub(crate) has_gpu: bool,
    pub(crate) kernels: String,
    /// Where the experts lie, which the last bits of answers depend on.
    pub(crate) experts: String,
    pub(crate) context: usize,
    /// The context of a command that names none.
    pub(crate) default_context: usize,
    pub(crate) no_cache: bool,
    pub(crate) kv_memory: Option<u64>,
    pub(crate) ram_cache: Option<u64>,
    pub(crate) disk_cache: Option<u64>,
    /// How rows of approximate reuse are stored.
    pub(crate) stored_rows: StoredRows,
    /// The URL of the remote store.
    pub(crate) remote: Option<String>,
}

impl Identity {
    /// What a command with these flags would load; `None` if its files are not here.
    pub(crate) fn wanted(model: &ModelArgs, cache: &CacheArgs) -> Option<Self> {
        let name = model.model.as_deref().filter(|name| !models::is_bundled(Some(name)));
        let path = name.map(found).transpose().ok()?;
        Some(Self {
            version: env!("WEFT_VERSION").to_owned(),
            files: path.as_deref().map_or_else(Vec::new, files),
            path,
            cache_dir: Budget::new(cache).folder.map(absolute),
            chunk_dir: chunk_folder(cache).ok().map(absolute),
            isa: std::env::var(weft_cpu::ISA_VARIABLE).ok(),
            quantize: model.quantize.map(|form| form.to_string()),
            draft: model.draft.as_deref().map(found).transpose().ok()?,
            loaded: Loaded::default(),
        })
    }

    /// The same for a server.
    pub(crate) fn of_server(model: &ModelArgs, cache: &CacheArgs, loaded: Loaded) -> Option<Self> {
        Some(Self { loaded, ..Self::wanted(model, cache)? })
    }

    /// Whether this server's answers are those of a command. A flag that the user gives must be the
    /// server's; the server's own value holds for the others. The device, the least context and the
    /// form of stored rows are those that the command would choose itself.
    pub(crate) fn serves(&self, wanted: &Self, model: &ModelArgs, cache: &CacheArgs) -> bool {
        let ours = &self.loaded;
        let is_device = match model.device.kind {
            DeviceKind::Auto => ours.on_gpu == ours.has_gpu,
            DeviceKind::Cuda => ours.on_gpu,
            DeviceKind::Cpu => !ours.on_gpu,
        };
        let is_context = match model.ctx_size {
            Some(context) => context == ours.context,
            None => ours.context >= ours.default_context,
        };
        let is_size = |given: Option<u64>, ours| given.is_none() || given == ours;
        is_device
            && is_context
            && kernels(model.device.kernels) == ours.kernels
            && experts(model.device.experts) == ours.experts
            && (cache.no_cache || !ours.no_cache)
            && is_size(cache.kv_memory, ours.kv_memory)
            && is_size(cache.ram_cache, ours.ram_cache)
            && is_size(cache.disk_cache, ours.disk_cache)
            && cache.stored_rows.unwrap_or_default() == ours.stored_rows
            && (cache.remote.remote.is_none() || cache.remote.remote == ours.remote)
            && (&self.version, &self.path, &self.files)
                == (&wanted.version, &wanted.path, &wanted.files)
            && (&self.cache_dir, &self.chunk_dir) == (&wanted.cache_dir, &wanted.chunk_dir)
            && (&self.isa, &self.quantize) == (&wanted.isa, &wanted.quantize)
            // A draft model changes the speed alone: a command without one takes any server.
            && (wanted.draft.is_none() || self.draft == wanted.draft)
    }
}

pub(crate) fn experts(experts: ExpertsAt) -> String {
    format!("{experts:?}")
}

pub(crate) fn kernels(kernels: Kernels) -> String {
    format!("{kernels:?}")
}

/// The folder or the file of a model that is here.
fn found(name: &str) -> Result<PathBuf, ()> {
    let reference = ModelRef::parse(&models::full_name(name)).map_err(drop)?;
    let path = hub::resolve(&reference, &HubEnv::from_env().map_err(drop)?).map_err(drop)?;
    full_path(&path).ok_or(())
}

fn absolute(path: PathBuf) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(&path)).unwrap_or(path)
}

/// A path without links, except that a file keeps its name, which names its other parts.
fn full_path(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return path.canonicalize().ok();
    }
    Some(std::path::absolute(path).ok()?.parent()?.canonicalize().ok()?.join(path.file_name()?))
}

/// The files of a folder, or the parts of a GGUF file. Links of the hub's cache lead to files that
/// are named by their contents.
fn files(path: &Path) -> Vec<(String, u64, u64)> {
    let name = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_file());
    let paths: Vec<PathBuf> = match name.map(PartName::parse) {
        Some(Some(part)) => part.files().map(|name| path.with_file_name(name)).collect(),
        Some(None) => vec![path.to_owned()],
        None => {
            fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
        }
    };
    let mut files: Vec<_> = paths
        .iter()
        .filter_map(|path| {
            let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
            let changed = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
            let name = path.file_name()?.to_string_lossy().into_owned();
            Some((name, metadata.len(), u64::try_from(changed.as_nanos()).ok()?))
        })
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{DeviceArgs, Quantize, RemoteArgs};

    #[test]
    fn a_server_serves_commands_that_would_load_the_same() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), "{}").unwrap();
        let name = folder.path().to_str().unwrap().to_owned();
        let model = || ModelArgs { model: Some(name.clone()), ..ModelArgs::default() };
        let cache = CacheArgs::default();
        let loaded = Loaded {
            kernels: kernels(Kernels::Auto),
            experts: experts(ExpertsAt::Device),
            context: 8192,
            default_context: 8192,
            ..Loaded::default()
        };
        let server = Identity::of_server(&model(), &cache, loaded).unwrap();
        let serves = |model: &ModelArgs, cache: &CacheArgs| {
            server.serves(&Identity::wanted(model, cache).unwrap(), model, cache)
        };
        assert!(serves(&model(), &cache));
        let on = |kind, kernels| {
            let device = DeviceArgs { kind, kernels, ..DeviceArgs::default() };
            ModelArgs { device, ..model() }
        };
        let apart = DeviceArgs { experts: ExpertsAt::Cpu, ..DeviceArgs::default() };
        assert!(serves(&on(DeviceKind::Cpu, Kernels::Auto), &cache));
        assert!(serves(&ModelArgs { ctx_size: Some(8192), ..model() }, &cache));
        assert!(serves(&model(), &CacheArgs { no_cache: true, ..cache.clone() }));
        for other in [
            ModelArgs { model: None, ..model() },
            ModelArgs { ctx_size: Some(4096), ..model() },
            on(DeviceKind::Cuda, Kernels::Auto),
            on(DeviceKind::Auto, Kernels::Reference),
            ModelArgs { device: apart, ..model() },
            ModelArgs { quantize: Some(Quantize::Int4), ..model() },
            ModelArgs { draft: Some(name.clone()), ..model() },
        ] {
            assert!(!serves(&other, &cache));
        }
        for (flag, other) in [
            ("cache_dir", CacheArgs { cache_dir: Some("/elsewhere".into()), ..cache.clone() }),
            ("chunk_dir", CacheArgs { chunk_dir: Some("/elsewhere".into()), ..cache.clone() }),
            ("kv_memory", CacheArgs { kv_memory: Some(1 << 30), ..cache.clone() }),
            ("ram_cache", CacheArgs { ram_cache: Some(1 << 30), ..cache.clone() }),
            ("disk_cache", CacheArgs { disk_cache: Some(1 << 30), ..cache.clone() }),
        ] {
            assert!(!serves(&model(), &other), "{flag}");
        }
        let coarse = CacheArgs { stored_rows: Some(StoredRows::Int8), ..cache.clone() };
        assert!(!serves(&model(), &coarse));
        let full = CacheArgs { stored_rows: Some(StoredRows::Full), ..cache.clone() };
        assert!(serves(&model(), &full));
        let loaded = Loaded { stored_rows: StoredRows::Int8, ..server.loaded.clone() };
        let coarse_server = Identity::of_server(&model(), &cache, loaded).unwrap();
        for (cache, is_served) in [(&coarse, true), (&full, false), (&cache, false)] {
            let wanted = Identity::wanted(&model(), cache).unwrap();
            assert_eq!(coarse_server.serves(&wanted, &model(), cache), is_served);
        }
        let remote = RemoteArgs { remote: Some("s3://team/kv".to_owned()), ..<_>::default() };
        assert!(!serves(&model(), &CacheArgs { remote, ..cache.clone() }));
        fs::write(folder.path().join("config.json"), "{} ").unwrap();
        assert!(!serves(&model(), &cache), "the files have changed");
    }

    #[test]
    fn a_gguf_file_is_known_by_its_own_parts() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let wanted = |name: &str| {
            let model =
                ModelArgs { model: path(name).to_str().map(str::to_owned), ..<_>::default() };
            Identity::wanted(&model, &CacheArgs::default()).unwrap()
        };
        let (whole, part) = ("whole.gguf", "split-00001-of-00002.gguf");
        for name in [whole, part, "split-00002-of-00002.gguf"] {
            fs::write(path(name), "GGUF").unwrap();
        }
        let before = (wanted(whole), wanted(part));
        assert_ne!(before.0, before.1);
        fs::write(path("split-00002-of-00002.gguf"), "other").unwrap();
        assert_eq!(wanted(whole), before.0, "another model of the folder has changed");
        assert_ne!(wanted(part), before.1, "its second part has changed");
        fs::write(path(whole), "other").unwrap();
        assert_ne!(wanted(whole), before.0);
    }
}
