//! The engine's thread on a device that computes nothing and fails on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weft_core::chunk::{ChunkId, Composition, Kind, Piece, Repair};
use weft_core::engine::{Reading, Request, Tiers};
use weft_core::sampling::Sampling;
use weft_core::store::Store;

use super::*;
use crate::model_info::Loaded;
use weft_testing::stub::{self, Control};

mod ending;
mod paused;

struct Bench {
    worker: Worker,
    thread: JoinHandle<()>,
    control: Arc<Control>,
    metrics: Arc<Metrics>,
    loads: Arc<AtomicUsize>,
}

const LIMITS: Limits = Limits {
    queue: 4,
    // Tests that want a reader to be given up set their own.
    slow_reader: Duration::from_secs(60),
    give_way: Duration::from_secs(60),
    drain: Duration::from_secs(5),
    fault_window: Duration::from_secs(3600),
};

fn bench() -> Bench {
    bench_with(LIMITS)
}

fn bench_with(limits: Limits) -> Bench {
    bench_on(limits, Tiers::default)
}

/// With tiers for each engine that is loaded.
fn bench_on(limits: Limits, tiers: impl Fn() -> Tiers + Send + 'static) -> Bench {
    let control = Arc::new(Control::default());
    control.step_us.store(200, Ordering::Relaxed);
    let loads = Arc::new(AtomicUsize::new(0));
    let load: LoadEngine = {
        let (control, loads) = (Arc::clone(&control), Arc::clone(&loads));
        Box::new(move || {
            loads.fetch_add(1, Ordering::Relaxed);
            let model = stub::model();
            let engine = stub::engine_with(&model, "a", &control, tiers());
            Ok(Loaded::new("stub", model, engine))
        })
    };
    let metrics = Arc::new(Metrics::default());
    let log = Arc::new(|_: &str| {});
    let (worker, thread) = Worker::start(load, limits, Arc::clone(&metrics), log).unwrap();
    let bench = Bench { worker, thread, control, metrics, loads };
    bench.until("it is ready", || bench.worker.model().is_ok());
    bench
}

impl Bench {
    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn submit(&self, max_tokens: usize) -> Result<JobHandle, ApiError> {
        self.submit_job(answer(max_tokens))
    }

    fn submit_job(&self, job: Job) -> Result<JobHandle, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(self.worker.submit(vec![job]))
    }

    /// A gauge or a counter.
    fn metric(&self, name: &str) -> u64 {
        let text = self.metrics.text();
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap().split(' ').nth(1).unwrap().parse().unwrap()
    }
}

fn answer(max_tokens: usize) -> Job {
    let sampling =
        Sampling { max_tokens: Some(max_tokens), temperature: 0.0, ..Sampling::default() };
    let request = Box::new(Request::new(vec![5, 6, 7], sampling));
    Job::Answer { request, sends_progress: false }
}

/// A job that reads a prompt of so many tokens.
fn reading(n_tokens: usize) -> Job {
    Job::Read(Box::new(Request::read(vec![5; n_tokens], Reading::State)))
}

/// How a handle ends, and how many tokens came before.
fn end(handle: &mut JobHandle) -> (usize, Result<(), String>) {
    let mut n_tokens = 0;
    while let Some(ChoiceEvent { event, .. }) = handle.events.blocking_recv() {
        match event {
            JobEvent::Token { .. } => n_tokens += 1,
            JobEvent::Done(_) => return (n_tokens, Ok(())),
            JobEvent::Cancelled(_) => return (n_tokens, Err(JobError::Ended.to_string())),
            JobEvent::Failed(error) => return (n_tokens, Err(error.to_string())),
            JobEvent::Admitted
            | JobEvent::Progress(_)
            | JobEvent::Prompt(_)
            | JobEvent::Rows(_)
            | JobEvent::Read(_) => {}
        }
    }
    (n_tokens, Err("closed".to_owned()))
}

