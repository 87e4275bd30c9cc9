//! A device that computes nothing: it generates one token forever, at a given pace, and fails on
//! demand. Tests and benches of the server use it if they do not need a model.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_core::device::{Device, DeviceError, Lane, Limits, PageRows, Step};
use weft_core::dtype::Dtype;
use weft_core::engine::{Engine, Tiers};
use weft_core::kv::PageId;
use weft_core::model::Model;
use weft_core::plan::Op;

/// The bundled model: its tokenizer is real, its weights are never read.
pub fn model() -> Model {
    let folder = crate::in_tree("assets/weft-tiny");
    Model::open(&folder).expect("the bundled model")
}

/// The behaviour of a stub; it can be changed while the stub runs.
#[derive(Debug, Default)]
pub struct Control {
    /// Microseconds per step.
    pub step_us: AtomicU64,
    /// Number of steps run.
    pub steps: AtomicU64,
    /// Whether the next step panics, and whether it fails.
    pub panics: AtomicBool,
    pub fails: AtomicBool,
    /// Whether the logits are NaN.
    pub says_nan: AtomicBool,
}

/// The device.
pub struct Stub {
    control: Arc<Control>,
    logits: Vec<f32>,
    nan: Vec<f32>,
    hidden: usize,
    /// Stretches of each lane of the last step.
    stretches: Vec<usize>,
    next: Instant,
}

/// An engine on a stub whose answers repeat the token `says`.
pub fn engine(model: &Model, says: &str, control: &Arc<Control>) -> Engine {
    engine_with(model, says, control, Tiers::default())
}

/// The same, with tiers.
pub fn engine_with(model: &Model, says: &str, control: &Arc<Control>, tiers: Tiers) -> Engine {
    let mut logits = vec![0.0; model.config.vocab];
    logits[model.tokenizer.id_of(says).expect("a token") as usize] = 20.0;
    let nan = vec![f32::NAN; model.config.vocab];
    let (control, hidden) = (Arc::clone(control), model.config.hidden);
    let stub = Stub { control, logits, nan, hidden, stretches: Vec::new(), next: Instant::now() };
    Engine::with_tiers(model, Box::new(stub), tiers)
}

impl Device for Stub {
    fn describe(&self) -> String {
        "stub".to_owned()
    }

    fn dtype(&self) -> Dtype {
        Dtype::Bf16
    }

    fn limits(&self) -> Limits {
        Limits { step_tokens: 256, step_outputs: 16, positions: 4096, pages: 1024 }
    }

    fn run(&mut self, _: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        self.control.steps.fetch_add(1, Ordering::Relaxed);
        assert!(!self.control.panics.swap(false, Ordering::Relaxed), "the test asks for a panic");
        if self.control.fails.swap(false, Ordering::Relaxed) {
            let (device, op) = (self.describe(), "attend".to_owned());
            return Err(DeviceError {
                device,
                op,
                reason: "the test asks for a failure".to_owned(),
            });
        }
        self.stretches = step.lanes.iter().map(|lane| lane.marks.len() + 1).collect();
        let time = Duration::from_micros(self.control.step_us.load(Ordering::Relaxed));
        // A steady pace: the next steps make up for a sleep that was too long, not for idle time.
        let late = time.min(Duration::from_millis(20));
        self.next = self.next.max(Instant::now().checked_sub(late).expect("late enough")) + time;
        std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
        Ok(())
    }

    /// The last token, then ones: enough to see which text a state belongs to.
    fn states(&mut self, ops: &[Op], step: &Step<'_>) -> Result<Vec<Vec<f32>>, DeviceError> {
        self.run(ops, step)?;
        let says_nan = self.control.says_nan.load(Ordering::Relaxed);
        let state = |lane: &Lane<'_>| {
            let last = lane.tokens.last().map_or(0.0, |token| *token as f32);
            let mut state = vec![if says_nan { f32::NAN } else { 1.0 }; self.hidden];
            state[0] = last;
            state
        };
        Ok(step.lanes.iter().map(state).collect())
    }

    fn logits(&self, _: usize) -> &[f32] {
        if self.control.says_nan.load(Ordering::Relaxed) { &self.nan } else { &self.logits }
    }

    fn attention(&self, lane: usize, _: usize) -> Vec<f32> {
        vec![1.0 / self.stretches[lane] as f32; self.stretches[lane]]
    }

    fn kv_family(&self) -> String {
        "stub".to_owned()
    }

    fn read_kv(&self, _: Range<u16>, _: &PageRows<'_>, _: &mut [u8], _: &mut [u8]) {}

    fn write_kv(&mut self, _: &PageRows<'_>, _: &[u8], _: &[u8]) {}

    fn copy_rows(&mut self, _: PageId, _: PageId, _: usize) {}
}
