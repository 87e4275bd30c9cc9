//! The self-test: checks that a device on this machine computes the reference device's results.
#![cfg_attr(
    not(any(feature = "cpu", feature = "cuda")),
    allow(dead_code, reason = "there is no device to test")
)]

use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use weft_core::config::Config;
use weft_core::device::{Buffer, Inspect, Lane, Limits, MAX_LANES, Outputs, Span, Step};
use weft_core::plan::{Op, plan};
use weft_core::reference;
use weft_core::sampling::{Sampler, Sampling};
use weft_core::weights::RandomWeights;

/// A passed self-test.
#[derive(Clone, Debug)]
pub struct Passed {
    device: String,
    time: Duration,
}

impl Passed {
    /// Its duration.
    pub fn time_ms(&self) -> f64 {
        self.time.as_secs_f64() * 1e3
    }
}

impl fmt::Display for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} against reference, ", self.device)?;
        match self.time_ms() {
            ms @ ..1000.0 => write!(f, "{ms:.0} ms"),
            ms => write!(f, "{:.1} s", ms / 1e3),
        }
    }
}

/// Tests the CPU device.
///
/// # Errors
/// The first result that differs from the reference.
#[cfg(feature = "cpu")]
pub fn cpu() -> Result<Passed, String> {
    let isa = weft_cpu::Isa::choose().map_err(|error| error.to_string())?;
    run_on(SPARSE_TEST_MODEL, |config, weights, limits| {
        let options = weft_cpu::Options { limits, threads: weft_cpu::n_cores(), isa };
        let device = weft_cpu::CpuDevice::new(config, weights, options);
        Ok(Box::new(device.map_err(|error| error.to_string())?))
    })
}

/// Tests the CUDA device with the given way of launching kernels, for models with experts or for
/// those without. `Auto` is tested as a graph, because its measurements accept another way only if
/// it computes the same bits as the graph.
///
/// # Errors
/// The first result that differs from the reference.
#[cfg(feature = "cuda")]
pub fn cuda(launches: weft_cuda::Launches, has_experts: bool) -> Result<Passed, String> {
    use weft_cuda::Launches;
    let is_kept = is_recorded(launches);
    let launches = if launches == Launches::Auto { Launches::Graph } else { launches };
    let passed = run_on(test_model(has_experts), |config, weights, limits| {
        let options = weft_cuda::Options { launches, ..weft_cuda::Options::new(limits) };
        let device = weft_cuda::CudaDevice::new(config, weights, options);
        Ok(Box::new(device.map_err(|error| error.to_string())?))
    })?;
    if let (true, Some(record)) = (is_kept, cuda_record(has_experts)) {
        record.keep();
    }
    Ok(passed)
}

/// Whether the CUDA device has passed the same test at an earlier start, with this GPU, driver and
/// kernels. Every start still compares the persistent kernel with the graph.
#[cfg(feature = "cuda")]
pub(crate) fn cuda_has_passed(launches: weft_cuda::Launches, has_experts: bool) -> bool {
    is_recorded(launches) && cuda_record(has_experts).is_some_and(|record| record.has_passed())
}

/// Records are about the ways that most starts use, which are tested as a graph.
#[cfg(feature = "cuda")]
fn is_recorded(launches: weft_cuda::Launches) -> bool {
    matches!(launches, weft_cuda::Launches::Auto | weft_cuda::Launches::Graph)
}

#[cfg(feature = "cuda")]
fn cuda_record(has_experts: bool) -> Option<weft_cuda::TestRecord> {
    let config = Config::from_json(test_model(has_experts)).ok()?;
    weft_cuda::TestRecord::new(&config, &weft_core::weights::Forms::default()).ok()
}

/// Tests a device on a small model with random weights. Each op must give the reference's result
/// for the reference's inputs. A prompt must give the same bits whether it runs in one step or
/// token by token, and the reference's logits up to rounding. If the device chooses tokens, it must
/// choose the sampler's.
fn run_on(
    model: &[u8],
    make: impl FnOnce(&Config, &RandomWeights, Limits) -> Result<Box<dyn Inspect>, String>,
) -> Result<Passed, String> {
    let start = Instant::now();
    let tested = test(model, make);
    let device = tested.map_err(|what| {
        format!("{what}; the build or the machine is faulty: rebuild, then test the memory")
    })?;
    Ok(Passed { device, time: start.elapsed() })
}