#[test]
fn requests_run_side_by_side_and_the_queue_has_an_end() {
    let bench = bench();
    // None ends before all have been submitted.
    bench.control.step_us.store(100_000, Ordering::Relaxed);
    let mut running: Vec<JobHandle> = (0..8)
        .map(|_| {
            let handle = bench.submit(60).unwrap();
            bench.until("it has a lane", || {
                bench.worker.shared.waiting.load(Ordering::Relaxed) == 0
            });
            handle
        })
        .collect();
    let mut waiting: Vec<JobHandle> = (0..4).map(|_| bench.submit(5).unwrap()).collect();
    let refused = bench.submit(5).err().unwrap().json().to_string();
    assert!(refused.contains("4 requests are waiting"), "{refused}");
    drop(waiting.pop());
    bench.until("a client that left frees its place", || bench.submit(5).is_ok());
    bench.control.step_us.store(200, Ordering::Relaxed);
    for handle in running.iter_mut() {
        assert_eq!(end(handle), (60, Ok(())));
    }
    for handle in waiting.iter_mut() {
        assert_eq!(end(handle), (5, Ok(())));
    }
    bench.until("all jobs are done", || bench.metric("weft_lanes_running") == 0);
    assert_eq!(bench.metric("weft_requests_waiting"), 0);
}

#[test]
fn who_goes_away_frees_the_lane() {
    let bench = bench();
    let handle = bench.submit(4000).unwrap();
    bench.until("it runs", || bench.metric("weft_lanes_running") == 1);
    drop(handle);
    bench.until("it is gone", || bench.metric("weft_lanes_running") == 0);
    assert_eq!(bench.metric("weft_answers_total{reason=\"cancelled\"}"), 1);
}

#[test]
fn who_goes_away_while_rows_are_computed_frees_the_lane_too() {
    let bench = bench();
    bench.control.step_us.store(200_000, Ordering::Relaxed);
    let prompt = || Composition::from(vec![5; 4000]);
    let warm = || {
        let mut prompt = prompt();
        prompt.pieces[0].kind = Kind::Context;
        Job::Warm(prompt)
    };
    let score = || Job::Score { prompt: prompt(), answer: vec![5, 6], use_cache: false };
    let jobs: [&dyn Fn() -> Job; 2] = [&warm, &score];
    for job in jobs {
        let handle = bench.submit_job(job()).unwrap();
        bench.until("it runs", || bench.metric("weft_lanes_running") == 1);
        let steps = || bench.control.steps.load(Ordering::Relaxed);
        let before = steps();
        drop(handle);
        bench.until("it is gone", || bench.metric("weft_lanes_running") == 0);
        // All of it would take 16 steps.
        assert!(steps() <= before + 3, "{} steps", steps() - before);
    }
}

#[test]
fn a_slow_reader_pauses_its_lane_alone_and_is_given_up() {
    // Long enough for the lane beside it.
    let bench = bench_with(Limits { slow_reader: Duration::from_secs(5), ..LIMITS });
    bench.control.step_us.store(0, Ordering::Relaxed);
    let mut slow = bench.submit(4000).unwrap();
    bench.until("it is behind", || slow.events.len() == EVENTS);
    let mut beside = bench.submit(100).unwrap();
    assert_eq!(end(&mut beside), (100, Ok(())));
    // It catches up in time, then reads no more.
    for _ in 0..EVENTS {
        slow.events.blocking_recv().unwrap();
    }
    bench.until("it goes on", || slow.events.len() == EVENTS);
    bench.until("it is given up", || bench.metric("weft_lanes_running") == 0);
    let (n_tokens, ending) = end(&mut slow);
    assert!((EVENTS..4000).contains(&n_tokens), "{n_tokens}");
    assert!(ending.as_ref().unwrap_err().contains("did not read"), "{ending:?}");
}

#[test]
fn a_reader_that_is_late_at_the_end_gets_all_of_it() {
    let bench = bench();
    bench.control.step_us.store(0, Ordering::Relaxed);
    let mut late = bench.submit(EVENTS + 20).unwrap();
    bench.until("it is behind", || late.events.len() == EVENTS);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(end(&mut late), (EVENTS + 20, Ok(())));
}

