//! Rows stored in 8 bits: approximate prompts find them again, and exact prompts never do, nor
//! anything that was computed from them.

use super::remote::{Shelf, of_chunks};
use super::wrapped::{wrapped, wrapped_results};
use super::*;
use crate::store::RowForm;

const INT8: RowForm = RowForm::Int8 { group: 8 };
const DISK: Option<Tier> = Some(Tier::Disk);

fn open(folder: &Path, stored_rows: RowForm) -> Engine {
    let store = Store::open(folder, 10_000_000).unwrap();
    engine_with(80, Tiers { store: Some(store), stored_rows, ..Tiers::default() })
}

/// A device that hands rows out in 8 bits and takes them so.
struct Packs {
    device: Box<dyn Device>,
}

impl Device for Packs {
    wrapped!();
    wrapped_results!();

    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        self.device.run(ops, step)
    }

    fn packs_rows(&self) -> bool {
        true
    }
}

/// An engine with room in memory and on disk, whose device packs rows, or does not.
fn open_in_memory(folder: &Path, packs: bool) -> Engine {
    let store = Store::open(folder, 10_000_000).unwrap();
    let tiers = Tiers { ram_bytes: 10_000_000, store: Some(store), ..Tiers::default() };
    let tiers = Tiers { stored_rows: INT8, ..tiers };
    let mut engine = engine_with(80, tiers);
    if packs {
        let none = engine_with(2, Tiers::default()).device;
        let device = std::mem::replace(&mut engine.device, none);
        engine.device = Box::new(Packs { device });
        engine.cache.packs(true);
    }
    engine
}

/// The rows of coarse files, without headers, which have times.
fn coarse_files(folder: &Path) -> Vec<Vec<u8>> {
    let store = Store::open(folder, 10_000_000).unwrap();
    let coarse = store.entries().filter(|(_, entry)| entry.header.form == INT8);
    let rows = |(key, _)| {
        let file = std::fs::read(folder.join(format!("{key}.safetensors"))).unwrap();
        let head = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        file[head..].to_vec()
    };
    let mut rows: Vec<Vec<u8>> = coarse.map(rows).collect();
    rows.sort();
    rows
}

#[test]
fn a_device_that_packs_rows_has_them_in_8_bits_in_memory_too() {
    for reuse in [Reuse::Anchored, Reuse::Isolated] {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut packing = open_in_memory(folder.path(), true);
        let mut plain = open_in_memory(other.path(), false);
        let prompt = composition(&[1, 2], 1, reuse, Repair::None);
        let (said, finished) = ask(&mut packing, &prompt);
        assert_eq!((&said, finished.report.coarse_tokens()), (&ask(&mut plain, &prompt).0, 0));
        for engine in [&mut packing, &mut plain] {
            engine.demote(Tier::Ram);
        }
        let used = |engine: &Engine| engine.cache_stats().ram.used_bytes;
        assert!(used(&packing) < used(&plain), "{} of {}", used(&packing), used(&plain));
        // From memory they are those of 8 bits, and the report says so.
        let (from_memory, finished) = ask(&mut packing, &prompt);
        assert_eq!(sources(&finished)[..3], [Some(Tier::Ram); 3], "{reuse}");
        assert_eq!(finished.report.coarse_tokens(), documents(&prompt), "{reuse}");
        assert_ne!(from_memory, said, "{reuse}");
        let (in_full, finished) = ask(&mut plain, &prompt);
        assert_eq!((in_full, finished.report.coarse_tokens()), (said, 0), "{reuse}");
        // The files are the same, and so is what is read from them.
        for engine in [&mut packing, &mut plain] {
            engine.demote(Tier::Disk);
        }
        assert_eq!(coarse_files(folder.path()).len(), 2, "{reuse}");
        assert!(coarse_files(folder.path()) == coarse_files(other.path()), "{reuse}");
        for engine in [&mut packing, &mut plain] {
            let (from_disk, finished) = ask(engine, &prompt);
            assert_eq!(sources(&finished)[..3], [DISK; 3], "{reuse}");
            assert_eq!(finished.report.coarse_tokens(), documents(&prompt), "{reuse}");
            assert_eq!(from_disk, from_memory, "{reuse}");
        }
    }
}

