//! Experts in main memory beside the CUDA device: rows go out and come back in every family of
//! kernels, neither cuts nor neighbours show, and the GPU's memory holds no expert.
//!
//! Without a GPU each test is skipped; with `WEFT_REQUIRE_GPU=1` it fails.

mod gpu;
mod like;

use gpu::gpu_is_there;
use half::bf16;
use like::options;
use weft_core::config::Config;
use weft_core::device::{Device, HostExperts, Inspect};
use weft_core::plan::{Op, plan};
use weft_core::reference::Reference;
use weft_core::routing::Route;
use weft_core::weights::{Coded, Forms, Quantised, RandomWeights, Weights};
use weft_cpu::{CpuExperts, need_of_experts};
use weft_cuda::{CudaDevice, CudaError, need, need_without_experts};
use weft_testing::{LIMITS, Work, run, run_in_blocks, span, tokens};

fn model() -> Config {
    let json = br#"{"model_type": "qwen3_moe", "hidden_size": 296, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 40,
        "intermediate_size": 100, "num_experts": 12, "num_experts_per_tok": 3,
        "moe_intermediate_size": 70, "norm_topk_prob": true, "mlp_only_layers": [0],
        "vocab_size": 397, "rope_theta": 10000.0, "max_position_embeddings": 512,
        "tie_word_embeddings": true}"#;
    Config::from_json(json).unwrap()
}

fn cpu() -> weft_cpu::Options {
    weft_cpu::Options { threads: 2, ..weft_cpu::Options::new(LIMITS).unwrap() }
}

fn split(config: &Config, weights: &dyn Weights) -> CudaDevice {
    let experts = Box::new(CpuExperts::new(config, weights, cpu()).unwrap());
    CudaDevice::with_host_experts(config, weights, options(LIMITS), experts).unwrap()
}

/// Blocks of a prompt by every family of kernels.
const BLOCKS: [&[usize]; 3] =
    [&[150, 150], &[9, 33, 16, 8, 1, 83, 7, 143], &[1, 64, 2, 100, 31, 32, 5, 65]];

