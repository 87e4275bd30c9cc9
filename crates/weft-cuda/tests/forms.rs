//! Coded weights on the CUDA device: every form against the reference, op by op; mixes of forms;
//! and all families of kernels and ways of launching against one another, bit for bit.
//!
//! Without a GPU each test is skipped; with `WEFT_REQUIRE_GPU=1` it fails.

mod gpu;
mod like;
mod ways;

use gpu::gpu_is_there;
use half::bf16;
use like::options;
use ways::for_each;
use weft_core::config::Config;
use weft_core::device::{Device, Inspect};
use weft_core::reference::Reference;
use weft_core::weights::{Code, Coded, Forms, LayerTensor, Offset, Scale, Tensor, Weights};
use weft_cuda::{CudaDevice, Launches, Options, need};
use weft_testing::forms::{self, Mixed};
use weft_testing::parity::{Noise, compare, works};
use weft_testing::{LIMITS, poison, run_in_blocks, span, tokens};

/// Sums of codes are larger than the weights that they stand for.
const NOISE: Noise = Noise { sums: 5e-5, weights: 0.01 };
/// Among many tokens some have squares so near to a tie that another order of summation moves a
/// normalised value to the next bf16.
const NOISE_OF_MANY: Noise = Noise { sums: 2e-3, ..NOISE };

/// A model whose columns fill runs, units and eighths of rows in part.
fn model(hidden: usize, intermediate: usize, layers: usize) -> Config {
    model_of_heads(40, hidden, intermediate, layers)
}

fn model_of_heads(head_dim: usize, hidden: usize, intermediate: usize, layers: usize) -> Config {
    let json = format!(
        r#"{{"model_type": "qwen3", "hidden_size": {hidden}, "num_hidden_layers": {layers},
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": {head_dim},
            "intermediate_size": {intermediate}, "vocab_size": 397, "rope_theta": 10000.0,
            "max_position_embeddings": 512, "tie_word_embeddings": true}}"#
    );
    Config::from_json(json.as_bytes()).unwrap()
}

fn uniform(config: &Config, form: Coded) -> Mixed {
    Mixed::new(config, &[form], |_| Some(0))
}

/// Q4_K and Q6_K.
fn k_quants() -> [Coded; 2] {
    let four = Coded {
        code: Code::Uint { bits: 4 },
        group: 32,
        scale: Scale::Steps,
        offset: Offset::Minimum,
    };
    let six = Code::Int { bits: 6 };
    [four, Coded { code: six, group: 16, scale: Scale::Steps, offset: Offset::None }]
}

/// Values and `down` have more bits in every other layer, the embedding in all.
fn like_q4_k_m(config: &Config) -> Mixed {
    Mixed::new(config, &k_quants(), |tensor| match tensor {
        Tensor::Embed | Tensor::Head => Some(1),
        Tensor::Layer(layer, LayerTensor::V | LayerTensor::Down) => Some(usize::from(layer % 2)),
        _ => Some(0),
    })
}

/// Every fused matrix has parts of different forms, plain ones among them, and the head is plain.
fn like_none(config: &Config) -> Mixed {
    let [four, six] = k_quants();
    Mixed::new(config, &[four, six, Coded::int(8)], |tensor| match tensor {
        Tensor::Embed | Tensor::Head => None,
        Tensor::Layer(0, LayerTensor::Q | LayerTensor::Up) => None,
        Tensor::Layer(_, LayerTensor::K | LayerTensor::Gate) => Some(1),
        Tensor::Layer(1, LayerTensor::O) => Some(2),
        _ => Some(0),
    })
}

fn device(config: &Config, weights: &dyn Weights, launches: Launches) -> CudaDevice {
    device_for(config, weights, launches, &[1, 2, 4, 8])
}

/// With the persistent kernels of some numbers of lanes.
fn device_for(
    config: &Config,
    weights: &dyn Weights,
    launches: Launches,
    lanes: &'static [usize],
) -> CudaDevice {
    // No test here draws tokens: half of the persistent kernels, and most of the compiler's time.
    let options = Options { launches, draws: false, lanes, ..options(LIMITS) };
    let mut device = CudaDevice::new(config, weights, options).unwrap();
    poison(&mut device, config);
    device
}