/// A process after which the rows of a prompt are in files.
fn file(folder: &Path, stored_rows: RowForm, prompt: &Composition) -> Vec<Token> {
    let mut engine = open(folder, stored_rows);
    let (said, finished) = ask(&mut engine, prompt);
    assert_eq!(finished.report.coarse_tokens(), 0, "they were computed here");
    engine.save(true);
    said
}

fn documents(prompt: &Composition) -> usize {
    let documents = prompt.pieces.iter().filter(|piece| piece.kind == Kind::Context);
    documents.map(|piece| piece.tokens.len()).sum()
}

fn log_probabilities(tokens: &[Token]) -> Vec<f32> {
    tokens.iter().filter_map(|token| token.logprobs.as_ref()).map(|top| top.chosen).collect()
}

#[test]
fn approximate_prompts_find_coarse_rows_and_say_so() {
    for reuse in [Reuse::Anchored, Reuse::Isolated] {
        let (folder, full) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let prompt = composition(&[1, 2], 1, reuse, Repair::None);
        let said = file(folder.path(), INT8, &prompt);
        assert_eq!(said, file(full.path(), RowForm::Full, &prompt), "they are computed in full");
        let bytes = |folder: &Path| Store::open(folder, 10_000_000).unwrap().used_bytes();
        assert!(bytes(folder.path()) < bytes(full.path()));
        let mut engine = open(folder.path(), INT8);
        let (again, finished) = ask(&mut engine, &prompt);
        assert_eq!(sources(&finished)[..3], [DISK; 3], "{reuse}");
        let coarse = documents(&prompt);
        assert_eq!(finished.report.coarse_tokens(), coarse, "{reuse}");
        assert!(finished.report.approximate_tokens() >= coarse, "{reuse}");
        let json = finished.report.json();
        assert_eq!(json["chunks"][1]["coarse_tokens"], prompt.pieces[1].tokens.len(), "{reuse}");
        assert!(json["chunks"][0].get("coarse_tokens").is_none(), "the system prompt is in full");
        let stats = engine.cache_stats();
        assert_eq!((stats.brought_coarse, stats.coarse.nodes), (2, 2), "{reuse}");
        // Nearly the same.
        let pairs = log_probabilities(&said).into_iter().zip(log_probabilities(&again));
        let furthest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest > 0.0 && furthest < 0.05, "{reuse}: {furthest}");
        // Rows that are on the device now are still those of 8 bits.
        let (_, finished) = ask(&mut engine, &prompt);
        assert_eq!(finished.report.coarse_tokens(), coarse, "{reuse}");
    }
}

#[test]
fn exact_prompts_never_find_coarse_rows_nor_what_was_computed_from_them() {
    for reuse in [Reuse::Anchored, Reuse::Isolated] {
        let folder = tempfile::tempdir().unwrap();
        let prompt = composition(&[1, 2], 1, reuse, Repair::None);
        file(folder.path(), INT8, &prompt);
        let mut engine = open(folder.path(), INT8);
        // The question and the answer attend to coarse rows now.
        ask(&mut engine, &prompt);
        for plain in [exact(&[1], 1), exact(&[1, 2], 1)] {
            let (said, finished) = ask(&mut engine, &plain);
            assert_eq!(said, cold(&plain), "{reuse}");
            assert_eq!(finished.report.coarse_tokens(), 0, "{reuse}");
        }
        engine.save(true);
        drop(engine);
        let mut engine = open(folder.path(), INT8);
        let (said, finished) = ask(&mut engine, &exact(&[1, 2], 1));
        assert_eq!(said, cold(&exact(&[1, 2], 1)), "{reuse}");
        assert_eq!(sources(&finished)[..3], [DISK; 3], "its own rows are stored in full");
    }
}

