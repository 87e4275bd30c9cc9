//! Files on a disk that stalls or dies: lanes that need no file go on, and what was promised is
//! there.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::*;
use crate::store::Io;

/// What files wait for, if it is closed.
#[derive(Default)]
struct Gate {
    /// What may not happen now.
    closed_for: Mutex<Option<Io>>,
    changed: Condvar,
}

impl Gate {
    fn close(&self, io: Io) {
        *self.closed_for.lock().unwrap() = Some(io);
    }

    fn open(&self) {
        *self.closed_for.lock().unwrap() = None;
        self.changed.notify_all();
    }

    fn pass(&self, io: Io) {
        let closed_for = self.closed_for.lock().unwrap();
        drop(self.changed.wait_while(closed_for, |closed_for| *closed_for == Some(io)).unwrap());
    }
}

fn open(folder: &Path, pages: usize, ram_bytes: u64) -> (Engine, Arc<Gate>) {
    let mut store = Store::open(folder, 10_000_000).unwrap();
    let gate = Arc::new(Gate::default());
    let own = Arc::clone(&gate);
    store.set_before_io(move |io| own.pass(io));
    (engine_with(pages, Tiers { ram_bytes, store: Some(store), ..Tiers::default() }), gate)
}

fn n_files(folder: &Path) -> usize {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().ends_with(".safetensors")).count()
}

/// An engine whose rows of some prompts are in files only, and that cannot read them.
fn with_stalled_files(
    folder: &Path,
    pages: usize,
    prompts: &[&Composition],
) -> (Engine, Arc<Gate>) {
    let (mut engine, _) = open(folder, 80, 0);
    for prompt in prompts {
        ask(&mut engine, prompt);
    }
    engine.save(true);
    drop(engine);
    let (engine, gate) = open(folder, pages, 0);
    gate.close(Io::Read);
    (engine, gate)
}

fn check(engine: &Engine) {
    engine.cache.check(&engine.lane_pages());
}

/// Runs one lane to its end; returns its tokens, and the events of others.
pub(super) fn finish(engine: &mut Engine, lane: LaneId) -> (Vec<Token>, Finished, Vec<Event>) {
    let (mut tokens, mut others) = (Vec::new(), Vec::new());
    loop {
        for event in engine.step().unwrap() {
            match event {
                Event::Token { lane: of, token, .. } if of == lane => tokens.push(token),
                Event::Done { lane: of, finished } if of == lane => {
                    return (tokens, finished, others);
                }
                event if event.lane() == lane => {}
                event => others.push(event),
            }
        }
    }
}

#[test]
fn answers_end_while_the_disk_does_not_write() {
    let folder = tempfile::tempdir().unwrap();
    let (mut engine, gate) = open(folder.path(), 80, 0);
    gate.close(Io::Write);
    ask(&mut engine, &exact(&[1, 2], 1));
    let saving = engine.begin_save(true);
    for question in 2..5 {
        let prompt = exact(&[1, question], question);
        assert_eq!(ask(&mut engine, &prompt).0, cold(&prompt));
    }
    assert!(engine.is_saving(&saving) && engine.is_filing());
    assert_eq!((n_files(folder.path()), engine.n_saved(true)), (0, 0));
    gate.open();
    let n_saved = engine.save(true);
    assert!(!engine.is_saving(&saving) && !engine.is_filing());
    assert_eq!(n_files(folder.path()), n_saved);
    assert!(n_saved > 4, "{n_saved}");
}

#[test]
fn a_lane_that_needs_a_file_waits_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (theirs, ours) = (exact(&[1, 2], 1), composition(&[3], 2, Reuse::Isolated, Repair::None));
    let (mut engine, gate) = with_stalled_files(folder.path(), 80, &[&theirs]);
    let waiting = engine.add(Request::new(theirs.clone(), sampling())).unwrap();
    (0..3).for_each(|_| assert!(engine.step().unwrap().is_empty()));
    let mut ours_too = ours.clone();
    ours_too.pieces.remove(0);
    let running = engine.add(Request::new(ours_too.clone(), sampling())).unwrap();
    let (said, _, others) = finish(&mut engine, running);
    assert_eq!(said, cold(&ours_too));
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(engine.running(), 1);
    check(&engine);
    gate.open();
    let (said, finished, _) = finish(&mut engine, waiting);
    assert_eq!(said, cold(&theirs));
    assert_eq!(sources(&finished), [Some(Tier::Disk); 4]);
    check(&engine);
}

