//! A remote tier that answers late, wrongly or never: a lane waits for its own rows alone, and
//! every answer is the cold one.

use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::store::{Header, HostRows, KvKey};

/// A remote tier in memory.
#[derive(Default)]
pub(super) struct Shelf {
    entries: Mutex<HashMap<KvKey, (Header, Arc<HostRows>)>>,
    /// Fetches that wait to be answered.
    waiting: Mutex<Vec<(KvKey, WhenFetched)>>,
    /// What happens to the next fetches.
    mood: Mutex<Mood>,
    stats: Mutex<RemoteStats>,
    /// Held for each fetch that somebody wants.
    wanted: Arc<()>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Mood {
    #[default]
    Answers,
    /// Until it is told to.
    Waits,
    /// It knows at once that nothing would come.
    Refuses,
    /// It cannot be reached.
    Fails,
    /// It drops what it was asked.
    Drops,
    /// It sends fewer rows than were asked for.
    Cuts,
    /// It takes nothing.
    IsFull,
}

const COST: Duration = Duration::from_secs(7);

impl Shelf {
    fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap()
    }

    pub(super) fn n_entries(&self) -> usize {
        self.entries.lock().unwrap().len()
    }

    fn n_waiting(&self) -> usize {
        self.waiting.lock().unwrap().len()
    }

    fn stats(&self) -> RemoteStats {
        self.stats.lock().unwrap().clone()
    }

    fn find(&self, key: &KvKey, is_cut: bool) -> Fetched {
        let Some((header, rows)) = self.entries.lock().unwrap().get(key).cloned() else {
            self.stats.lock().unwrap().misses += 1;
            return Fetched::Absent;
        };
        self.stats.lock().unwrap().hits += 1;
        let mut rows = header.read_stored(HostRows::clone(&rows)).unwrap();
        if is_cut {
            rows.v = rows.v[..rows.v.len() - 1].to_vec().into();
        }
        Fetched::Rows { rows, cost: COST }
    }

    /// Answers everything that waits.
    fn answer(&self) {
        let waiting: Vec<_> = self.waiting.lock().unwrap().drain(..).collect();
        waiting.into_iter().for_each(|(key, done)| done(self.find(&key, false)));
    }
}

impl RemoteTier for Shelf {
    fn fetch(&self, key: &KvKey, expected: &Header, done: WhenFetched) -> Option<Interest> {
        assert_eq!(expected.key(), *key);
        match self.mood() {
            Mood::Refuses => return None,
            Mood::Waits => self.waiting.lock().unwrap().push((*key, done)),
            Mood::Fails => done(Fetched::Failed),
            Mood::Drops => drop(done),
            mood => done(self.find(key, mood == Mood::Cuts)),
        }
        Some(Box::new(Arc::clone(&self.wanted)))
    }

    fn put(&self, _: &ChunkId, key: &KvKey, header: &Header, rows: Arc<HostRows>) -> bool {
        if self.mood() == Mood::IsFull {
            return false;
        }
        self.stats.lock().unwrap().stored += 1;
        // Coarse rows are stored as such.
        let rows = header.stored(&rows).unwrap().map_or(rows, Arc::new);
        self.entries.lock().unwrap().insert(*key, (header.clone(), rows));
        true
    }

    fn close(&self, _: Duration) -> usize {
        0
    }

    fn stats(&self) -> RemoteStats {
        self.stats()
    }

