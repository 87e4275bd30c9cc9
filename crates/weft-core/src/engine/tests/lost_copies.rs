//! A device whose copies to main memory fail: the rows are computed again, and nobody waits for
//! them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::wrapped::{wrapped, wrapped_results};
use super::*;
use crate::device::PageRows;
use crate::store::HostRows;

/// A device that fails to copy rows to main memory while `loses` is set: it drops the sender.
struct Losing {
    device: Box<dyn Device>,
    loses: Arc<AtomicBool>,
}

impl Device for Losing {
    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        self.device.run(ops, step)
    }

    fn send_kv(
        &mut self,
        layers: std::ops::Range<u16>,
        rows: &PageRows<'_>,
        bytes: usize,
    ) -> Receiver<HostRows> {
        match self.loses.load(Ordering::Relaxed) {
            true => channel().1,
            false => self.device.send_kv(layers, rows, bytes),
        }
    }

    wrapped_results!();
    wrapped!();
}

/// An engine with room for one prompt, whose copies fail.
fn losing(ram_bytes: u64, folder: Option<&Path>) -> (Engine, Arc<AtomicBool>) {
    let model = model();
    let limits = Limits { step_tokens: 64, step_outputs: 16, positions: CONTEXT, pages: 8 };
    let device = reference::open(&model.config, &*model.weights, limits).unwrap();
    let loses = Arc::new(AtomicBool::new(true));
    let device = Box::new(Losing { device, loses: Arc::clone(&loses) });
    let store = folder.map(|folder| Store::open(folder, 10_000_000).unwrap());
    let mut engine =
        Engine::with_tiers(&model, device, Tiers { ram_bytes, store, ..Tiers::default() });
    engine.always_fetch(true);
    (engine, loses)
}

/// Asks prompts that need each other's pages.
fn ask_all(engine: &mut Engine) {
    for documents in [[1, 2], [4, 3], [5, 2], [1, 2], [4, 3]] {
        let prompt = exact(&documents, 1);
        assert_eq!(ask(engine, &prompt).0, cold(&prompt));
    }
    assert!(engine.cache_stats().evicted_from_device > 0);
}

/// Tends files until none are on their way.
fn tend(engine: &mut Engine) {
    let mut n = 0;
    while engine.is_filing() {
        assert!(n < 1000, "rows are on their way for ever");
        n += 1;
        std::thread::sleep(Duration::from_millis(1));
        engine.tend_files();
    }
    engine.cache.check(&[]);
}

#[test]
fn lost_rows_are_computed_again() {
    let (mut engine, loses) = losing(10_000_000, None);
    ask_all(&mut engine);
    engine.demote(Tier::Ram);
    engine.cache.check(&[]);
    assert_eq!(engine.cache_stats().ram.used_bytes, 0);
    assert_eq!(engine.cache_stats().brought_from_ram, 0);
    loses.store(false, Ordering::Relaxed);
    ask_all(&mut engine);
    assert!(engine.cache_stats().brought_from_ram > 0);
}

#[test]
fn nobody_waits_for_lost_rows_on_their_way_to_files() {
    // With and without main memory between.
    for ram_bytes in [10_000_000, 0] {
        let folder = tempfile::tempdir().unwrap();
        let (mut engine, loses) = losing(ram_bytes, Some(folder.path()));
        for documents in [[1, 2], [4, 3], [5, 2]] {
            ask(&mut engine, &exact(&documents, 1));
        }
        assert!(engine.cache_stats().evicted_from_device > 0);
        let saving = engine.begin_save(true);
        tend(&mut engine);
        assert!(!engine.is_saving(&saving));
        assert_eq!(engine.n_saved(true), 0);
        ask_all(&mut engine);
        assert_eq!(engine.save(true), 0);
        loses.store(false, Ordering::Relaxed);
        ask_all(&mut engine);
        assert!(engine.save(true) > 0);
        drop(engine);
        // The files hold the right rows.
        let (mut engine, _) = losing(0, Some(folder.path()));
        ask_all(&mut engine);
        assert!(engine.cache_stats().brought_from_disk > 0);
    }
}
