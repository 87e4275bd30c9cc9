//! Lists of models whose files are read: one list at a time, and no file twice.

use std::time::SystemTime;

use super::*;

/// A cache of models; nothing of it is loaded.
#[derive(Default)]
struct Cache {
    /// Models whose files were read, in order.
    read: Mutex<Vec<String>>,
    running: AtomicUsize,
    /// The most that were read at a time.
    most: AtomicUsize,
    /// Seconds since 1970.
    changed: Mutex<HashMap<String, u64>>,
}

impl Cache {
    fn n_read(&self) -> usize {
        self.read.lock().unwrap().len()
    }
}

/// The source of a registry, which the test still looks at.
struct Source(Arc<Cache>);

impl ModelSource for Source {
    fn open(&self, _: &ModelName, _: &LoadProgress) -> Result<Box<dyn OpenModel>, LoadFailure> {
        Err(LoadFailure::hidden("nothing is loaded here"))
    }

    fn about(&self, model: &ModelName) -> Option<About> {
        let running = self.0.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.most.fetch_max(running, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
        self.0.running.fetch_sub(1, Ordering::Relaxed);
        self.0.read.lock().unwrap().push(model.id.clone());
        // The files of one are damaged.
        (model.id != "e").then(|| About { context: 77, ..About::default() })
    }

    fn changed(&self, model: &ModelName) -> Option<SystemTime> {
        let seconds = self.0.changed.lock().unwrap().get(&model.id).copied();
        seconds.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    fn present(&self) -> Vec<ModelName> {
        ["c", "d", "e"].map(|name| ModelName::new(name, name)).to_vec()
    }
}

fn registry_of(cache: &Arc<Cache>) -> Arc<Registry> {
    let limits = Limits {
        queue: 16,
        slow_reader: PATIENCE,
        give_way: PATIENCE,
        drain: PATIENCE,
        fault_window: PATIENCE,
    };
    let (log, allow_load, strict) = (Arc::new(|_: &str| {}), true, false);
    let (keep_loaded, max_loaded) = (None, None);
    let settings = Settings { limits, keep_loaded, max_loaded, allow_load, strict, log };
    let names = ["a", "b"].map(|name| ModelName::new(name, name)).to_vec();
    Registry::new(settings, Arc::new(Source(Arc::clone(cache))), names)
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_cache_are_read_once_and_one_by_one() {
    let cache = Arc::new(Cache::default());
    for (seconds, name) in (1..).zip(["a", "b", "c", "d", "e"]) {
        cache.changed.lock().unwrap().insert(name.to_owned(), seconds);
    }
    let registry = registry_of(&cache);
    let lists: Vec<_> = (0..8)
        .map(|_| {
            let registry = Arc::clone(&registry);
            tokio::spawn(async move { registry.list_all().await })
        })
        .collect();
    for list in lists {
        let contexts: Vec<_> = list.await.unwrap().iter().map(Listed::context).collect();
        assert_eq!(contexts, [Some(77), Some(77), Some(77), Some(77), None]);
    }
    assert_eq!(*cache.read.lock().unwrap(), ["a", "b", "c", "d", "e"]);
    assert_eq!(cache.most.load(Ordering::Relaxed), 1, "one at a time");
    cache.changed.lock().unwrap().insert("d".to_owned(), 99);
    registry.list_all().await;
    assert_eq!(cache.read.lock().unwrap()[5..], ["d"], "its files have changed");
}

/// A source that knows no times is asked each time, and nothing is kept of it.
#[tokio::test(flavor = "multi_thread")]
async fn files_without_a_time_are_read_again() {
    let cache = Arc::new(Cache::default());
    let registry = registry_of(&cache);
    registry.list_all().await;
    registry.list_all().await;
    assert_eq!(cache.n_read(), 5 + 3, "named models are asked once");
}