#[test]
fn lanes_that_need_the_same_file_read_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = exact(&[1, 2], 1);
    let (mut engine, gate) = with_stalled_files(folder.path(), 80, &[&prompt]);
    let request = || Request::new(prompt.clone(), sampling());
    let lanes = [engine.add(request()).unwrap(), engine.add(request()).unwrap()];
    engine.step().unwrap();
    check(&engine);
    gate.open();
    let done = finish(&mut engine, lanes[0]);
    let rest = engine.step().unwrap().into_iter();
    let others = done.2.into_iter().chain(rest).filter_map(|event| match event {
        Event::Token { token, .. } => Some(token),
        _ => None,
    });
    assert_eq!(others.collect::<Vec<_>>(), done.0);
    assert_eq!(done.0, cold(&prompt));
    engine.save(false);
    let stats = engine.cache_stats();
    assert_eq!((stats.brought_from_disk, stats.store.unwrap().hits), (4, 4));
}

#[test]
fn files_that_turn_out_to_be_damaged_are_computed() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = exact(&[1, 2], 1);
    for n_damaged in 1..=4 {
        let (mut engine, gate) = with_stalled_files(folder.path(), 12, &[&prompt]);
        let lane = engine.add(Request::new(prompt.clone(), sampling())).unwrap();
        engine.step().unwrap();
        let store = Store::open(folder.path(), 10_000_000).unwrap();
        let mut entries: Vec<_> = store.entries().collect();
        // The last one has the answer's rows.
        entries.sort_by_key(|(_, entry)| entry.header.home_position);
        for (key, _) in &entries[..n_damaged] {
            let file = &folder.path().join(format!("{key}.safetensors"));
            let mut bytes = std::fs::read(file).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(file, bytes).unwrap();
        }
        gate.open();
        let (said, finished, _) = finish(&mut engine, lane);
        assert_eq!(said, cold(&prompt));
        let n_computed = sources(&finished).iter().filter(|source| source.is_none()).count();
        assert_eq!(n_computed, n_damaged);
        check(&engine);
        engine.save(true);
        assert_eq!(engine.cache_stats().store.unwrap().quarantined, n_damaged as u64);
    }
}

#[test]
fn a_lane_that_is_cancelled_while_it_waits_leaves_no_page_behind() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = exact(&[1, 2], 1);
    let (mut engine, gate) = with_stalled_files(folder.path(), 12, &[&prompt]);
    let free = engine.cache_stats().device.used_bytes;
    for _ in 0..3 {
        let request = Request::new(prompt.clone(), sampling());
        let cancel = request.cancel.clone();
        engine.add(request).unwrap();
        engine.step().unwrap();
        check(&engine);
        assert!(engine.cache_stats().device.used_bytes > free);
        cancel.cancel();
        engine.step().unwrap();
        check(&engine);
        assert_eq!(engine.cache_stats().device.used_bytes, free);
        assert_eq!(engine.cache.n_promised(), 0);
    }
    gate.open();
    let (said, finished) = ask(&mut engine, &prompt);
    assert_eq!(said, cold(&prompt));
    assert_eq!(sources(&finished), [Some(Tier::Disk); 4]);
    check(&engine);
}

#[test]
fn a_chunk_that_is_forgotten_while_it_is_read_or_written_stays_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = exact(&[1], 1);
    let (mut engine, gate) = with_stalled_files(folder.path(), 12, &[&prompt]);
    let lane = engine.add(Request::new(prompt.clone(), sampling())).unwrap();
    engine.step().unwrap();
    engine.cache.forget(&chunk_of(document(1)));
    gate.open();
    assert_eq!(finish(&mut engine, lane).0, cold(&prompt));
    check(&engine);
    engine.cache.flush(&mut *engine.device);
    gate.close(Io::Write);
    ask(&mut engine, &prompt);
    engine.begin_save(true);
    engine.cache.forget(&chunk_of(document(1)));
    gate.open();
    engine.cache.flush(&mut *engine.device);
    drop(engine);
    let (engine, _) = open(folder.path(), 12, 0);
    assert_eq!(engine.tier_of(&chunk_of(document(1))), None);
    assert_eq!(n_files(folder.path()), engine.cache_stats().disk.nodes);
}

