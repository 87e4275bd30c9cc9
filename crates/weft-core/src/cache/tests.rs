//! Compares the cache with a naive model under random operations: every page has one place, rows in
//! use stay where they are, and rows that are loaded equal the rows that were stored.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};

use super::*;
use crate::chunk::{Chunk, Kind, Tier};
use crate::config::Config;
use crate::device::{Inspect, Limits};
use crate::dtype::Dtype;
use crate::kv::{PAGE_ROWS, Slot};
use crate::reference;
use crate::store::{RowForm, Store};
use crate::weights::RandomWeights;

const PAGES: usize = 12;

fn new_node(parent: KvKey, tokens: Vec<u32>) -> NewNode {
    let (home, lead, chunk, form) = (0, 0, None, RowForm::Full);
    NewNode { parent, home, tokens, lead, chunk, form, is_public: true, group: None }
}

/// A device of which only the pages are used.
fn device() -> Box<dyn Inspect> {
    let json = r#"{"model_type": "llama", "hidden_size": 4, "num_hidden_layers": 2,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4,
        "intermediate_size": 4, "vocab_size": 8, "max_position_embeddings": 64,
        "rope_theta": 10000.0, "tie_word_embeddings": true}"#;
    let config = Config::from_json(json.as_bytes()).unwrap();
    let limits = Limits { step_tokens: 8, step_outputs: 8, positions: 64, pages: PAGES };
    reference::open(&config, &RandomWeights::new(&config, 1), limits).unwrap()
}

const ROW_BYTES: u64 = 2 * 2 * 4 * 2;

/// The naive model's record of a node: its length, its mark, its number of users, and its pages
/// while it is used.
#[derive(Debug)]
struct Known {
    len: usize,
    mark: f32,
    holds: usize,
    pages: Vec<PageId>,
}

struct World {
    cache: Cache,
    device: Box<dyn Inspect>,
    known: BTreeMap<NodeId, Known>,
    /// Pages that a lane has taken.
    taken: Vec<PageId>,
    promised: usize,
    marks: u32,
}

impl World {
    fn new(ram_rows: u64, store: Option<Store>) -> Self {
        let shape = RowShape { layers: 2, kv_width: 4, dtype: Dtype::Bf16 };
        let tiers = Tiers { ram_bytes: ram_rows * ROW_BYTES, store, ..Tiers::default() };
        let mut cache = Cache::new("model".to_owned(), shape, PAGES, tiers);
        // Nobody computes rows here.
        cache.always_fetch(true);
        Self {
            cache,
            device: device(),
            known: BTreeMap::new(),
            taken: Vec::new(),
            promised: 0,
            marks: 0,
        }
    }

    /// Marks every row of a node, or checks the marks.
    fn rows(&self, id: NodeId) -> Vec<Slot> {
        let node = self.cache.node(id);
        (0..node.len())
            .map(|row| node.pages[row / PAGE_ROWS] * 64 + (row % PAGE_ROWS) as Slot)
            .collect()
    }

    fn add(&mut self, len: usize, cost: u64) {
        if self.cache.promise(pages_for(len), &[]).is_err() {
            return;
        }
        self.marks += 1;
        let tokens = vec![self.marks; len];
        let parent = self.cache.root().key();
        let new = new_node(parent, tokens);
        let id = self.cache.insert(new, None, LaneId(0), &mut *self.device);
        self.cache.hold(id);
        let mark = self.marks as f32;
        for slot in self.rows(id) {
            (0..2).for_each(|layer| self.device.write_kv_row(layer, slot, &[mark; 4], &[-mark; 4]));
        }
        let node = self.cache.node_mut(id);
        node.filled = len;
        node.filler = None;
        node.cost = Duration::from_micros(cost);
        let pages = node.pages.clone();
        self.known.insert(id, Known { len, mark, holds: 1, pages });
    }

