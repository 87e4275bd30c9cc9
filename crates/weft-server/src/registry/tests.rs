//! The registry on models that compute nothing, loaded when the test says so.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize};

use futures_util::poll;
use weft_testing::stub::{self, Control};

use super::*;
use crate::model_info::Loaded;
use crate::worker::{Job, JobEvent};

mod leaving;
mod limits;
mod listing;

/// The patience of a test with a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// Requests that may wait for a model.
const QUEUE: usize = 16;

/// Models of 60 bytes on a machine that has some bytes.
#[derive(Clone)]
struct Fake {
    machine: Arc<Machine>,
    name: String,
}

struct Machine {
    memory: Option<u64>,
    /// Bytes of a model that it takes only when they are used.
    lazy: AtomicU64,
    /// A device of a model holds its control.
    controls: Mutex<HashMap<String, Arc<Control>>>,
    loads: Mutex<Vec<String>>,
    /// Models that do not load now.
    blocked: Mutex<BTreeSet<String>>,
    changed: Condvar,
    /// The most models that were loaded at a time.
    most: AtomicUsize,
}

impl Machine {
    fn new(memory: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            memory,
            lazy: AtomicU64::new(0),
            controls: Mutex::default(),
            loads: Mutex::default(),
            blocked: Mutex::default(),
            changed: Condvar::new(),
            most: AtomicUsize::new(0),
        })
    }

    fn control(&self, name: &str) -> Arc<Control> {
        Arc::clone(self.controls.lock().unwrap().entry(name.to_owned()).or_default())
    }

    /// Whether there is an engine of the model.
    fn is_alive(&self, name: &str) -> bool {
        // The table has one, and this function.
        Arc::strong_count(&self.control(name)) > 2
    }

    fn alive(&self) -> Vec<String> {
        let names: BTreeSet<String> = self.controls.lock().unwrap().keys().cloned().collect();
        names.into_iter().filter(|name| self.is_alive(name)).collect()
    }

    fn loads(&self) -> Vec<String> {
        self.loads.lock().unwrap().clone()
    }

    fn block(&self, name: &str) {
        self.blocked.lock().unwrap().insert(name.to_owned());
    }

    /// Waits while a model is blocked.
    fn pass(&self, name: &str) {
        let mut blocked = self.blocked.lock().unwrap();
        while blocked.contains(name) {
            blocked = self.changed.wait(blocked).unwrap();
        }
    }

    fn unblock(&self, name: &str) {
        self.blocked.lock().unwrap().remove(name);
        self.changed.notify_all();
    }
}

impl ModelSource for Fake {
    fn open(&self, model: &ModelName, _: &LoadProgress) -> Result<Box<dyn OpenModel>, LoadFailure> {
        match &model.name[..] {
            "broken" => {
                self.machine.loads.lock().unwrap().push(model.name.clone());
                self.machine.pass("broken");
                Err(LoadFailure::hidden("/secret/folder is damaged"))
            }
            "gone" => Err(LoadFailure { is_unknown: true, ..LoadFailure::hidden("no such model") }),
            name => Ok(Box::new(Self { name: name.to_owned(), ..self.clone() })),
        }
    }

    /// Names in capitals are other names of the same models.
    fn find(&self, asked: &str) -> Option<ModelName> {
        let id = asked.to_lowercase();
        (!asked.contains('/')).then(|| ModelName::new(id.clone(), id))
    }
}

impl OpenModel for Fake {
    fn about(&self) -> About {
        About { context: 4096, ..About::default() }
    }

    fn plan(&self) -> Result<MemoryNeed, LoadFailure> {
        let taken = 60 * self.machine.alive().len() as u64;
        let free_bytes = self.machine.memory.map(|all| all.saturating_sub(taken));
        let lazy_bytes = self.machine.lazy.load(Ordering::Relaxed);
        Ok(MemoryNeed { bytes: 60, lazy_bytes, free_bytes, ..MemoryNeed::default() })
    }

