//! A device that fails: lanes end, no partial rows are used, and no memory is lost.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::wrapped::{wrapped, wrapped_results};
use super::*;

/// Runs a given number of times, then fails.
struct Failing {
    device: Box<dyn Device>,
    runs: Arc<AtomicUsize>,
}

impl Device for Failing {
    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        if self.runs.load(Ordering::Relaxed) == 0 {
            // Half of the work is done, as after a real fault.
            self.device.run(&ops[..ops.len() / 2], step)?;
            let [device, op, reason] = ["a device", "an op", "a fault"].map(str::to_owned);
            return Err(DeviceError { device, op, reason });
        }
        self.runs.fetch_sub(1, Ordering::Relaxed);
        self.device.run(ops, step)
    }

    wrapped_results!();
    wrapped!();
}

#[test]
fn a_fault_at_any_step_ends_all_lanes_and_nothing_wrong_is_kept() {
    let model = model();
    let prompts = [
        exact(&[1, 2], 0),
        composition(&[2, 1], 0, Reuse::Anchored, Repair::Blend(0.3, 1)),
        composition(&[3, 1], 0, Reuse::Isolated, Repair::Link(16)),
    ];
    let truths = prompts.each_ref().map(cold);
    for n in 0.. {
        let limits = Limits { step_tokens: 64, step_outputs: 16, positions: CONTEXT, pages: 80 };
        let device = reference::open(&model.config, &*model.weights, limits).unwrap();
        let runs = Arc::new(AtomicUsize::new(n));
        let device = Box::new(Failing { device, runs: Arc::clone(&runs) });
        let mut engine = Engine::new(&model, device);
        for prompt in &prompts {
            engine.add(Request::new(prompt.clone(), sampling())).unwrap();
        }
        let failed = (0..100).any(|_| engine.step().is_err());
        assert_eq!(engine.running(), 0);
        engine.cache.check(&[]);
        assert_eq!(engine.cache.n_promised(), 0);
        runs.store(1000, Ordering::Relaxed);
        for (prompt, truth) in prompts.iter().zip(&truths) {
            assert_eq!(&ask(&mut engine, prompt).0, truth, "after {n} steps");
        }
        if !failed {
            assert!(n > 10, "all was done after {n} steps");
            break;
        }
    }
}