    fn hold(&mut self, nth: usize) {
        let Some((id, _)) = self.nth(nth) else { return };
        if !self.cache.has(id) {
            self.known.remove(&id);
            return;
        }
        let pages = match self.cache.node(id).tier() {
            Some(Tier::Device) => 0,
            _ => self.cache.node(id).n_pages(),
        };
        if self.cache.promise(pages, &[id]).is_err() {
            return;
        }
        self.cache.hold(id);
        let n_tokens = self.cache.node(id).len();
        self.cache.bring(id, n_tokens, Begin::default(), &mut *self.device);
        while self.cache.node(id).awaits().is_some() {
            self.cache.wait_for_news(Duration::from_secs(1), &mut *self.device);
        }
        let pages = self.cache.node(id).pages.clone();
        let known = self.known.get_mut(&id).unwrap();
        known.holds += 1;
        known.pages = pages;
        self.check_rows(id);
    }

    /// Starts to bring rows, and lets them go before they have come.
    fn hold_briefly(&mut self, nth: usize) {
        let Some((id, _)) = self.nth(nth).filter(|(id, _)| self.cache.has(*id)) else { return };
        let node = self.cache.node(id);
        let pages = if node.pages.is_empty() { node.n_pages() } else { 0 };
        if self.cache.promise(pages, &[id]).is_ok() {
            self.cache.hold(id);
            let n_tokens = self.cache.node(id).len();
            self.cache.bring(id, n_tokens, Begin::default(), &mut *self.device);
            self.cache.let_go(id);
        }
    }

    fn check_rows(&self, id: NodeId) {
        let known = &self.known[&id];
        let slots = self.rows(id);
        assert_eq!(slots.len(), known.len);
        for slot in slots {
            for layer in 0..2 {
                let row = self.device.kv_row(layer, slot);
                assert_eq!(row, (vec![known.mark; 4], vec![-known.mark; 4]));
            }
        }
    }

    fn let_go(&mut self, nth: usize) {
        let Some((id, holds)) = self.nth(nth) else { return };
        if holds > 0 {
            self.check_rows(id);
            assert_eq!(self.cache.node(id).pages, self.known[&id].pages, "held rows moved");
            self.cache.let_go(id);
            self.known.get_mut(&id).unwrap().holds -= 1;
        }
    }

    fn nth(&self, nth: usize) -> Option<(NodeId, usize)> {
        let (id, known) = self.known.iter().nth(nth % self.known.len().max(1))?;
        Some((*id, known.holds))
    }

    fn promise(&mut self, pages: usize) {
        if self.cache.promise(pages, &[]).is_ok() {
            self.promised += pages;
        }
    }

    fn take(&mut self) {
        if self.promised > 0 {
            self.promised -= 1;
            self.taken.extend(self.cache.take_pages(1, &mut *self.device));
        }
    }

    fn give_back(&mut self) {
        self.cache.release_promise(self.promised);
        self.promised = 0;
        self.cache.give_back_pages(self.taken.drain(..));
    }
}

#[derive(Clone, Debug)]
enum Do {
    Add { len: usize, cost: u64 },
    Hold(usize),
    HoldBriefly(usize),
    Tend,
    LetGo(usize),
    Promise(usize),
    Take,
    GiveBack,
}

fn doings() -> impl Strategy<Value = Vec<Do>> {
    let one = prop_oneof![
        4 => (1_usize..200, 0_u64..5000).prop_map(|(len, cost)| Do::Add { len, cost }),
        4 => (0_usize..30).prop_map(Do::Hold),
        1 => (0_usize..30).prop_map(Do::HoldBriefly),
        2 => Just(Do::Tend),
        6 => (0_usize..30).prop_map(Do::LetGo),
        2 => (0_usize..5).prop_map(Do::Promise),
        2 => Just(Do::Take),
        1 => Just(Do::GiveBack),
    ];
    prop::collection::vec(one, 1..80)
}