#[test]
fn tiers_of_many_chunks_are_those_of_each() {
    let folder = tempfile::tempdir().unwrap();
    let earlier = exact(&[1, 2], 1);
    let (mut engine, gate) = with_stalled_files(folder.path(), 80, &[&earlier]);
    gate.open();
    let chunks: Vec<Chunk> = [1, 2, 3].map(document).map(chunk_of).into();
    let in_files = engine.chunk_tiers().of(&chunks);
    let disk = |chunk: &Chunk| (chunk.id, Tier::Disk);
    assert_eq!(in_files, chunks[..2].iter().map(disk).collect(), "of an earlier process");
    let mut later = exact(&[3, 1], 1);
    for piece in later.pieces.iter_mut().filter(|piece| piece.kind == Kind::Context) {
        piece.chunk = Some(ChunkId::of(piece.kind, &piece.tokens));
    }
    ask(&mut engine, &later);
    let all = engine.chunk_tiers().of(&chunks);
    for chunk in &chunks {
        assert_eq!(all.get(&chunk.id).copied(), engine.tier_of(chunk), "{:?}", chunk.id);
    }
    assert_eq!(all.get(&chunks[2].id), Some(&Tier::Device));
    assert_eq!(all.len(), 3);
}

#[test]
fn rows_that_find_the_queue_full_are_dropped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (mut engine, gate) = open(folder.path(), 12, 0);
    gate.close(Io::Write);
    engine.cache.set_most_queued(10_000);
    for question in 0..8 {
        let prompt = exact(&[question, question + 1], question);
        assert_eq!(ask(&mut engine, &prompt).0, cold(&prompt));
        check(&engine);
    }
    let before = engine.cache_stats();
    assert!(before.unfiled > 0 && before.dropped >= before.unfiled, "{before:?}");
    // What is still on the device waits for room.
    let saving = engine.begin_save(true);
    let device = engine.cache_stats().device.nodes;
    gate.open();
    assert!(engine.save(true) >= device);
    assert!(!engine.is_saving(&saving));
    assert_eq!(engine.cache_stats().unfiled, before.unfiled);
    assert_eq!(n_files(folder.path()), engine.cache_stats().disk.nodes);
}

#[test]
fn an_engine_ends_though_its_disk_stalls() {
    let folder = tempfile::tempdir().unwrap();
    let (mut engine, gate) = open(folder.path(), 80, 0);
    gate.close(Io::Write);
    ask(&mut engine, &exact(&[1, 2], 1));
    engine.begin_save(true);
    drop(engine);
    assert_eq!(n_files(folder.path()), 0);
    gate.open();
}

/// Makes reading look slow, or fast.
fn measure(engine: &mut Engine, read: Duration) {
    engine.always_fetch(false);
    for _ in 0..200 {
        engine.cache.count_read(Tier::Disk, 1000, read);
        engine.cache.count_computed(64, Duration::from_millis(64));
    }
}

#[test]
fn rows_are_computed_if_that_is_faster_than_reading_them() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = exact(&[1, 2], 1);
    let (mut engine, gate) = with_stalled_files(folder.path(), 12, &[&prompt]);
    measure(&mut engine, Duration::from_secs(1));
    // It does not even try to read.
    let (said, finished) = ask(&mut engine, &prompt);
    assert_eq!(said, cold(&prompt));
    assert_eq!(sources(&finished), [None; 4]);
    let choices: Vec<_> = finished.report.pieces.iter().map(|p| p.choice.unwrap()).collect();
    assert!(choices.iter().all(|choice| choice.fetch > choice.compute), "{choices:?}");
    assert_eq!(engine.cache_stats().computed_again, 4);
    check(&engine);
    assert_eq!(sources(&ask(&mut engine, &prompt).1), [Some(Tier::Device); 4]);
    let n_files = n_files(folder.path());
    engine.save(true);
    assert_eq!(self::n_files(folder.path()), n_files, "they are there already");

    gate.open();
    let (mut engine, _) = open(folder.path(), 12, 0);
    measure(&mut engine, Duration::from_nanos(1));
    let (said, finished) = ask(&mut engine, &prompt);
    assert_eq!(said, cold(&prompt));
    assert_eq!(sources(&finished), [Some(Tier::Disk); 4]);
    assert!(finished.report.pieces.iter().all(|piece| piece.choice.is_some()));
}