    fn load(self: Box<Self>) -> Result<Loaded, LoadFailure> {
        self.machine.loads.lock().unwrap().push(self.name.clone());
        self.machine.pass(&self.name);
        let model = stub::model();
        let engine = stub::engine(&model, "a", &self.machine.control(&self.name));
        self.machine.most.fetch_max(self.machine.alive().len(), Ordering::Relaxed);
        Ok(Loaded::new(&self.name, model, engine))
    }
}

/// A registry of the models a, b, c, one that is broken, and one that is gone.
fn registry(machine: &Arc<Machine>, change: impl FnOnce(&mut Settings)) -> Arc<Registry> {
    registry_of(&["a", "b", "c", "broken", "gone"], machine, change)
}

fn registry_of(
    names: &[&str],
    machine: &Arc<Machine>,
    change: impl FnOnce(&mut Settings),
) -> Arc<Registry> {
    let limits = Limits {
        queue: QUEUE,
        slow_reader: PATIENCE,
        give_way: PATIENCE,
        drain: Duration::from_secs(5),
        fault_window: Duration::from_secs(3600),
    };
    let (log, allow_load) = (Arc::new(|_: &str| {}), false);
    let (keep_loaded, max_loaded, strict) = (None, None, false);
    let mut settings = Settings { limits, keep_loaded, max_loaded, allow_load, strict, log };
    change(&mut settings);
    let names = names.iter().map(|name| ModelName::new(*name, *name)).collect();
    let source = Fake { machine: Arc::clone(machine), name: String::new() };
    Registry::new(settings, Arc::new(source), names)
}

async fn open(registry: &Arc<Registry>, name: &str) -> Result<Lease, String> {
    let opened = tokio::time::timeout(PATIENCE, registry.open(Some(name))).await;
    opened.expect("it ends").map_err(|error| format!("{} {}", error.status(), error.message()))
}

fn status(registry: &Registry, name: &str) -> &'static str {
    let all = registry.list();
    let listed = all.iter().find(|listed| listed.entry.name.id == name);
    listed.map_or("forgotten", |listed| listed.status.name())
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn job(max_tokens: usize) -> Job {
    use weft_core::chunk::Composition;
    use weft_core::engine::Request;
    use weft_core::sampling::Sampling;
    let sampling = Sampling { max_tokens: Some(max_tokens), ..Sampling::default() };
    let request = Request::new(Composition::from(vec![1, 2, 3]), sampling);
    Job::Answer { request: Box::new(request), sends_progress: false }
}