#[test]
fn random_operations_lose_no_page_and_no_row() {
    let cases = (doings(), prop::sample::select(vec![0_u64, 150, 400]), any::<bool>());
    TestRunner::new(Cases::with_cases(60))
        .run(&cases, |(doings, ram_rows, has_disk)| {
            let folder = tempfile::tempdir().unwrap();
            let store = has_disk.then(|| Store::open(folder.path(), 100_000).unwrap());
            let mut world = World::new(ram_rows, store);
            for one in doings {
                match one {
                    Do::Add { len, cost } => world.add(len, cost),
                    Do::Hold(nth) => world.hold(nth),
                    Do::HoldBriefly(nth) => world.hold_briefly(nth),
                    Do::Tend => world.cache.tend(&mut *world.device),
                    Do::LetGo(nth) => world.let_go(nth),
                    Do::Promise(pages) => world.promise(pages),
                    Do::Take => world.take(),
                    Do::GiveBack => world.give_back(),
                }
                world.cache.check(&world.taken);
                let held: usize =
                    world.known.values().filter(|k| k.holds > 0).map(|k| k.pages.len()).sum();
                let free = PAGES - held - world.taken.len();
                prop_assert_eq!(world.cache.free_or_evictable(&[]), free);
                prop_assert!(free >= world.promised);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn what_is_dear_and_what_was_used_last_stays() {
    let mut world = World::new(0, None);
    // Three nodes of four pages: expensive; cheap and used again; cheap.
    for cost in [9000, 10, 10] {
        world.add(4 * PAGE_ROWS, cost);
    }
    for nth in 0..3 {
        world.let_go(nth);
    }
    world.hold(1);
    world.let_go(1);
    let ids: Vec<NodeId> = world.known.keys().copied().collect();
    let kept = |world: &World| ids.iter().map(|id| world.cache.has(*id)).collect::<Vec<_>>();
    world.add(1, 10);
    assert_eq!(kept(&world), [true, true, false]);
    world.add(4 * PAGE_ROWS, 10);
    assert_eq!(kept(&world), [true, false, false]);
}

#[test]
fn what_is_dear_does_not_stay_for_ever() {
    let mut world = World::new(0, None);
    world.add(4 * PAGE_ROWS, 9000);
    world.let_go(0);
    let (dear, _) = world.nth(0).unwrap();
    let mut turns = 0;
    while world.cache.has(dear) {
        world.add(4 * PAGE_ROWS, 1000);
        world.let_go(world.known.len() - 1);
        turns += 1;
        assert!(turns < 100);
    }
    // Nine times as expensive, and two others fit beside it.
    assert!(turns > 9, "{turns}");
}

#[test]
fn a_match_is_whole_or_worth_a_page() {
    let mut world = World::new(0, None);
    world.add(100, 10);
    let parent = world.cache.root().key();
    let of = |n: usize, then: usize| [vec![1; n], vec![7; then]].concat();
    let longest = |tokens: &[u32]| world.cache.longest(&parent, tokens).map(|(_, n)| n);
    assert_eq!(longest(&of(100, 20)), Some(100));
    assert_eq!(longest(&of(60, 0)), Some(60), "all that is asked for");
    assert_eq!(longest(&of(3, 0)), Some(3));
    assert_eq!(longest(&of(40, 20)), Some(40));
    assert_eq!(longest(&of(31, 20)), None);
    assert_eq!(longest(&of(0, 20)), None);
    assert_eq!(world.cache.longest(&KvKey::of_rows(&parent, &[1]), &of(100, 0)), None);
    let tokens = of(50, 9);
    let new = new_node(parent, tokens);
    world.cache.promise(1, &[]).unwrap();
    let pages = world.cache.take_pages(1, &mut *world.device);
    world.cache.adopt(new, pages, Duration::ZERO);
    let longest = |tokens: &[u32]| world.cache.longest(&parent, tokens).map(|(_, n)| n);
    assert_eq!(longest(&of(70, 9)), Some(70), "the one that has most of it");
    assert_eq!(longest(&of(50, 20)), Some(59));
}

/// A world whose main memory holds one node of a page and a half, with files.
fn small_world(folder: &std::path::Path) -> World {
    let mut world = World::new(100, Some(Store::open(folder, 100_000).unwrap()));
    for _ in 0..2 {
        world.add(96, 10);
    }
    world
}

#[test]
fn what_main_memory_has_no_room_for_goes_to_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = small_world(folder.path());
    (0..2).for_each(|nth| world.let_go(nth));
    world.cache.demote(Tier::Ram, &mut *world.device);
    let tiers: Vec<_> = world.cache.nodes.values().map(Node::tier).collect();
    assert_eq!(tiers, [Some(Tier::Disk), Some(Tier::Ram)]);
    assert_eq!(world.cache.stats.dropped, 0);
    (0..2).for_each(|nth| world.hold(nth));
}

#[test]
fn a_node_may_be_dropped_while_others_are_demoted() {
    let mut world = World::new(100, None);
    (0..2).for_each(|_| world.add(96, 10));
    world.let_go(1);
    world.cache.demote(Tier::Ram, &mut *world.device);
    world.let_go(0);
    // There is room for one of them, and no disk: loading the first drops the second.
    world.cache.demote(Tier::Disk, &mut *world.device);
    let tiers: Vec<_> = world.cache.nodes.values().map(Node::tier).collect();
    assert_eq!((tiers.as_slice(), world.cache.stats.dropped), (&[Some(Tier::Ram)][..], 1));
}

#[test]
fn pinned_rows_stay_in_main_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = small_world(folder.path());
    world.let_go(0);
    world.cache.demote(Tier::Ram, &mut *world.device);
    let (first, _) = world.nth(0).unwrap();
    world.cache.node_mut(first).pinned = true;
    world.let_go(1);
    world.cache.demote(Tier::Ram, &mut *world.device);
    let tiers: Vec<_> = world.cache.nodes.values().map(Node::tier).collect();
    assert_eq!(tiers, [Some(Tier::Ram), Some(Tier::Disk)]);
}

#[test]
fn only_files_of_this_model_that_hold_what_they_are_named_for_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = small_world(folder.path());
    assert_eq!(world.cache.save(&mut *world.device, |_| true), 2);
    let found = |fingerprint: &str| {
        let tiers = Tiers {
            ram_bytes: 0,
            store: Some(Store::open(folder.path(), 100_000).unwrap()),
            ..Tiers::default()
        };
        Cache::new(fingerprint.to_owned(), world.cache.shape, PAGES, tiers).stats().disk.nodes
    };
    assert_eq!((found("model"), found("another")), (2, 0));
    // An intact file under the key of other rows.
    let mut store = Store::open(folder.path(), 100_000).unwrap();
    let (key, entry) = store.entries().map(|(key, entry)| (*key, entry.clone())).next().unwrap();
    let rows = store.get(&key, &entry.header).unwrap();
    store.put(&KvKey::of_rows(&key, &[1]), &entry.header, &rows);
    assert_eq!(store.entries().count(), 3);
    assert_eq!(found("model"), 2);
}

#[test]
fn a_pin_goes_with_the_rows_to_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = small_world(folder.path());
    let (pinned, _) = world.nth(1).unwrap();
    world.cache.node_mut(pinned).pinned = true;
    assert_eq!(world.cache.save(&mut *world.device, |_| true), 2);
    let key = Cache::key_of(world.cache.node(pinned));
    let left = world.cache.files.as_ref().unwrap().with_store(|store| {
        assert_eq!(store.entries().count(), 2);
        store.set_budget(1);
        store.entries().map(|(key, _)| *key).collect::<Vec<_>>()
    });
    assert_eq!(left, [key]);
}