fn test(
    model: &[u8],
    make: impl FnOnce(&Config, &RandomWeights, Limits) -> Result<Box<dyn Inspect>, String>,
) -> Result<String, String> {
    let config = Config::from_json(model).map_err(|error| error.to_string())?;
    let weights = RandomWeights::new(&config, 1);
    let limits = Limits { step_tokens: 16, step_outputs: MAX_LANES, positions: 64, pages: 1 };
    let mut device = make(&config, &weights, limits)?;
    let mut reference = reference::open(&config, &weights, limits).map_err(|e| e.to_string())?;
    for range in [0..N_TOKENS, N_TOKENS - 1..N_TOKENS] {
        compare_ops(&mut *device, &mut *reference, &config, range)?;
    }
    let logits = prefill(&mut *device, &config, N_TOKENS)?;
    if prefill(&mut *device, &config, 1)? != logits {
        return Err("a prompt gives other bits if it is cut differently".to_owned());
    }
    let defined = prefill(&mut *reference, &config, N_TOKENS)?;
    if !are_near(&logits, &defined, TOLERANCE) {
        return Err("the device's logits differ from the reference's".to_owned());
    }
    check_choice(&mut *device, &config)?;
    Ok(device.describe())
}

/// Runs the plan op by op on both devices. Each op gets the reference's inputs.
fn compare_ops(
    device: &mut dyn Inspect,
    reference: &mut dyn Inspect,
    config: &Config,
    range: Range<usize>,
) -> Result<(), String> {
    let prompt = Prompt::new();
    prompt.step(range.clone(), |step| {
        for op in plan(config) {
            for buffer in Buffer::of(config) {
                device.write(buffer, &reference.read(buffer));
            }
            device.run(&[op], step).map_err(|error| error.to_string())?;
            reference.run(&[op], step).map_err(|error| error.to_string())?;
            for buffer in Buffer::of(config) {
                let n = buffer.width(config) * step.n_tokens();
                let (ours, theirs) = (device.read(buffer), reference.read(buffer));
                if !are_near(&ours[..n], &theirs[..n], OP_TOLERANCE) {
                    return Err(format!("{op} computes other results than the reference"));
                }
            }
            if let Op::RopeStore { layer } = op {
                for slot in range.clone().map(|slot| slot as u32) {
                    let (k, v) = reference.kv_row(layer, slot);
                    let (our_k, our_v) = device.kv_row(layer, slot);
                    if !are_near(&our_k, &k, OP_TOLERANCE) || our_v != v {
                        return Err(format!("{op} stores other rows than the reference"));
                    }
                    device.write_kv_row(layer, slot, &k, &v);
                }
            }
        }
        if !are_near(device.logits(0), reference.logits(0), OP_TOLERANCE) {
            return Err("norm_head computes other results than the reference".to_owned());
        }
        Ok(())
    })
}

/// If the device chooses tokens itself, they must be the sampler's.
fn check_choice(device: &mut dyn Inspect, config: &Config) -> Result<(), String> {
    let drawn =
        Sampling { temperature: 0.8, top_k: 20, top_p: 0.9, seed: 1, ..Sampling::default() };
    for settings in [Sampling { temperature: 0.0, ..Sampling::default() }, drawn] {
        let sampler = Sampler::new(&settings, &[], &[], config.vocab).map_err(|e| e.to_string())?;
        Prompt::new().step(N_TOKENS - 1..N_TOKENS, |step| {
            let decoded = device.decode(&plan(config), step, &[Some(&sampler)], 0);
            decoded.map_err(|error| error.to_string())
        })?;
        let Some(token) = device.chosen(0, 0) else { continue };
        let defined = sampler.clone().sample(device.logits(0)).map_err(|e| e.to_string())?;
        if token != defined.token {
            return Err("the device chooses another token than the sampler".to_owned());
        }
    }
    Ok(())
}

fn are_near(ours: &[f32], theirs: &[f32], tolerance: f32) -> bool {
    let size = theirs.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
    ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() <= tolerance * size)
}

/// Maximum difference of logits after two layers, relative to the largest logit.
const TOLERANCE: f32 = 0.1;

/// Maximum difference after one op: two roundings of the largest value to bf16.
const OP_TOLERANCE: f32 = 0.02;

/// Tokens of the test's prompt: more than the kernels for few tokens handle.
const N_TOKENS: usize = 12;

#[cfg(feature = "cuda")]
const TEST_MODEL: &[u8] = br#"{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96,
    "vocab_size": 256, "max_position_embeddings": 64, "rope_theta": 1e6, "tie_word_embeddings": true}"#;

/// The same with experts in the second layer, so that every op runs.
const SPARSE_TEST_MODEL: &[u8] = br#"{"model_type": "qwen3_moe", "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 96, "num_experts": 5, "num_experts_per_tok": 2,
    "moe_intermediate_size": 72, "norm_topk_prob": true, "mlp_only_layers": [0], "vocab_size": 256,
    "max_position_embeddings": 64, "rope_theta": 1e6, "tie_word_embeddings": true}"#;