#[test]
fn rows_that_are_computed_again_stay_in_their_file_if_the_lane_is_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = exact(&[1, 2], 1);
    let (mut engine, gate) = with_stalled_files(folder.path(), 12, &[&prompt]);
    measure(&mut engine, Duration::from_secs(1));
    let request = Request::new(prompt.clone(), sampling());
    let cancel = request.cancel.clone();
    engine.add(request).unwrap();
    engine.step().unwrap();
    cancel.cancel();
    engine.step().unwrap();
    check(&engine);
    gate.open();
    measure(&mut engine, Duration::from_nanos(1));
    let (said, finished) = ask(&mut engine, &prompt);
    assert_eq!(said, cold(&prompt));
    assert!(sources(&finished).iter().all(Option::is_some), "{:?}", sources(&finished));
    assert_eq!(sources(&finished)[3], Some(Tier::Disk));
}

/// The folder of a process that is killed.
const FOLDER: &str = "WEFT_TEST_KILLED_IN";

/// How often it is killed: 20 times, or as `WEFT_TEST_KILLS` says.
fn n_kills() -> u32 {
    std::env::var("WEFT_TEST_KILLS").map_or(20, |n| n.parse().unwrap())
}

#[test]
fn what_was_promised_survives_a_kill_while_files_are_written() {
    if let Ok(folder) = std::env::var(FOLDER) {
        answer_until_killed(Path::new(&folder));
    }
    let (mut n_promised, mut n_found) = (0, 0);
    for kill in 0..n_kills() {
        let folder = tempfile::tempdir().unwrap();
        let promised = kill_after(folder.path(), kill % 13, u64::from(kill * 7919 % 6000));
        let (mut engine, _) = open(folder.path(), 80, 0);
        for document in 0..promised + 4 {
            let prompt = exact(&[document], 0);
            let (said, finished) = ask(&mut engine, &prompt);
            assert_eq!(said, cold(&prompt));
            let is_found = sources(&finished)[1] == Some(Tier::Disk);
            assert!(is_found || document >= promised, "{document} of {promised}");
            n_found += u32::from(is_found);
        }
        engine.save(true);
        assert_eq!(engine.cache_stats().store.unwrap().quarantined, 0);
        n_promised += promised;
    }
    println!("{} kills: {n_promised} documents promised, {n_found} found", n_kills());
    assert!(n_promised > 0);
}

/// Answers about one document after the other, files them behind the answers, and promises all of
/// them from time to time.
fn answer_until_killed(folder: &Path) -> ! {
    let (mut engine, _) = open(folder, 80, 0);
    eprintln!("ready");
    for document in 0.. {
        ask(&mut engine, &exact(&[document], 0));
        engine.begin_save(true);
        eprintln!("answered");
        if document % 3 == 2 {
            engine.save(true);
            eprintln!("promised {}", document + 1);
        }
    }
    unreachable!("it is killed")
}

/// Starts a process that answers, and kills it some time after its `n`th answer. Returns the number
/// of documents that it promised.
fn kill_after(folder: &Path, n: u32, us: u64) -> u32 {
    let test = "engine::tests::files::what_was_promised_survives_a_kill_while_files_are_written";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("ready") || text.matches("answered").count() < n as usize {
        assert!(lines.read_line(&mut text).unwrap() > 0, "the child ended early: {text}");
    }
    std::thread::sleep(Duration::from_micros(us));
    child.kill().unwrap();
    child.wait().unwrap();
    lines.read_to_string(&mut text).unwrap();
    let promised = text.lines().filter_map(|line| line.strip_prefix("promised "));
    promised.filter_map(|n| n.parse().ok()).next_back().unwrap_or(0)
}