#[test]
fn the_disk_s_bytes_are_those_of_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = small_world(folder.path());
    assert_eq!(world.cache.stats().disk.used_bytes, 0);
    world.cache.save(&mut *world.device, |_| true);
    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap());
    let lengths = files.filter(|file| file.file_name().to_string_lossy().ends_with(".safetensors"));
    let bytes: u64 = lengths.map(|file| file.metadata().unwrap().len()).sum();
    let disk = world.cache.stats().disk;
    assert_eq!((disk.nodes, disk.tokens, disk.used_bytes), (2, 192, bytes));
    assert!(bytes > 192 * ROW_BYTES, "a file has a header too");
}

#[test]
fn of_equal_matches_the_nearest_is_taken() {
    let mut world = World::new(1000, None);
    world.add(100, 10);
    world.let_go(0);
    world.cache.demote(Tier::Ram, &mut *world.device);
    let parent = world.cache.root().key();
    let tokens = [vec![1; 50], vec![7; 9]].concat();
    let new = new_node(parent, tokens);
    world.cache.promise(1, &[]).unwrap();
    let pages = world.cache.take_pages(1, &mut *world.device);
    world.cache.adopt(new, pages, Duration::ZERO);
    let (found, n) = world.cache.longest(&parent, &[1; 50]).unwrap();
    assert_eq!((n, world.cache.node(found).tier()), (50, Some(Tier::Device)));
    assert_eq!(world.cache.longest(&parent, &[1; 51]).map(|(_, n)| n), Some(51), "the longer one");
}

