//! A device with slow copies: lanes whose pages are settled do not wait for them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use super::wrapped::wrapped;
use super::*;
use crate::device::PageRows;
use crate::kv::{PAGE_ROWS, PageId, Slot};
use crate::store::HostRows;

/// Duration of a copy, in steps.
const STEPS: usize = 3;

/// A copy in progress.
struct Copy {
    pages: Vec<PageId>,
    steps_left: usize,
    /// The rows to write, from which row on and how many; `None` if rows are only read.
    brings: Option<(usize, usize, Arc<HostRows>)>,
}

/// Copies one after the other, each during several steps.
struct Slow {
    device: Box<dyn Device>,
    copies: Vec<Copy>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Steps that had to wait for a copy.
    waits: AtomicUsize,
    /// Steps that ran during a copy.
    beside: AtomicUsize,
    /// Copies that were waited for without other work.
    settled: AtomicUsize,
    /// Lists of rows that were sent.
    sent: AtomicUsize,
    /// Whether its steps wait for copies layer by layer.
    starts_early: AtomicBool,
}

impl Counts {
    fn reset(&self) {
        for count in [&self.waits, &self.beside, &self.settled, &self.sent] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

impl Slow {
    fn begin(&mut self, rows: &PageRows<'_>, from: Option<Arc<HostRows>>) {
        let pages = rows.pages[..rows.n_pages()].to_vec();
        let brings = from.map(|from| (rows.first_row, rows.len, from));
        self.copies.push(Copy { pages, steps_left: STEPS, brings });
    }

    /// Ends copies up to the last one that uses some pages; returns false if there is none.
    fn end_at(&mut self, is_used: impl Fn(PageId) -> bool) -> bool {
        let last =
            self.copies.iter().rposition(|copy| copy.pages.iter().any(|page| is_used(*page)));
        let n = last.map_or(0, |last| last + 1);
        (0..n).for_each(|_| self.end_first());
        n > 0
    }

    fn end_first(&mut self) {
        let Copy { pages, brings, .. } = self.copies.remove(0);
        if let Some((first_row, len, from)) = brings {
            self.device.write_kv(&PageRows { pages: &pages, first_row, len }, &from.k, &from.v);
        }
    }
}

impl Device for Slow {
    wrapped!();

    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        let spans = step.lanes.iter().flat_map(|lane| lane.spans);
        let mut used: Vec<PageId> = spans.flat_map(|span| span.pages.iter().copied()).collect();
        let slots = step.lanes.iter().flat_map(|lane| lane.store_at);
        used.extend(slots.map(|slot| slot / PAGE_ROWS as Slot));
        if self.end_at(|page| used.contains(&page)) {
            self.counts.waits.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(copy) = self.copies.first_mut() {
            self.counts.beside.fetch_add(1, Ordering::Relaxed);
            copy.steps_left -= 1;
            if copy.steps_left == 0 {
                self.end_first();
            }
        }
        self.device.run(ops, step)
    }

    fn send_kv(
        &mut self,
        layers: std::ops::Range<u16>,
        rows: &PageRows<'_>,
        bytes: usize,
    ) -> Receiver<HostRows> {
        self.end_at(|page| rows.pages.contains(&page));
        let mut to = HostRows { k: vec![0; bytes].into(), v: vec![0; bytes].into() };
        self.device.read_kv(layers, rows, &mut to.k, &mut to.v);
        self.begin(rows, None);
        self.counts.sent.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = channel();
        sender.send(to).unwrap();
        receiver
    }

    fn bring_kv(&mut self, rows: &PageRows<'_>, from: Arc<HostRows>) {
        self.begin(rows, Some(from));
    }

    fn is_settled(&self, pages: &[PageId]) -> bool {
        !self.copies.iter().any(|copy| copy.pages.iter().any(|page| pages.contains(page)))
    }

    fn starts_early(&self) -> bool {
        self.counts.starts_early.load(Ordering::Relaxed)
    }

    fn settle(&mut self, pages: &[PageId]) {
        self.counts.settled.fetch_add(1, Ordering::Relaxed);
        self.end_at(|page| pages.contains(&page));
    }

    fn logits(&self, output: usize) -> &[f32] {
        self.device.logits(output)
    }

    fn attention(&self, lane: usize, output: usize) -> Vec<f32> {
        self.device.attention(lane, output)
    }
}

fn slow_engine(pages: usize, store: Option<Store>) -> (Engine, Arc<Counts>) {
    let mut engine = engine_with(pages, Tiers { ram_bytes: 1 << 30, store, ..Tiers::default() });
    let counts = Arc::new(Counts::default());
    let none = engine_with(2, Tiers::default()).device;
    let device = std::mem::replace(&mut engine.device, none);
    engine.device = Box::new(Slow { device, copies: Vec::new(), counts: Arc::clone(&counts) });
    (engine, counts)
}

fn load(count: &AtomicUsize) -> usize {
    count.load(Ordering::Relaxed)
}

/// Runs lanes to their end; returns the tokens of each, and the number of steps with tokens for
/// `of` alone.
fn finish(engine: &mut Engine, lanes: &[LaneId], of: LaneId) -> (Vec<Vec<Token>>, usize) {
    let mut tokens: Vec<Vec<Token>> = lanes.iter().map(|_| Vec::new()).collect();
    let mut alone = 0;
    while engine.running() > 0 {
        let events = engine.step().unwrap();
        alone += usize::from(!events.is_empty() && events.iter().all(|event| event.lane() == of));
        for event in events {
            let lane = lanes.iter().position(|lane| *lane == event.lane()).unwrap();
            if let Event::Token { token, .. } = event {
                tokens[lane].push(token);
            }
        }
    }
    (tokens, alone)
}

#[test]
fn a_lane_goes_on_while_the_rows_of_another_are_brought() {
    let (mut engine, counts) = slow_engine(80, None);
    let (ours, theirs) = (exact(&[3], 1), exact(&[1, 2], 2));
    ask(&mut engine, &theirs);
    engine.demote(Tier::Ram);
    // All copies are complete before counting starts.
    engine.device.settle(&(0..80).collect::<Vec<_>>());
    let long = Sampling { max_tokens: Some(40), ..sampling() };
    let first = engine.add(Request::new(ours.clone(), long.clone())).unwrap();
    (0..4).for_each(|_| drop(engine.step().unwrap()));
    counts.reset();

    let second = engine.add(Request::new(theirs.clone(), sampling())).unwrap();
    let (tokens, alone) = finish(&mut engine, &[first, second], first);
    assert_eq!(load(&counts.waits), 0, "no step waited for a copy");
    assert_eq!(load(&counts.settled), 0, "nor did anybody else");
    assert!(load(&counts.beside) >= 2 * STEPS, "copies ran beside steps");
    assert!(alone >= 2 * STEPS, "the first lane went on alone: {alone}");
    assert_eq!(tokens[1], cold(&theirs));
    let (truth, _) = answer(&mut engine_with(80, Tiers::default()), Request::new(ours, long));
    assert_eq!(tokens[0], truth[truth.len() - tokens[0].len()..]);
}

#[test]
fn a_lane_by_itself_waits_for_its_rows() {
    let (mut engine, counts) = slow_engine(80, None);
    let prompt = exact(&[1, 2], 2);
    ask(&mut engine, &prompt);
    engine.demote(Tier::Ram);
    counts.reset();
    let (tokens, finished) = ask(&mut engine, &prompt);
    assert_eq!(tokens, cold(&prompt));
    assert_eq!(sources(&finished), [Some(Tier::Ram); 4]);
    assert_eq!((load(&counts.waits), load(&counts.settled)), (0, 1));
}

#[test]
fn a_lane_by_itself_begins_before_its_rows_have_come_if_the_device_can() {
    let (mut engine, counts) = slow_engine(80, None);
    let prompt = exact(&[1, 2], 2);
    ask(&mut engine, &prompt);
    engine.demote(Tier::Ram);
    counts.reset();
    counts.starts_early.store(true, Ordering::Relaxed);
    let (tokens, finished) = ask(&mut engine, &prompt);
    assert_eq!(tokens, cold(&prompt));
    assert_eq!(sources(&finished), [Some(Tier::Ram); 4]);
    assert_eq!((load(&counts.waits), load(&counts.settled)), (1, 0), "the step waited");
}

#[test]
fn pages_are_free_before_an_answer_takes_them() {
    // Room for the cached rows, and for the answer only if some of them are evicted.
    let (mut engine, counts) = slow_engine(12, None);
    for question in 0..4 {
        ask(&mut engine, &exact(&[question], question));
    }
    let long = Sampling { max_tokens: Some(200), ..sampling() };
    let prompt = exact(&[9], 1);
    let lane = engine.add(Request::new(prompt.clone(), long.clone())).unwrap();
    // Its first pages have just been taken from other nodes.
    (0..30).for_each(|_| drop(engine.step().unwrap()));
    assert!(load(&counts.beside) > 0, "pages are left beside steps");
    counts.reset();
    let (tokens, _) = finish(&mut engine, &[lane], lane);
    assert_eq!(load(&counts.waits), 0, "no step waited for a page to be left");
    let (truth, _) = answer(&mut engine_with(12, Tiers::default()), Request::new(prompt, long));
    assert_eq!(tokens[0], truth[truth.len() - tokens[0].len()..]);
}

#[test]
fn rows_that_go_to_disk_leave_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), 10_000_000).unwrap();
    let (mut engine, counts) = slow_engine(80, Some(store));
    ask(&mut engine, &exact(&[1, 2], 2));
    let n_nodes = engine.cache_stats().device.nodes;
    engine.demote(Tier::Disk);
    assert_eq!(load(&counts.sent), n_nodes);
    let CacheStats { device, ram, disk, .. } = engine.cache_stats();
    assert_eq!((device.nodes, ram.nodes, disk.nodes), (0, 0, n_nodes));
}