    fn take_warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A machine: an engine with its own disk, and the shelf that it shares.
fn machine(shelf: &Arc<Shelf>, folder: &Path) -> Engine {
    let store = Store::open(folder, 10_000_000).unwrap();
    let remote = Arc::clone(shelf) as Arc<dyn RemoteTier>;
    engine_with(
        80,
        Tiers { ram_bytes: 0, store: Some(store), remote: Some(remote), ..Tiers::default() },
    )
}

/// A prompt whose system prompt and documents are chunks.
pub(super) fn of_chunks(documents: &[u32], question: u32, reuse: Reuse) -> Composition {
    let mut prompt = composition(documents, question, reuse, Repair::None);
    for piece in prompt.pieces.iter_mut().filter(|piece| piece.kind != Kind::Query) {
        piece.chunk = Some(ChunkId::of(piece.kind, &piece.tokens));
    }
    prompt
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A shelf that another machine has filled.
fn filled(prompts: &[&Composition]) -> Arc<Shelf> {
    let (shelf, folder) = (Arc::new(Shelf::default()), folder());
    let mut engine = machine(&shelf, folder.path());
    prompts.iter().for_each(|prompt| drop(ask(&mut engine, prompt)));
    engine.save(false);
    shelf
}

const REMOTE: Option<Tier> = Some(Tier::Remote);

#[test]
fn another_machine_finds_the_rows_of_chunks_and_keeps_them_on_its_disk() {
    for reuse in [Reuse::Exact, Reuse::Anchored, Reuse::Isolated] {
        let prompt = of_chunks(&[1, 2], 1, reuse);
        let (shelf, here) = (Arc::new(Shelf::default()), folder());
        let mut first = machine(&shelf, here.path());
        let (said, finished) = ask(&mut first, &prompt);
        assert_eq!(sources(&finished), [None; 4]);
        first.save(true);
        assert_eq!(shelf.n_entries(), 3, "chunks, and neither the question nor the answer");
        let there = folder();
        let mut second = machine(&shelf, there.path());
        let (again, finished) = ask(&mut second, &prompt);
        assert_eq!(again, said);
        assert_eq!(sources(&finished), [REMOTE, REMOTE, REMOTE, None]);
        assert!(finished.report.saved() > 2 * COST);
        let stats = second.cache_stats();
        assert_eq!((stats.brought_from_remote, stats.remote.unwrap().hits), (3, 3));
        second.save(false);
        drop(second);
        // The next process does not ask.
        shelf.set(Mood::Refuses);
        let mut third = machine(&shelf, there.path());
        let (again, finished) = ask(&mut third, &prompt);
        assert_eq!(again, said);
        assert_eq!(sources(&finished)[..3], [Some(Tier::Disk); 3]);
        assert_eq!(shelf.stats().hits, 3);
    }
}

#[test]
fn what_came_from_the_store_is_not_written_to_it_again() {
    let prompt = of_chunks(&[1], 1, Reuse::Exact);
    let (shelf, there) = (filled(&[&prompt]), folder());
    let before = shelf.stats().stored;
    let mut engine = machine(&shelf, there.path());
    ask(&mut engine, &prompt);
    engine.save(true);
    assert_eq!(shelf.stats().stored, before);
}

#[test]
fn rows_that_were_on_disk_before_there_was_a_store_are_shared_when_they_are_used() {
    let prompt = of_chunks(&[1, 2], 1, Reuse::Exact);
    let (shelf, here) = (Arc::new(Shelf::default()), folder());
    shelf.set(Mood::IsFull);
    let mut engine = machine(&shelf, here.path());
    ask(&mut engine, &prompt);
    engine.save(false);
    drop(engine);
    assert_eq!(shelf.n_entries(), 0);
    shelf.set(Mood::Answers);
    let mut engine = machine(&shelf, here.path());
    let (_, finished) = ask(&mut engine, &prompt);
    assert_eq!(sources(&finished)[..3], [Some(Tier::Disk); 3]);
    assert_eq!(shelf.n_entries(), 3);
}

/// Rows of a text without a chunk that a chunk uses may be those of other texts too.
#[test]
fn rows_of_more_than_a_chunk_are_not_shared_by_it() {
    let prompt = of_chunks(&[1], 1, Reuse::Exact);
    let [mut longer, mut joined, same] = [(); 3].map(|()| exact(&[1], 1));
    longer.pieces[1].tokens.extend(tokens(10, 9));
    let document = joined.pieces.remove(1);
    joined.pieces[0].tokens.extend(document.tokens);
    for (before, shared) in [(longer, 1), (joined, 0), (same, 2)] {
        let (shelf, here) = (Arc::new(Shelf::default()), folder());
        let mut engine = machine(&shelf, here.path());
        ask(&mut engine, &before);
        let (_, finished) = ask(&mut engine, &prompt);
        assert_eq!(sources(&finished)[..2], [Some(Tier::Device); 2]);
        engine.save(false);
        assert_eq!(shelf.n_entries(), shared);
    }
}

#[test]
fn a_lane_waits_for_its_own_rows_alone() {
    let theirs = of_chunks(&[1, 2], 1, Reuse::Exact);
    let (shelf, there) = (filled(&[&theirs]), folder());
    let mut engine = machine(&shelf, there.path());
    shelf.set(Mood::Waits);
    let waiting = engine.add(Request::new(theirs.clone(), sampling())).unwrap();
    // A second lane needs the same rows, and asks for nothing more.
    let with_it = engine.add(Request::new(theirs.clone(), sampling())).unwrap();
    assert_eq!(shelf.n_waiting(), 3);
    let mut ours = exact(&[5], 3);
    // The system prompt is one that they wait for.
    ours.pieces.remove(0);
    let running = engine.add(Request::new(ours.clone(), sampling())).unwrap();
    let (said, _, others) = files::finish(&mut engine, running);
    assert_eq!(said, cold(&ours));
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(engine.running(), 2);
    engine.cache.check(&engine.lane_pages());
    shelf.answer();
    let (said, finished, _) = files::finish(&mut engine, waiting);
    assert_eq!(said, cold(&theirs));
    assert_eq!(sources(&finished), [REMOTE, REMOTE, REMOTE, None]);
    while engine.running() > 0 {
        for event in engine.step().unwrap() {
            assert_eq!(event.lane(), with_it);
        }
    }
    assert_eq!(engine.cache_stats().brought_from_remote, 3);
    engine.cache.check(&[]);
}

#[test]
fn a_store_that_fails_in_any_way_changes_no_answer() {
    let prompt = of_chunks(&[1, 2], 1, Reuse::Exact);
    for mood in [Mood::Refuses, Mood::Fails, Mood::Drops, Mood::Cuts, Mood::IsFull] {
        let (shelf, there) = (filled(&[&prompt]), folder());
        shelf.set(mood);
        let mut engine = machine(&shelf, there.path());
        let (said, finished) = ask(&mut engine, &prompt);
        assert_eq!(said, cold(&prompt));
        let expected = if mood == Mood::IsFull { [REMOTE; 3] } else { [None; 3] };
        assert_eq!(sources(&finished)[..3], expected);
        let (again, finished) = ask(&mut engine, &prompt);
        assert_eq!((again, sources(&finished)[1]), (said, Some(Tier::Device)));
    }
}

#[test]
fn some_rows_come_and_the_others_are_computed() {
    let (known, prompt) =
        (of_chunks(&[1], 1, Reuse::Exact), of_chunks(&[1, 2, 3], 1, Reuse::Exact));
    let (shelf, there) = (filled(&[&known]), folder());
    let mut engine = machine(&shelf, there.path());
    let (said, finished) = ask(&mut engine, &prompt);
    assert_eq!(said, cold(&prompt));
    assert_eq!(sources(&finished), [REMOTE, REMOTE, None, None, None]);
    engine.save(false);
    assert_eq!(shelf.n_entries(), 4, "they are in the store now");
}

#[test]
fn a_lane_that_is_cancelled_while_it_waits_leaves_nothing_behind() {
    let prompt = of_chunks(&[1, 2], 1, Reuse::Exact);
    let (shelf, there) = (filled(&[&prompt]), folder());
    let mut engine = machine(&shelf, there.path());
    shelf.set(Mood::Waits);
    let request = Request::new(prompt.clone(), sampling());
    let cancel = request.cancel.clone();
    engine.add(request).unwrap();
    engine.step().unwrap();
    assert_eq!(Arc::strong_count(&shelf.wanted), 1 + 3);
    cancel.cancel();
    engine.step().unwrap();
    engine.cache.check(&[]);
    assert_eq!(Arc::strong_count(&shelf.wanted), 1, "nobody wants the rows any more");
    assert_eq!((engine.running(), engine.cache_stats().device.nodes), (0, 0));
    // Rows that come now are nobody's.
    shelf.answer();
    shelf.set(Mood::Answers);
    let (said, finished) = ask(&mut engine, &prompt);
    assert_eq!(said, cold(&prompt));
    assert_eq!(sources(&finished)[..3], [REMOTE; 3]);
}

#[test]
fn rows_are_not_asked_for_if_computing_them_is_faster() {
    let prompt = of_chunks(&[1, 2], 1, Reuse::Exact);
    let (shelf, there) = (filled(&[&prompt]), folder());
    let mut engine = machine(&shelf, there.path());
    engine.always_fetch(false);
    for _ in 0..200 {
        engine.cache.count_read(Tier::Remote, 1000, Duration::from_secs(1));
        engine.cache.count_computed(64, Duration::from_millis(64));
    }
    let before = shelf.stats().hits;
    let (said, finished) = ask(&mut engine, &prompt);
    assert_eq!(said, cold(&prompt));
    assert_eq!(sources(&finished), [None; 4]);
    let choices: Vec<_> = finished.report.pieces.iter().map(|piece| piece.choice).collect();
    assert!(choices[..3].iter().all(|choice| choice.unwrap().fetch > choice.unwrap().compute));
    assert_eq!((choices[3], engine.cache_stats().not_asked), (None, 3));
    assert_eq!(shelf.stats().hits, before);
}

#[test]
fn nothing_is_asked_or_shared_for_requests_without_the_cache() {
    let prompt = of_chunks(&[1, 2], 1, Reuse::Exact);
    let (shelf, there) = (filled(&[&prompt]), folder());
    let before = shelf.stats();
    let mut engine = machine(&shelf, there.path());
    let (said, _) = answer(&mut engine, Request::new(prompt.clone(), sampling()).cold());
    assert_eq!(said, cold(&prompt));
    engine.verify(&prompt, &said.iter().map(|token| token.id).collect::<Vec<_>>()).unwrap();
    engine.save(true);
    assert_eq!(shelf.stats(), before);
}

#[test]
fn a_chunk_that_is_forgotten_while_its_rows_come_is_not_filed() {
    let prompt = of_chunks(&[1], 1, Reuse::Exact);
    let (shelf, there) = (filled(&[&prompt]), folder());
    let mut engine = machine(&shelf, there.path());
    shelf.set(Mood::Waits);
    let lane = engine.add(Request::new(prompt.clone(), sampling())).unwrap();
    engine.drop_rows();
    shelf.answer();
    let (said, _, _) = files::finish(&mut engine, lane);
    assert_eq!(said, cold(&prompt));
    engine.save(false);
    assert_eq!((engine.n_saved(true), engine.cache_stats().disk.nodes), (0, 0));
}