fn matches_the_reference(name: &str, config: &Config, weights: &dyn Weights) {
    let mut ours = device(config, weights, Launches::Graph);
    let mut theirs = Reference::<bf16>::new(config, weights, LIMITS).unwrap();
    // Few tokens, up to sixteen, and a block of them.
    for (lanes, noise) in [
        (vec![(vec![(7, 3)], 1), (vec![(40, 0)], 2)], NOISE),
        (vec![(vec![(70, 3)], 9), (vec![], 4)], NOISE_OF_MANY),
        (vec![(vec![(20, 0)], 90), (vec![], 50)], NOISE_OF_MANY),
    ] {
        let works = works(config, &mut theirs, &lanes, 11);
        compare(config, &mut ours, &mut theirs, &works, noise)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// A prompt gives the same bits in blocks of any size: by every family of kernels.
fn blocks_do_not_show(name: &str, config: &Config, device: &mut dyn Inspect) {
    let (prompt, own) = (tokens(300, 4, config.vocab), span(0, 300, 0));
    let mut run = |blocks: &[usize]| {
        let logits = run_in_blocks(device, config, &prompt, blocks, &own);
        (logits, device.kv_row(1, own.slot(299)))
    };
    let truth = run(&[150, 150]);
    assert!(truth.0.iter().flatten().all(|logit| logit.is_finite()), "{name}");
    assert!(run(&[9, 33, 16, 8, 1, 83, 7, 143]) == truth, "{name}");
}

/// Lanes run alone and together, as ops, as a graph and in the persistent kernel.
fn ways_do_not_show(name: &str, config: &Config, device: &mut CudaDevice) {
    let all = [Launches::Ops, Launches::Graph, Launches::Persistent];
    ways::do_not_show(name, config, device, &all, 1);
}

#[test]
fn every_form_matches_the_reference() {
    if !gpu_is_there() {
        return;
    }
    for_each(&forms::all(), |form| {
        let config = model(300, 600, 2);
        let weights = uniform(&config, *form);
        matches_the_reference(&format!("{form:?}"), &config, &weights);
        let mut device = device(&config, &weights, Launches::Graph);
        blocks_do_not_show(&format!("{form:?}"), &config, &mut device);
    });
}

#[test]
fn mixes_match_the_reference() {
    if !gpu_is_there() {
        return;
    }
    let configs = [model(300, 600, 2), wide()];
    for_each(&configs, |config| {
        for (name, mix) in [("Q4_K_M", like_q4_k_m(config)), ("any", like_none(config))] {
            matches_the_reference(name, config, &mix);
        }
    });
}

/// Warpgroups multiply with rows of q, k and v of different forms.
#[test]
fn mixes_by_warpgroups_match_the_reference() {
    if !gpu_is_there() {
        return;
    }
    let config = whole_groups();
    for_each(&[("Q4_K_M", like_q4_k_m(&config)), ("any", like_none(&config))], |(name, mix)| {
        matches_the_reference(name, &config, mix);
        let mut device = device(&config, mix, Launches::Graph);
        blocks_do_not_show(name, &config, &mut device);
    });
}

/// Rows of q, k and v are multiples of 64.
fn whole_groups() -> Config {
    model_of_heads(64, 1000, 3000, 2)
}

/// A model whose longest rows are in two strips of different lengths, and whose input does not fit
/// into a warp's registers. No larger: the reference computes it too.
fn wide() -> Config {
    model(1300, 3700, 2)
}

/// A model that gives each block of an H100 or H200 one tile of `o` and of `down`, and whose input
/// does not fit into a warp's registers: a tile without another is multiplied two units at a time.
/// Rows of `down` are fifteen units of a warp, those of `o` one.
fn one_tile() -> Config {
    model(1050, 3700, 2)
}

#[test]
fn every_way_computes_the_same() {
    if !gpu_is_there() {
        return;
    }
    for_each(&forms::all(), |form| {
        let config = model(300, 600, 2);
        // Two and four lanes have the code of eight; mixes have all of them.
        let weights = uniform(&config, *form);
        let mut device = device_for(&config, &weights, Launches::Persistent, &[1, 8]);
        ways_do_not_show(&format!("{form:?}"), &config, &mut device);
    });
}

#[test]
fn mixes_compute_the_same_every_way() {
    if !gpu_is_there() {
        return;
    }
    // Every form by itself is in `every_way_computes_the_same`, in a narrow model.
    let small = model(300, 3700, 2);
    let all: Vec<(&str, Config, Mixed)> = vec![
        ("Q4_K_M", wide(), like_q4_k_m(&wide())),
        ("int4", wide(), uniform(&wide(), Coded::int(4))),
        ("any", small.clone(), like_none(&small)),
        ("one tile", one_tile(), uniform(&one_tile(), Coded { group: 16, ..k_quants()[0] })),
    ];
    for_each(&all, |(name, config, weights)| {
        let mut device = device(config, weights, Launches::Persistent);
        ways_do_not_show(name, config, &mut device);
        device.use_launches(Launches::Graph).unwrap();
        blocks_do_not_show(name, config, &mut device);
    });
}

#[test]
fn a_coded_model_takes_what_its_codes_take() {
    if !gpu_is_there() {
        return;
    }
    let config = wide();
    let plain = need(&config, &Forms::default(), &LIMITS);
    for (form, most) in [(Coded::int(4), 0.3), (Coded::int(8), 0.55)] {
        let weights = uniform(&config, form);
        let said = need(&config, &Forms::of(&weights, &config), &LIMITS);
        assert!((said.weights as f64) < most * plain.weights as f64, "{form:?}: {said:?}");
        let device = device(&config, &weights, Launches::Graph);
        assert!(device.memory_bytes() <= said.total(), "{form:?}: {}", device.memory_bytes());
        assert!(device.memory_bytes() >= said.weights, "{form:?}: {}", device.memory_bytes());
        assert_eq!(device.limits(), LIMITS);
    }
}