/// A prompt with an approximate document at its home, and an exact one after it.
#[test]
fn exact_pieces_after_coarse_rows_are_found_only_after_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut prompt = exact(&[1, 2, 3], 1);
    prompt.pieces[1].reuse = Reuse::Anchored;
    file(folder.path(), INT8, &prompt);
    let mut engine = open(folder.path(), INT8);
    let (_, finished) = ask(&mut engine, &prompt);
    assert_eq!(sources(&finished)[..4], [DISK; 4]);
    assert_eq!(finished.report.coarse_tokens(), prompt.pieces[1].tokens.len());
    let plain = exact(&[1, 2, 3], 1);
    let (said, finished) = ask(&mut engine, &plain);
    assert_eq!(said, cold(&plain));
    assert_eq!(finished.stats.cached_tokens, system().tokens.len());
}

#[test]
fn full_rows_serve_approximate_prompts_and_are_preferred() {
    let folder = tempfile::tempdir().unwrap();
    file(folder.path(), INT8, &exact(&[1], 1));
    let anchored = composition(&[2, 1], 1, Reuse::Anchored, Repair::None);
    let (said, finished) = ask(&mut open(folder.path(), INT8), &anchored);
    assert_eq!(sources(&finished)[..3], [DISK, None, DISK]);
    assert_eq!((said, finished.report.coarse_tokens()), (cold(&anchored), 0));
}

#[test]
fn a_process_that_stores_full_rows_reads_no_coarse_ones() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = composition(&[1, 2], 1, Reuse::Anchored, Repair::None);
    file(folder.path(), INT8, &prompt);
    let (said, finished) = ask(&mut open(folder.path(), RowForm::Full), &prompt);
    assert_eq!(said, cold(&prompt));
    assert_eq!(sources(&finished)[..3], [DISK, None, None]);
}

#[test]
fn an_anchor_is_stored_in_full() {
    let folder = tempfile::tempdir().unwrap();
    let mut prompt = composition(&[1, 2], 1, Reuse::Anchored, Repair::None);
    prompt.pieces[1].is_anchor = true;
    file(folder.path(), INT8, &prompt);
    let (_, finished) = ask(&mut open(folder.path(), INT8), &prompt);
    let coarse: Vec<usize> = finished.report.pieces.iter().map(|p| p.coarse_tokens).collect();
    assert_eq!(coarse, [0, 0, prompt.pieces[2].tokens.len(), 0]);
}

#[test]
fn another_machine_finds_coarse_rows_and_files_the_same_bytes() {
    let prompt = of_chunks(&[1, 2], 1, Reuse::Anchored);
    let shelf = Arc::new(Shelf::default());
    let machine = |folder: &Path| {
        let (store, remote) = (Store::open(folder, 10_000_000).unwrap(), Arc::clone(&shelf));
        let tiers = Tiers { store: Some(store), remote: Some(remote), ..Tiers::default() };
        engine_with(80, Tiers { stored_rows: INT8, ..tiers })
    };
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut first = machine(here.path());
    ask(&mut first, &prompt);
    first.save(false);
    assert_eq!(shelf.n_entries(), 3);
    let mut second = machine(there.path());
    let (_, finished) = ask(&mut second, &prompt);
    assert_eq!(finished.report.coarse_tokens(), documents(&prompt));
    second.save(false);
    assert_eq!(coarse_files(here.path()).len(), 2);
    assert!(coarse_files(here.path()) == coarse_files(there.path()));
}

#[test]
fn whatever_was_stored_coarsely_does_not_show_in_exact_answers() {
    let asked = (prop::collection::vec(1_u32..5, 1..4), 0_usize..3, 0_u8..5);
    TestRunner::new(Cases::with_cases(12))
        .run(&(prop::collection::vec(asked, 1..7), any::<bool>()), |(history, packs)| {
            let folder = tempfile::tempdir().unwrap();
            let mut engine = open_in_memory(folder.path(), packs);
            for (documents, reuse, then) in history {
                let prompt = composition(&documents, 1, Reuse::ALL[reuse], Repair::None);
                ask(&mut engine, &prompt);
                match then {
                    0 => engine.demote(Tier::Disk),
                    1 => {
                        engine.save(true);
                        engine = open_in_memory(folder.path(), packs);
                    }
                    2 => engine.demote(Tier::Ram),
                    _ => {}
                }
                let plain = exact(&documents, 1);
                prop_assert_eq!(ask(&mut engine, &plain).0, cold(&plain));
            }
            Ok(())
        })
        .unwrap();
}