/// A registered document with these tokens.
fn chunk(tokens: Vec<u32>) -> Chunk {
    Chunk::of_tokens(Kind::Context, "", tokens)
}

#[test]
fn files_of_a_chunk_are_pinned_and_unpinned() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = small_world(folder.path());
    world.cache.save(&mut *world.device, |_| true);
    let (first, _) = world.nth(0).unwrap();
    let (key, chunk) =
        (Cache::key_of(world.cache.node(first)), chunk(world.cache.node(first).tokens.clone()));
    for pinned in [true, false] {
        world.cache.pin_files(&chunk, pinned);
        let seen = world.cache.files.as_ref().unwrap().with_store(move |store| {
            let n_pinned = store.entries().filter(|(key, _)| store.is_pinned(key)).count();
            (store.is_pinned(&key), n_pinned)
        });
        assert_eq!(seen, (pinned, usize::from(pinned)));
    }
}

#[test]
fn a_chunk_lies_nowhere_until_all_its_rows_are_computed() {
    let mut world = World::new(0, None);
    let chunk = chunk(vec![3; 10]);
    let (parent, tokens) = (world.cache.root().key(), chunk.tokens.clone());
    let new = NewNode { chunk: Some(chunk.id), ..new_node(parent, tokens) };
    world.cache.promise(1, &[]).unwrap();
    let id = world.cache.insert(new, None, LaneId(0), &mut *world.device);
    world.cache.node_mut(id).filled = 9;
    assert_eq!(world.cache.tier_of(&chunk), None);
    world.cache.node_mut(id).filled = 10;
    assert_eq!(world.cache.tier_of(&chunk), Some(Tier::Device));
    assert_eq!(world.cache.chunk_tiers().of(&[&chunk]).get(&chunk.id), Some(&Tier::Device));
}

#[test]
fn the_mean_cost_is_that_of_a_computed_token() {
    let mut world = World::new(0, None);
    assert_eq!(world.cache.mean_cost(), Duration::ZERO);
    world.add(96, 960);
    world.add(32, 2240);
    assert_eq!(world.cache.mean_cost(), Duration::from_micros(25));
    // Rows that are not computed yet have cost nothing so far.
    let (second, _) = world.nth(1).unwrap();
    world.cache.node_mut(second).filled = 31;
    assert_eq!(world.cache.mean_cost(), Duration::from_micros(10));
}