#[test]
fn a_fault_fails_its_waiters_at_once_and_is_survived_once() {
    for cause in ["panic", "device"] {
        let bench = bench();
        let fail = || match cause {
            "panic" => bench.control.panics.store(true, Ordering::Relaxed),
            _ => bench.control.fails.store(true, Ordering::Relaxed),
        };
        let mut handles: Vec<JobHandle> = (0..3).map(|_| bench.submit(4000).unwrap()).collect();
        bench.until("they run", || bench.metric("weft_lanes_running") == 3);
        fail();
        for handle in &mut handles {
            let (_, ending) = end(handle);
            assert!(ending.unwrap_err().contains("the engine failed"), "{cause}");
        }
        bench.until("it is back", || bench.worker.model().is_ok());
        assert_eq!(bench.loads.load(Ordering::Relaxed), 2);
        assert_eq!(bench.metric("weft_lanes_running"), 0);
        assert_eq!(end(&mut bench.submit(5).unwrap()), (5, Ok(())));

        let mut last = bench.submit(4000).unwrap();
        bench.until("it runs", || bench.metric("weft_lanes_running") == 1);
        fail();
        assert!(end(&mut last).1.is_err());
        bench.until("it stays down", || matches!(*bench.worker.phase.borrow(), Phase::Down));
        assert!(bench.worker.model().is_err());
        assert_eq!(bench.metric("weft_engine_faults_total"), 2);
        bench.worker.drain();
        bench.thread.join().unwrap();
    }
}

#[test]
fn faults_far_apart_are_all_survived() {
    let bench = bench_with(Limits { fault_window: Duration::ZERO, ..LIMITS });
    for n_faults in 1..=3 {
        let mut handle = bench.submit(4000).unwrap();
        bench.until("it runs", || bench.metric("weft_lanes_running") == 1);
        bench.control.fails.store(true, Ordering::Relaxed);
        assert!(end(&mut handle).1.is_err());
        bench.until("it is back", || bench.worker.model().is_ok());
        assert_eq!(bench.loads.load(Ordering::Relaxed), n_faults + 1);
    }
    assert_eq!(end(&mut bench.submit(5).unwrap()), (5, Ok(())));
}

#[test]
fn readers_that_are_behind_give_way_to_requests_that_wait() {
    let (slow_reader, give_way) = (Duration::from_secs(60), Duration::from_millis(300));
    let bench = bench_with(Limits { slow_reader, give_way, ..LIMITS });
    let mut slow: Vec<JobHandle> = Vec::new();
    for _ in 0..8 {
        slow.push(bench.submit(1000).unwrap());
        let n = slow.len() as u64;
        bench.until("it runs", || bench.metric("weft_lanes_running") == n);
    }
    bench.until("all are behind", || slow.iter().all(|handle| handle.events.len() == EVENTS));
    let start = Instant::now();
    assert_eq!(end(&mut bench.submit(5).unwrap()), (5, Ok(())));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // One gave way and learns why; the others go on when they are read.
    let endings: Vec<_> = slow.iter_mut().map(end).collect();
    let refused: Vec<_> = endings.iter().filter_map(|(_, ending)| ending.clone().err()).collect();
    assert!(refused.len() == 1 && refused[0].contains("did not read"), "{refused:?}");
    assert_eq!(endings.iter().filter(|ending| **ending == (1000, Ok(()))).count(), 7);
}

#[test]
fn an_output_that_is_no_number_ends_its_request_alone() {
    let bench = bench();
    bench.control.says_nan.store(true, Ordering::Relaxed);
    let (_, ending) = end(&mut bench.submit(5).unwrap());
    assert!(ending.unwrap_err().contains("NaN"));
    assert_eq!(bench.metric("weft_answers_total{reason=\"error\"}"), 1);
    bench.control.says_nan.store(false, Ordering::Relaxed);
    assert_eq!(end(&mut bench.submit(5).unwrap()), (5, Ok(())));
}

