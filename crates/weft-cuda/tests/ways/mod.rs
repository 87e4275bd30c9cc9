//! What tests of forms and of experts share: jobs on several threads, and lanes that are launched in
//! every way.

use std::slice::from_ref;
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_core::config::Config;
use weft_core::plan::plan;
use weft_cuda::{CudaDevice, Launches};
use weft_testing::{Work, run, run_in_blocks, span, tokens};

/// Runs jobs on several threads: most of the time kernels are compiled.
pub fn for_each<T: Sync>(all: &[T], job: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    job(one);
                }
            });
        }
    });
}

/// Lanes have the same bits alone and together, in all of these ways and rounds.
pub fn do_not_show(
    name: &str,
    config: &Config,
    device: &mut CudaDevice,
    ways: &[Launches],
    n_rounds: usize,
) {
    let ops = plan(config);
    let mut works = Vec::new();
    for lane in 0..8 {
        let own = span(lane * 2, 65, 0);
        let prompt = tokens(65, 40 + lane, config.vocab);
        device.use_launches(Launches::Ops).unwrap();
        run_in_blocks(device, config, &prompt[..64], &[64], &own);
        works.push(Work::new(&prompt[64..], 64, Vec::new(), own));
    }
    let alone: Vec<_> = works.iter().flat_map(|work| run(device, &ops, from_ref(work))).collect();
    assert!(alone.iter().flatten().all(|logit| logit.is_finite()), "{name}");
    for launches in ways {
        device.use_launches(*launches).unwrap();
        for round in 0..n_rounds {
            for n in [1, 2, 3, 4, 5, 8] {
                let together = run(device, &ops, &works[..n]);
                assert!(together == alone[..n], "{name}: {n} lanes, {launches:?}, round {round}");
            }
        }
    }
}
