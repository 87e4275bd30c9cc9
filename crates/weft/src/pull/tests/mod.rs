//! End-to-end tests of a pull against a fake hub. This file holds their common helpers.

mod broken;
mod fresh;
mod refused;
mod resumed;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use tempfile::TempDir;
use weft_core::hub::{HubEnv, ModelRef, RepoRef, Token};

use super::retry::Limits;
use super::{Event, Progress, PullError, pull_with};
use weft_testing::fake_hub::{FakeHub, Fault, Server, etag};

const REPO: &str = "org/name";
const SHA: &str = "1111111111111111111111111111111111111111";
const SHA_2: &str = "2222222222222222222222222222222222222222";
const WEIGHTS: &str = "model.safetensors";
/// The end of the address of the list of files.
const LIST: &str = "/revision/main?blobs=true";

/// A hub, an empty cache, and a user's settings.
struct Scene {
    hub: FakeHub,
    cache: TempDir,
    token: Option<Token>,
    limits: Limits,
}

impl Scene {
    fn new() -> Self {
        Scene {
            hub: FakeHub::start(),
            cache: TempDir::new().unwrap(),
            token: None,
            limits: Limits {
                connect: Duration::from_secs(5),
                stall: Duration::from_secs(10),
                attempts: 3,
                first_pause: Duration::from_millis(1),
            },
        }
    }

    /// A hub that has one small model.
    fn with_model() -> Self {
        let scene = Scene::new();
        scene.hub.add_commit(REPO, SHA, &[("config.json", b"{}"), (WEIGHTS, &weights())]);
        scene
    }

    fn env(&self) -> HubEnv {
        HubEnv {
            cache: self.cache.path().to_owned(),
            endpoint: self.hub.endpoint(),
            token: self.token.clone(),
            offline: false,
        }
    }

    fn pull(&self, reference: &str) -> Result<PathBuf, PullError> {
        self.pull_watched(reference, &Recorder::default())
    }

    fn pull_watched(&self, reference: &str, progress: &dyn Progress) -> Result<PathBuf, PullError> {
        let reference = ModelRef::Repo(RepoRef::parse(reference).unwrap());
        pull_with(&reference, &self.env(), progress, &self.limits)
    }

    fn repo(&self) -> PathBuf {
        self.cache.path().join("models--org--name")
    }

    fn snapshot_file(&self, name: &str) -> Vec<u8> {
        fs::read(self.repo().join("snapshots").join(SHA).join(name)).unwrap()
    }

    /// Leaves the files that a process killed during a download leaves.
    fn leave_incomplete(&self, content: &[u8]) -> PathBuf {
        let path = self.incomplete();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn incomplete(&self) -> PathBuf {
        self.repo().join("blobs").join(format!("{}.incomplete", etag(WEIGHTS, &weights())))
    }

    fn has_ref(&self) -> bool {
        self.repo().join("refs").join("main").exists()
    }
}

/// Content that is larger than all buffers and that does not repeat.
fn weights() -> Vec<u8> {
    let mut x = 1_u32;
    let step = |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        x.to_le_bytes()[3]
    };
    (0..700_000).map(step).collect()
}

/// Records the events of a pull as text.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Progress for Recorder {
    fn report(&self, event: Event<'_>) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
}

impl Recorder {
    fn events(&self, kind: &str) -> Vec<String> {
        let events = self.0.lock().unwrap();
        events.iter().filter(|event| event.starts_with(kind)).cloned().collect()
    }
}

/// All files below a folder: their content, or `-> target` for links. Locks are left out.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    fn add(folder: &Path, top: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
            if path.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.insert(name, format!("-> {}", target.display()).into_bytes());
            } else if path.is_file() {
                found.insert(name, fs::read(&path).unwrap());
            } else if name != ".locks" {
                add(&path, top, found);
            }
        }
    }
    let mut found = BTreeMap::new();
    add(folder, folder, &mut found);
    found
}