#[test]
fn the_end_lets_running_answers_finish_and_refuses_new_ones() {
    let bench = bench();
    let mut running = bench.submit(500).unwrap();
    bench.until("it runs", || bench.metric("weft_lanes_running") == 1);
    bench.worker.drain();
    assert!(bench.worker.model().is_err());
    assert_eq!(end(&mut running), (500, Ok(())));
    bench.thread.join().unwrap();
    assert!(matches!(*bench.worker.phase.borrow(), Phase::Ended));
}

#[test]
fn readers_that_are_late_do_not_hold_up_the_end() {
    let (slow_reader, drain) = (Duration::from_secs(60), Duration::from_millis(200));
    let bench = bench_with(Limits { slow_reader, drain, ..LIMITS });
    bench.control.step_us.store(0, Ordering::Relaxed);
    // Nobody reads. The first is finished: only its last events did not fit. The second is paused.
    let mut finished = bench.submit(EVENTS).unwrap();
    bench.until("it is behind", || finished.events.len() == EVENTS);
    bench.until("it is finished", || bench.metric("weft_lanes_running") == 0);
    let mut paused = bench.submit(4000).unwrap();
    bench.until("it is behind too", || paused.events.len() == EVENTS);
    bench.worker.drain();
    bench.until("the thread ends", || bench.thread.is_finished());
    for handle in [&mut finished, &mut paused] {
        let (n_tokens, ending) = end(handle);
        assert!(n_tokens < EVENTS && ending.unwrap_err().contains("shutting down"), "{n_tokens}");
    }
}

#[test]
fn a_fault_frees_the_places_of_those_who_wait() {
    let bench = bench();
    bench.control.step_us.store(20_000, Ordering::Relaxed);
    let waiting = || bench.worker.shared.waiting.load(Ordering::Relaxed);
    let mut handles = Vec::new();
    for _ in 0..8 {
        handles.push(bench.submit(4000).unwrap());
        bench.until("it has a lane", || waiting() == 0);
    }
    handles.extend((0..4).map(|_| bench.submit(5).unwrap()));
    assert_eq!(waiting(), 4);
    bench.control.fails.store(true, Ordering::Relaxed);
    for handle in &mut handles {
        assert!(end(handle).1.unwrap_err().contains("the engine failed"));
    }
    bench.until("it is back", || bench.worker.model().is_ok());
    assert_eq!(waiting(), 0);
    bench.control.step_us.store(0, Ordering::Relaxed);
    assert_eq!(end(&mut bench.submit(5).unwrap()), (5, Ok(())));
}

#[tokio::test]
async fn calls_run_between_steps_and_a_panic_in_one_is_reported() {
    let bench = bench();
    let context = bench.worker.call(|engine| engine.context()).await.unwrap();
    assert_eq!(context, 4096);
    let failed = bench.worker.call(|_| -> usize { panic!("a call panics") }).await;
    assert!(failed.unwrap_err().json().to_string().contains("the engine failed"));
    bench.until("it is back", || bench.worker.model().is_ok());
}