fn size(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// The logits are the reference's up to rounding for most tokens, and the same bits however a
/// prompt is cut.
#[test]
fn cuts_do_not_show_and_logits_are_those_of_the_reference() {
    if !gpu_is_there() {
        return;
    }
    let config = model();
    let plain = RandomWeights::new(&config, 7);
    let coded = Quantised::new(RandomWeights::new(&config, 7), Coded::int(4));
    let all: [(&str, &dyn Weights); 2] = [("plain", &plain), ("int4", &coded)];
    let (prompt, own) = (tokens(300, 4, config.vocab), span(0, 300, 0));
    for (name, weights) in all {
        let mut device = split(&config, weights);
        let mut in_blocks =
            |blocks: &[usize]| run_in_blocks(&mut device, &config, &prompt, blocks, &own);
        let [truth, other, third] = BLOCKS.map(&mut in_blocks);
        assert!(other == truth && third == truth, "{name}: cuts show");
        let mut reference = Reference::<bf16>::new(&config, weights, LIMITS).unwrap();
        let defined = run_in_blocks(&mut reference, &config, &prompt, BLOCKS[0], &own);
        let is_off = |(ours, theirs): &(&Vec<f32>, &Vec<f32>)| {
            let off: Vec<f32> = ours.iter().zip(*theirs).map(|(a, b)| a - b).collect();
            size(&off) > 0.1 * size(theirs)
        };
        // Where two experts are almost equally good, rounding may choose another one.
        let n_off = truth.iter().zip(&defined).filter(is_off).count();
        assert!(n_off < prompt.len() / 4, "{name}: {n_off} of {} tokens", prompt.len());
    }
}

/// Lanes beside others have the bits of lanes alone.
#[test]
fn neighbours_do_not_show() {
    if !gpu_is_there() {
        return;
    }
    let config = model();
    let mut device = split(&config, &RandomWeights::new(&config, 7));
    let works: Vec<Work> = (0..5)
        .map(|lane| {
            let text = tokens(1 + 7 * lane, lane as u32 + 1, config.vocab);
            Work::new(&text, 0, Vec::new(), span(lane as u32 * 2, text.len(), 0))
        })
        .collect();
    let plan = plan(&config);
    let together = run(&mut device, &plan, &works);
    let alone: Vec<Vec<f32>> =
        works.iter().flat_map(|work| run(&mut device, &plan, std::slice::from_ref(work))).collect();
    assert!(together == alone);
}

/// What is kept says where the experts were computed, and the GPU has no room for them.
#[test]
fn experts_take_no_memory_of_the_gpu() {
    if !gpu_is_there() {
        return;
    }
    let config = model();
    let weights = RandomWeights::new(&config, 7);
    let whole = CudaDevice::new(&config, &weights, options(LIMITS)).unwrap();
    let (all, family) = (whole.memory_bytes(), whole.kv_family());
    drop(whole);
    let device = split(&config, &weights);
    let forms = Forms::default();
    let experts = need_of_experts(&config, &forms, LIMITS.step_tokens, 1);
    assert!(device.memory_bytes() + experts.weights <= all, "{}", device.memory_bytes());
    let [said, said_all] = [need_without_experts, need].map(|need| need(&config, &forms, &LIMITS));
    assert!(device.memory_bytes() <= said.total() && said.total() < said_all.total());
    assert_ne!(device.kv_family(), family);
    assert!(device.describe().contains("experts on CPU"), "{}", device.describe());
}

/// Experts that compute nothing, and count the tokens of each call.
struct Counting(std::sync::Arc<std::sync::Mutex<Vec<(u16, usize)>>>);

impl HostExperts for Counting {
    fn describe(&self) -> String {
        "CPU (counts)".to_owned()
    }

    fn family(&self) -> String {
        "counts".to_owned()
    }

    fn add(&mut self, layer: u16, x: &mut [bf16], stride: usize, routes: &[Route]) {
        assert!(x.chunks_exact(stride).flatten().all(|x| x.is_finite()));
        assert!(routes.chunks_exact(3).all(|of| of.is_sorted_by_key(|route| route.expert)));
        let n_tokens = x.len() / stride;
        assert_eq!(routes.len(), 3 * n_tokens);
        self.0.lock().unwrap().push((layer, n_tokens));
    }
}

/// Each sparse layer is handed over once; an op of experts alone is refused, and so is a dense
/// model.
#[test]
fn each_sparse_layer_is_handed_over_once() {
    if !gpu_is_there() {
        return;
    }
    let config = model();
    let weights = RandomWeights::new(&config, 7);
    let calls = std::sync::Arc::default();
    let counting = || Box::new(Counting(std::sync::Arc::clone(&calls)));
    let mut device =
        CudaDevice::with_host_experts(&config, &weights, options(LIMITS), counting()).unwrap();
    let text = tokens(20, 1, config.vocab);
    let work = Work::new(&text, 0, Vec::new(), span(0, 20, 0));
    run(&mut device, &plan(&config), std::slice::from_ref(&work));
    assert_eq!(*calls.lock().unwrap(), [(1, 20), (2, 20)]);
    let lanes = [work.lane()];
    let step = weft_core::device::Step { lanes: &lanes };
    for op in [Op::ExpertGateUp { layer: 1 }, Op::ExpertDownAdd { layer: 1 }] {
        let refused = device.run(&[op], &step).unwrap_err().to_string();
        assert!(refused.contains("both of their ops at once"), "{refused}");
    }
    assert!(device.time_us(&[Op::Embed], &step, 1).is_none());

    let dense = weft_testing::config("qwen3");
    let weights = RandomWeights::new(&dense, 7);
    let refused =
        CudaDevice::with_host_experts(&dense, &weights, options(LIMITS), counting()).err();
    assert!(matches!(refused, Some(CudaError::Unsupported(_))));
}