/// The model that runs every op of such models. Kernels of experts take long to compile, so others
/// are tested without them.
#[cfg(feature = "cuda")]
fn test_model(has_experts: bool) -> &'static [u8] {
    if has_experts { SPARSE_TEST_MODEL } else { TEST_MODEL }
}

/// The test's prompt, in the first page.
struct Prompt {
    tokens: Vec<u32>,
    rows: Vec<u32>,
}

impl Prompt {
    fn new() -> Self {
        let rows: Vec<u32> = (0..N_TOKENS as u32).collect();
        Self { tokens: rows.iter().map(|row| row * 19 % 256).collect(), rows }
    }

    /// Calls `run` with a step of the tokens in `range`.
    fn step<R>(&self, range: Range<usize>, run: impl FnOnce(&Step<'_>) -> R) -> R {
        let (pages, len) = (vec![0], range.end);
        let span = Span { pages, first_row: 0, len, home_position: 0, position: 0 };
        let rows = &self.rows[range.clone()];
        let lane = Lane {
            tokens: &self.tokens[range],
            positions: rows,
            key_positions: rows,
            store_at: rows,
            spans: &[span],
            marks: &[],
            outputs: Outputs::Last,
        };
        run(&Step { lanes: &[lane] })
    }
}

/// Runs the prompt in blocks, and returns the last token's logits.
fn prefill(device: &mut dyn Inspect, config: &Config, block: usize) -> Result<Vec<f32>, String> {
    let (prompt, ops) = (Prompt::new(), plan(config));
    for start in (0..N_TOKENS).step_by(block) {
        let ran = prompt.step(start..(start + block).min(N_TOKENS), |step| device.run(&ops, step));
        ran.map_err(|error| error.to_string())?;
    }
    Ok(device.logits(0).to_vec())
}

#[cfg(test)]
mod whole_plans;

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use weft_core::weights::{LayerTensor, Tensor, Weights, WeightsError};

    use weft_cpu::{CpuDevice, Options};

    use super::*;

    /// Weights with one wrong value in each row, in another column each: the same in all rows of a
    /// router would change no choice.
    struct Off {
        tensor: Tensor,
        random: RandomWeights,
    }

    impl Weights for Off {
        fn read(
            &self,
            tensor: Tensor,
            visit: &mut dyn FnMut(usize, &[f32]),
        ) -> Result<(), WeightsError> {
            self.random.read(tensor, &mut |row, values| {
                let mut values = values.to_vec();
                if tensor == self.tensor {
                    let column = row % values.len();
                    values[column] += 1.0;
                }
                visit(row, &values);
            })
        }

        fn fingerprint(&self) -> [u8; 32] {
            self.random.fingerprint()
        }
    }

    #[test]
    fn an_op_that_is_off_is_named() {
        let layer = |kind| Tensor::Layer(1, kind);
        for (tensor, name) in [
            (layer(LayerTensor::K), "norm_qkv"),
            (layer(LayerTensor::O), "proj_add"),
            (Tensor::Layer(0, LayerTensor::Up), "norm_gate_up"),
            (Tensor::Layer(0, LayerTensor::Down), "down_add"),
            (layer(LayerTensor::Router), "norm_route"),
            (layer(LayerTensor::ExpertUp), "expert_gate_up"),
            (layer(LayerTensor::ExpertDown), "expert_down_add"),
            (Tensor::FinalNorm, "norm_head"),
        ] {
            let said = run_on(SPARSE_TEST_MODEL, |config, _, limits| {
                let weights = Off { tensor, random: RandomWeights::new(config, 1) };
                let options = Options::new(limits).expect("instructions of this machine");
                let device = CpuDevice::new(config, &weights, options);
                Ok(Box::new(device.map_err(|error| error.to_string())?))
            });
            let said = said.expect_err("the test fails");
            assert!(said.starts_with(name), "{tensor:?}: {said}");
        }
        assert!(cpu().is_ok());
    }

    /// A model is tested by one that has its ops, and a dense one waits for no other kernels.
    #[cfg(feature = "cuda")]
    #[test]
    fn every_op_of_a_model_is_tested_on_a_gpu() {
        use std::collections::HashSet;
        let names =
            |config: &Config| -> HashSet<_> { plan(config).into_iter().map(Op::name).collect() };
        for name in weft_core::shapes::NAMES {
            let config = weft_core::shapes::config(name).unwrap();
            let tested = Config::from_json(test_model(config.experts.is_some())).unwrap();
            assert!(names(&config).is_subset(&names(&tested)), "{name}");
            assert_eq!(config.experts.is_some(), tested.experts.is_some(), "{name}");
        }
    }
}