/// A disk that stalls while it is told to.
fn stalling(folder: &std::path::Path) -> (Arc<AtomicBool>, impl Fn() -> Tiers + Send + 'static) {
    let (stalls, folder) = (Arc::new(AtomicBool::new(true)), folder.to_owned());
    let own = Arc::clone(&stalls);
    let open = move || {
        let mut store = Store::open(&folder, 1 << 30).unwrap();
        let own = Arc::clone(&own);
        store.set_before_io(move |_| {
            while own.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Tiers { ram_bytes: 0, store: Some(store), ..Tiers::default() }
    };
    (stalls, open)
}

fn warm() -> Job {
    let tokens = vec![5, 6, 7, 8];
    let chunk = Some(ChunkId::of(Kind::Context, &tokens));
    let piece = Piece { chunk, ..Piece::exact(Kind::Context, tokens) };
    Job::Warm(Composition { pieces: vec![piece], repair: Repair::None })
}

#[test]
fn rows_are_warm_when_their_files_are_on_disk_and_answers_go_on_until_then() {
    let folder = tempfile::tempdir().unwrap();
    let n_files = || Store::open(folder.path(), 1 << 30).unwrap().entries().count();
    let (stalls, open) = stalling(folder.path());
    let bench = bench_on(LIMITS, open);
    let mut warmed = bench.submit_job(warm()).unwrap();
    for _ in 0..3 {
        assert_eq!(end(&mut bench.submit(50).unwrap()), (50, Ok(())));
    }
    while let Ok(ChoiceEvent { event, .. }) = warmed.events.try_recv() {
        assert!(matches!(event, JobEvent::Admitted), "{event:?}");
    }
    assert_eq!(n_files(), 0);
    stalls.store(false, Ordering::Relaxed);
    assert_eq!(end(&mut warmed), (0, Ok(())));
    assert_eq!(n_files(), 1);
}

#[test]
fn a_disk_that_stalls_holds_up_the_end_as_long_as_readers_may() {
    let folder = tempfile::tempdir().unwrap();
    let (_stalls, open) = stalling(folder.path());
    let bench = bench_on(Limits { drain: Duration::from_millis(100), ..LIMITS }, open);
    let mut warmed = bench.submit_job(warm()).unwrap();
    bench.until("it is being saved", || bench.control.steps.load(Ordering::Relaxed) > 0);
    bench.worker.drain();
    bench.until("the thread ends", || bench.thread.is_finished());
    assert!(end(&mut warmed).1.is_err());
}

#[test]
fn readings_leave_a_lane_to_answers() {
    let bench = bench_with(Limits { queue: MAX_READINGS + 2, ..LIMITS });
    bench.control.step_us.store(100_000, Ordering::Relaxed);
    // Sixteen steps each.
    let mut readings: Vec<JobHandle> =
        (0..MAX_READINGS).map(|_| bench.submit_job(reading(4000)).unwrap()).collect();
    let mut passed = bench.submit_job(reading(3)).unwrap();
    // It waits behind the reading, and goes first.
    let mut answer = bench.submit(2).unwrap();
    assert_eq!(end(&mut answer), (2, Ok(())));
    assert_eq!(bench.worker.shared.waiting.load(Ordering::Relaxed), 1);
    assert_eq!(bench.metric("weft_readings_total"), 0, "none has ended before the answer");
    bench.control.step_us.store(200, Ordering::Relaxed);
    for handle in readings.iter_mut().chain([&mut passed]) {
        let mut values = Vec::new();
        loop {
            match handle.events.blocking_recv().unwrap().event {
                JobEvent::Read(read) => values = read,
                JobEvent::Done(finished) => {
                    assert_eq!(finished.stats.generated_tokens, 0);
                    break;
                }
                JobEvent::Admitted => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((values.len(), values[0]), (stub::model().config.hidden, 5.0));
    }
    bench.until("all are counted", || bench.metric("weft_readings_total") == 8);
    assert_eq!(bench.metric("weft_answers_total{reason=\"length\"}"), 1);
}

#[tokio::test]
async fn the_next_job_of_a_request_waits_for_a_place() {
    let bench = bench();
    bench.control.step_us.store(5_000, Ordering::Relaxed);
    let endless: Vec<Job> = (0..8).map(|_| answer(4000)).collect();
    let running = bench.worker.submit(endless).await.unwrap();
    bench.until("all lanes are taken", || bench.metric("weft_lanes_running") == 8);
    let mut waiting = Vec::new();
    for _ in 0..LIMITS.queue {
        waiting.push(bench.worker.submit(vec![answer(1)]).await.unwrap());
    }
    assert!(bench.worker.submit(vec![reading(3)]).await.is_err(), "the queue is full");
    let next = bench.worker.submit_next(vec![reading(3)]);
    let mut next = std::pin::pin!(next);
    let soon = Duration::from_millis(50);
    assert!(tokio::time::timeout(soon, &mut next).await.is_err(), "it waits");
    drop(running);
    let mut handle = next.await.unwrap();
    loop {
        match handle.events.recv().await.unwrap().event {
            JobEvent::Done(_) => break,
            JobEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}
