//! The self-test: does a device compute, on this machine, what the reference device defines?

use std::fmt;
use std::time::{Duration, Instant};

use weft::config::Config;
use weft::device::{Device, Lane, Limits, MAX_LANES, Outputs, Span, Step};
use weft::plan::plan;
use weft::reference;
use weft::weights::RandomWeights;
use weft_cpu::{CpuDevice, Options};
use weft_cuda::CudaDevice;

/// A self-test that was passed.
pub(crate) struct Passed {
    device: String,
    time: Duration,
}

impl Passed {
    /// How long it took.
    pub(crate) fn time_ms(&self) -> f64 {
        self.time.as_secs_f64() * 1e3
    }
}

impl fmt::Display for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} against reference, {:.0} ms", self.device, self.time_ms())
    }
}

/// Tests the CPU device.
pub(crate) fn run() -> Result<Passed, String> {
    run_on(|config, weights, limits| {
        let device = CpuDevice::new(config, weights, Options::new(limits));
        Ok(Box::new(device.map_err(|error| error.to_string())?))
    })
}

/// Tests the CUDA device.
pub(crate) fn run_cuda() -> Result<Passed, String> {
    run_on(|config, weights, limits| {
        let device = CudaDevice::new(config, weights, weft_cuda::Options::new(limits));
        Ok(Box::new(device.map_err(|error| error.to_string())?))
    })
}

/// A small model of random weights: on the device a prompt must give the same bits whether it is
/// run at once or token by token, and what the reference device gives but for rounding.
fn run_on(
    make: impl FnOnce(&Config, &RandomWeights, Limits) -> Result<Box<dyn Device>, String>,
) -> Result<Passed, String> {
    let start = Instant::now();
    let broken = |what: &str| {
        format!("{what}; the build or the machine is faulty: rebuild, then test the memory")
    };
    let config = Config::from_json(TEST_MODEL).map_err(|error| broken(&error.to_string()))?;
    let weights = RandomWeights::new(&config, 1);
    let limits = Limits { step_tokens: 16, step_outputs: MAX_LANES, positions: 64, pages: 1 };
    let mut device = make(&config, &weights, limits).map_err(|error| broken(&error))?;
    let mut tested = |block| prefill(&mut *device, &config, block).map_err(|error| broken(&error));
    let logits = tested(12)?;
    if tested(1)? != logits {
        return Err(broken("a prompt cut differently gives other bits"));
    }
    let mut reference = reference::open(&config, &weights, limits).map_err(|e| e.to_string())?;
    let defined = prefill(&mut *reference, &config, 12).map_err(|error| broken(&error))?;
    let size = defined.iter().fold(0.0_f32, |max, logit| max.max(logit.abs()));
    let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= TOLERANCE * size;
    if !logits.iter().zip(&defined).all(is_near) {
        return Err(broken("the device does not compute what the reference does"));
    }
    Ok(Passed { device: device.describe(), time: start.elapsed() })
}

/// How far two ways of rounding may lie apart after two layers, as a share of the largest logit.
const TOLERANCE: f32 = 0.1;

const TEST_MODEL: &[u8] = br#"{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96,
    "vocab_size": 256, "max_position_embeddings": 64, "rope_theta": 1e6, "tie_word_embeddings": true}"#;

/// Runs 12 tokens in blocks and gives the last one's logits.
fn prefill(device: &mut dyn Device, config: &Config, block: usize) -> Result<Vec<f32>, String> {
    let tokens: Vec<u32> = (0..12).map(|i| i * 19 % 256).collect();
    let rows: Vec<u32> = (0..12).collect();
    let ops = plan(config);
    for start in (0..tokens.len()).step_by(block) {
        let range = start..(start + block).min(tokens.len());
        let span = Span { pages: vec![0], len: range.end, home_position: 0, position: 0 };
        let lane = Lane {
            tokens: &tokens[range.clone()],
            positions: &rows[range.clone()],
            key_positions: &rows[range.clone()],
            store_at: &rows[range],
            spans: &[span],
            outputs: Outputs::Last,
        };
        device.run(&ops, &Step { lanes: &[lane] }).map_err(|error| error.to_string())?;
    }
    Ok(device.logits(0).to_vec())
}
