//! Compares the store with a list of keys in order of use, under random operations. A second store
//! in the same folder represents another process.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;
use weft_core::store::{Put, Store};

use crate::samples::{Sample, key, names, new_folder, open, sample};

const N_KEYS: u64 = 8;
const N_TOKENS: usize = 3;

#[derive(Clone, Debug)]
enum Operation {
    Put(u64),
    Get(u64),
    Remove(u64),
    Pin(u64),
    Unpin(u64),
    SetBudget(usize),
    Reopen,
    Damage(u64),
    OtherPuts(u64),
    OtherGets(u64),
    OtherRemoves(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let n = || 0..N_KEYS;
    prop_oneof![
        6 => n().prop_map(Put),
        6 => n().prop_map(Get),
        1 => n().prop_map(Remove),
        2 => n().prop_map(Pin),
        1 => n().prop_map(Unpin),
        1 => (0..6usize).prop_map(SetBudget),
        1 => Just(Reopen),
        1 => n().prop_map(Damage),
        2 => n().prop_map(OtherPuts),
        1 => n().prop_map(OtherGets),
        1 => n().prop_map(OtherRemoves),
    ]
}

/// The expected contents of a store. All entries have one size and one cost, so the oldest is
/// evicted first.
struct Model {
    /// Keys by last use, the oldest first.
    order: Vec<u64>,
    damaged: HashSet<u64>,
    pinned: HashSet<u64>,
    /// Number of entries.
    budget: usize,
}

impl Model {
    fn remove(&mut self, n: u64) -> bool {
        self.damaged.remove(&n);
        let before = self.order.len();
        self.order.retain(|other| *other != n);
        self.order.len() < before
    }

    fn touch(&mut self, n: u64) {
        self.order.retain(|other| *other != n);
        self.order.push(n);
    }

    fn get(&mut self, n: u64) -> bool {
        let is_sound = self.order.contains(&n) && !self.damaged.contains(&n);
        if is_sound {
            self.touch(n);
        } else {
            self.remove(n);
        }
        is_sound
    }

    fn evict_to(&mut self, room: usize) {
        while self.order.len() > room
            && let Some(oldest) = self.order.iter().copied().find(|n| !self.pinned.contains(n))
        {
            self.remove(oldest);
        }
    }

    fn put(&mut self, n: u64, entry_bytes: u64) -> Put {
        let pinned = self.order.iter().filter(|n| self.pinned.contains(n)).count();
        if self.order.contains(&n) {
            self.touch(n);
            return Put::Present;
        }
        if self.budget == 0 {
            return Put::TooLarge { bytes: entry_bytes, budget_bytes: 0 };
        }
        if pinned + 1 > self.budget {
            return Put::NoRoom { bytes: entry_bytes, pinned_bytes: pinned as u64 * entry_bytes };
        }
        self.evict_to(self.budget - 1);
        self.touch(n);
        Put::Stored
    }
}

/// The store, another process's view of the same folder, and the expected contents of both.
struct Pair {
    _outer: TempDir,
    folder: PathBuf,
    store: Store,
    other: Store,
    model: Model,
    entries: Vec<Sample>,
    entry_bytes: u64,
}

impl Pair {
    fn new() -> Self {
        let (outer, folder) = new_folder();
        let entries: Vec<_> = (0..N_KEYS).map(|n| sample(n, N_TOKENS)).collect();
        let mut other = open(&folder);
        entries[0].put(&mut other);
        let entry_bytes = other.used_bytes();
        other.remove(&key(0));
        let budget = 4;
        let store = Store::open(&folder, budget as u64 * entry_bytes).unwrap();
        let (damaged, pinned) = (HashSet::new(), HashSet::new());
        let model = Model { order: Vec::new(), damaged, pinned, budget };
        Self { _outer: outer, folder, store, other, model, entries, entry_bytes }
    }

    fn run(&mut self, operation: &Operation) {
        let entry = |n: u64| &self.entries[n as usize];
        let (store, other, model) = (&mut self.store, &mut self.other, &mut self.model);
        match *operation {
            Operation::Put(n) => {
                assert_eq!(entry(n).put(store), model.put(n, self.entry_bytes));
            }
            Operation::Get(n) => assert_eq!(entry(n).is_served(store), model.get(n)),
            Operation::Remove(n) => assert_eq!(store.remove(&key(n)), model.remove(n)),
            Operation::Pin(n) => {
                store.pin(&key(n));
                model.pinned.insert(n);
            }
            Operation::Unpin(n) => {
                store.unpin(&key(n));
                model.pinned.remove(&n);
            }
            Operation::SetBudget(budget) => {
                store.set_budget(budget as u64 * self.entry_bytes);
                model.budget = budget;
                model.evict_to(budget);
            }
            Operation::Reopen => {
                let budget_bytes = store.budget_bytes();
                *store = Store::open(&self.folder, budget_bytes).unwrap();
                model.pinned.clear();
            }
            Operation::Damage(n) => {
                if model.order.contains(&n) && model.damaged.insert(n) {
                    damage(entry(n), &self.folder);
                }
            }
            Operation::OtherPuts(n) => {
                // Its budget is ample, so it evicts nothing.
                entry(n).put(other);
                model.touch(n);
            }
            Operation::OtherGets(n) => assert_eq!(entry(n).is_served(other), model.get(n)),
            Operation::OtherRemoves(n) => assert_eq!(other.remove(&key(n)), model.remove(n)),
        }
    }

    fn check(&mut self) {
        let mut expected: Vec<_> = self.model.order.iter().map(|n| key(*n)).collect();
        expected.sort();
        let files: Vec<_> = expected.iter().map(|key| format!("{key}.safetensors")).collect();
        assert_eq!(names(&self.folder, ".safetensors"), files);
        assert_eq!(names(&self.folder, ".tmp"), [""; 0]);
        self.store.refresh();
        let keys: Vec<_> = self.store.entries().map(|(key, _)| *key).collect();
        assert_eq!(keys, expected);
        assert_eq!(self.store.used_bytes(), expected.len() as u64 * self.entry_bytes);
    }
}

/// Changes one bit of the rows, but not the time of last use.
fn damage(entry: &Sample, folder: &std::path::Path) {
    let path = entry.file(folder);
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    fs::File::open(&path).unwrap().set_modified(modified).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    #[test]
    fn it_holds_what_a_plain_list_would(
        operations in prop::collection::vec(operation(), 1..60),
    ) {
        let mut pair = Pair::new();
        for operation in &operations {
            pair.run(operation);
            pair.check();
        }
    }
}