/// Asks for one token.
async fn ask(registry: &Arc<Registry>, name: &str) {
    let lease = open(registry, name).await.unwrap();
    let mut handle = lease.submit(vec![job(1)]).await.unwrap();
    drop(lease);
    loop {
        match handle.events.recv().await.expect("an end").event {
            JobEvent::Done(_) => return,
            JobEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_loaded_once_for_all_who_wait_and_unloaded_when_nobody_has_it() {
    let machine = Machine::new(None);
    let registry = registry(&machine, |_| {});
    assert_eq!((status(&registry, "a"), machine.loads().len()), ("unloaded", 0));
    machine.block("a");
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let registry = Arc::clone(&registry);
            tokio::spawn(async move { open(&registry, "a").await })
        })
        .collect();
    until("it loads", || machine.loads() == ["a"]).await;
    assert_eq!(status(&registry, "a"), "loading");
    machine.unblock("a");
    let mut leases = Vec::new();
    for one in waiting {
        leases.push(one.await.unwrap().unwrap());
    }
    assert_eq!((status(&registry, "a"), machine.loads().len()), ("loaded", 1));
    // One is still in use while another client unloads it.
    let last = leases.pop().unwrap();
    drop(leases);
    let first = registry.first();
    let mut unloading = Box::pin(registry.unload(&first));
    assert!(poll!(&mut unloading).is_pending());
    let handle = last.submit(vec![job(3)]).await.unwrap();
    drop(last);
    assert!(poll!(&mut unloading).is_pending(), "its answer runs");
    drop(handle);
    assert!(tokio::time::timeout(PATIENCE, unloading).await.unwrap().unwrap());
    assert!(!machine.is_alive("a"), "its engine is gone");
    assert_eq!(status(&registry, "a"), "unloaded");
    assert!(!registry.unload(&first).await.unwrap(), "again");
    ask(&registry, "a").await;
    assert_eq!(machine.loads().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_unused_goes_when_memory_is_short() {
    let machine = Machine::new(Some(130));
    let registry = registry(&machine, |_| {});
    ask(&registry, "a").await;
    ask(&registry, "b").await;
    assert_eq!(machine.alive(), ["a", "b"], "both fit");
    ask(&registry, "a").await;
    ask(&registry, "c").await;
    assert_eq!(machine.alive(), ["a", "c"]);
    ask(&registry, "b").await;
    assert_eq!(machine.alive(), ["b", "c"]);
    // One that is in use stays, even if it is the longest unused.
    let in_use = open(&registry, "c").await.unwrap();
    ask(&registry, "b").await;
    ask(&registry, "a").await;
    assert_eq!(machine.alive(), ["a", "c"]);
    drop(in_use);
    assert_eq!(machine.loads(), ["a", "b", "c", "b", "a"]);
}

/// Its memory is free when it has ended, not when it begins to.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_ends_is_waited_for() {
    let machine = Machine::new(Some(60));
    let registry = registry(&machine, |_| {});
    let lease = open(&registry, "a").await.unwrap();
    machine.control("a").step_us.store(500_000, Ordering::Relaxed);
    let mut handle = lease.submit(vec![job(100)]).await.unwrap();
    while !matches!(handle.events.recv().await.unwrap().event, JobEvent::Token { .. }) {}
    // In the middle of the next step, after which it ends.
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop((lease, handle));
    let first = registry.first();
    let mut unloading = Box::pin(registry.unload(&first));
    assert!(poll!(&mut unloading).is_pending());
    assert!(matches!(registry.slots()[0].stage, Stage::Unloading(_)));
    ask(&registry, "b").await;
    assert!(tokio::time::timeout(PATIENCE, unloading).await.unwrap().unwrap());
    assert_eq!((machine.most.load(Ordering::Relaxed), machine.alive()), (1, vec!["b".into()]));
}

/// What other models will still take of main memory is no memory of a GPU.
#[test]
fn memory_of_a_gpu_is_counted_by_itself() {
    let need =
        |on_gpu| MemoryNeed { bytes: 60, free_bytes: Some(100), on_gpu, ..MemoryNeed::default() };
    assert!(need(false).fits(40) && !need(false).fits(41));
    assert!(need(true).fits(1000));
    assert!(!MemoryNeed { bytes: 101, ..need(true) }.fits(0));
    assert!(MemoryNeed { free_bytes: None, ..need(false) }.fits(1000), "nobody knows");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_needs_room_waits_for_its_turn_and_nobody_is_passed_over() {
    let machine = Machine::new(None);
    let registry = registry(&machine, |settings| settings.max_loaded = Some(1));
    let in_use = open(&registry, "a").await.unwrap();
    let b = tokio::spawn({
        let registry = Arc::clone(&registry);
        async move { open(&registry, "b").await }
    });
    until("a is to leave", || registry.slots()[0].is_leaving).await;
    // Who comes now for the model in use waits behind the other.
    let mut later = Box::pin(registry.open(Some("a")));
    assert!(poll!(&mut later).is_pending());
    assert_eq!(machine.alive(), ["a"]);
    drop(in_use);
    let b = b.await.unwrap().unwrap();
    assert_eq!(machine.alive(), ["b"]);
    assert!(poll!(&mut later).is_pending(), "b is in use");
    drop(b);
    let a = tokio::time::timeout(PATIENCE, later).await.unwrap().unwrap();
    assert_eq!((machine.alive(), a.id()), (vec!["a".to_owned()], "a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_are_served_however_models_alternate() {
    let machine = Machine::new(Some(60));
    let registry = registry(&machine, |_| {});
    let asking: Vec<_> = (0..12)
        .map(|n| {
            let registry = Arc::clone(&registry);
            let name = ["a", "b", "c"][n % 3];
            tokio::spawn(async move {
                for _ in 0..3 {
                    ask(&registry, name).await;
                }
            })
        })
        .collect();
    for one in asking {
        tokio::time::timeout(4 * PATIENCE, one).await.expect("it ends").unwrap();
    }
    assert!(machine.alive().len() <= 1, "{:?}", machine.alive());
    assert!(registry.slots().iter().all(|slot| slot.users == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_while_a_model_loads_leaves_no_trace() {
    let machine = Machine::new(None);
    let registry = registry(&machine, |settings| settings.keep_loaded = Some(Duration::ZERO));
    let ages = tokio::spawn(Arc::clone(&registry).unload_by_age());
    machine.block("a");
    {
        let mut waiting = Box::pin(registry.open(Some("a")));
        assert!(poll!(&mut waiting).is_pending());
        until("it loads", || machine.loads() == ["a"]).await;
        assert_eq!(registry.slots()[0].users, 1);
    }
    assert_eq!(registry.slots()[0].users, 0);
    machine.unblock("a");
    // Nobody wants it: it goes by age.
    until("it is unloaded", || status(&registry, "a") == "unloaded").await;
    assert!(machine.alive().is_empty());
    ages.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_makes_room_for_a_model_that_nobody_waits_for() {
    let machine = Machine::new(None);
    let registry = registry(&machine, |settings| settings.max_loaded = Some(1));
    let in_use = open(&registry, "a").await.unwrap();
    {
        let mut waiting = Box::pin(registry.open(Some("b")));
        assert!(poll!(&mut waiting).is_pending());
        until("a is to leave", || registry.slots()[0].is_leaving).await;
    }
    // The model in use takes requests again, and stays.
    drop(open(&registry, "a").await.unwrap());
    drop(in_use);
    until("b is forgotten", || status(&registry, "b") == "unloaded").await;
    ask(&registry, "a").await;
    assert_eq!(machine.loads(), ["a"]);
    ask(&registry, "b").await;
    assert_eq!(
        (machine.loads(), machine.alive()),
        (vec!["a".into(), "b".into()], vec!["b".into()])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_loaded_fails_its_requests_alone() {
    let machine = Machine::new(None);
    let registry = registry(&machine, |_| {});
    let a = open(&registry, "a").await.unwrap();
    for _ in 0..2 {
        let error = open(&registry, "broken").await.err().unwrap();
        assert!(error.starts_with("503 ") && error.contains("the model broken"), "{error}");
        assert!(!error.contains("/secret"), "{error}");
        until("it is forgotten", || status(&registry, "broken") == "unloaded").await;
    }
    assert!(open(&registry, "gone").await.err().unwrap().starts_with("404 "));
    assert!(open(&registry, "x/y").await.err().unwrap().starts_with("404 "));
    a.submit(vec![job(1)]).await.unwrap();
    assert_eq!(machine.alive(), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_may_name_models_if_the_operator_lets_them_and_those_are_forgotten() {
    let machine = Machine::new(None);
    let strict = registry(&machine, |_| {});
    assert!(open(&strict, "d").await.err().unwrap().starts_with("404 "));
    let open_to_all = registry(&machine, |settings| settings.allow_load = true);
    let (one, other) = (open(&open_to_all, "d").await.unwrap(), open(&open_to_all, "d").await);
    assert_eq!((one.id(), machine.loads().len()), ("d", 1));
    let same = open(&open_to_all, "D").await.unwrap();
    assert_eq!((same.id(), machine.loads().len()), ("d", 1), "another name of it");
    drop((one, other, same));
    assert_eq!(status(&open_to_all, "d"), "loaded");
    let entry = open_to_all.known("d").unwrap();
    open_to_all.unload(&entry).await.unwrap();
    assert_eq!((status(&open_to_all, "d"), machine.alive().len()), ("forgotten", 0));
    assert!(open(&open_to_all, "x/y").await.err().unwrap().starts_with("404 "));
    assert!(open(&open_to_all, "d").await.is_ok(), "and found again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_waits_for_what_runs_and_not_for_what_loads() {
    let machine = Machine::new(None);
    let registry = registry(&machine, |_| {});
    let a = open(&registry, "a").await.unwrap();
    machine.block("b");
    let mut waiting = Box::pin(registry.open(Some("b")));
    assert!(poll!(&mut waiting).is_pending());
    until("b loads", || machine.loads() == ["a", "b"]).await;
    let running = registry.close();
    assert_eq!(running.len(), 1);
    let refused = tokio::time::timeout(PATIENCE, waiting).await.unwrap().err().unwrap();
    assert!(refused.message().contains("shutting down"), "{}", refused.message());
    assert!(open(&registry, "c").await.err().unwrap().contains("shutting down"));
    drop(a);
    tokio::task::spawn_blocking(move || running.iter().for_each(|served| served.join()));
    until("a has ended", || !machine.is_alive("a")).await;
    // Its thread ends when the load does.
    machine.unblock("b");
    until("b has ended", || machine.alive().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn not_too_many_models_load_at_once() {
    let machine = Machine::new(None);
    let registry = registry(&machine, |settings| settings.allow_load = true);
    let names: Vec<String> = (0..MAX_LOADING).map(|n| format!("m{n}")).collect();
    names.iter().for_each(|name| machine.block(name));
    let mut waiting: Vec<_> =
        names.iter().map(|name| Box::pin(registry.open(Some(name)))).collect();
    // The search takes a moment on another thread.
    for (one, name) in waiting.iter_mut().zip(&names) {
        while status(&registry, name) == "forgotten" {
            assert!(poll!(&mut *one).is_pending());
            tokio::task::yield_now().await;
        }
    }
    let refused = open(&registry, "one-more").await.err().unwrap();
    assert!(refused.starts_with("429 "), "{refused}");
    assert_eq!(status(&registry, "one-more"), "forgotten");
    names.iter().for_each(|name| machine.unblock(name));
    for one in waiting {
        tokio::time::timeout(PATIENCE, one).await.unwrap().unwrap();
    }
}

/// The memory of a model that failed is free until the model is loaded again. Who plans meanwhile
/// must not count on it, and whoever waits for the model to become idle need not.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_failed_is_loaded_again_in_its_turn() {
    let machine = Machine::new(Some(60));
    let registry = registry(&machine, |_| {});
    let in_use = open(&registry, "a").await.unwrap();
    machine.block("a");
    machine.control("a").fails.store(true, Ordering::Relaxed);
    let _fails = in_use.submit(vec![job(3)]).await.unwrap();
    until("a loads again", || machine.loads() == ["a", "a"]).await;
    let b = tokio::spawn({
        let registry = Arc::clone(&registry);
        async move { ask(&registry, "b").await }
    });
    until("b waits", || status(&registry, "b") == "loading").await;
    machine.control("a").fails.store(false, Ordering::Relaxed);
    machine.unblock("a");
    drop(in_use);
    drop(_fails);
    tokio::time::timeout(PATIENCE, b).await.expect("it ends").unwrap();
    ask(&registry, "a").await;
    assert_eq!(machine.most.load(Ordering::Relaxed), 1, "both had the memory of one");
}
