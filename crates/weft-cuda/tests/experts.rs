//! Mixtures of experts on the CUDA device: routing and experts against the reference, op by op, in
//! every form; ties, one choice for all tokens, all experts at once; and all families of kernels and
//! ways of launching against one another, bit for bit.
//!
//! Without a GPU each test is skipped; with `WEFT_REQUIRE_GPU=1` it fails.

mod gpu;
mod like;
mod ways;

use gpu::gpu_is_there;
use half::bf16;
use like::options;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use ways::for_each;
use weft_core::config::Config;
use weft_core::device::{Buffer, Device, Inspect, Limits, Step};
use weft_core::plan::{Op, plan};
use weft_core::reference::Reference;
use weft_core::weights::{
    Coded, CodedRow, Form, Forms, LayerTensor, RandomWeights, Tensor, Weights, WeightsError,
};
use weft_cuda::{Chip, CudaDevice, Launches, Options, need};
use weft_testing::conformance;
use weft_testing::forms::{self, Mixed};
use weft_testing::parity::{Layout, Noise, compare, sparse_shapes, works};
use weft_testing::{LIMITS, Work, fill, poison, run_in_blocks, span, tokens};

/// Those of `forms.rs`.
const NOISE: Noise = Noise { sums: 5e-5, weights: 0.01 };
const NOISE_OF_MANY: Noise = Noise { sums: 2e-3, ..NOISE };

/// How a model's experts are.
#[derive(Clone, Copy)]
struct Mixture {
    count: usize,
    chosen: usize,
    width: usize,
    /// More keys of `config.json`.
    keys: &'static str,
}

const ODD: Mixture = Mixture { count: 5, chosen: 2, width: 37, keys: r#""norm_topk_prob": true"# };
const SPREAD: Mixture =
    Mixture { count: 40, chosen: 4, width: 300, keys: r#""norm_topk_prob": true"# };
const OTHERS: [Mixture; 4] = [
    // A dense layer among sparse ones, weights that do not sum to 1.
    Mixture { count: 7, chosen: 3, width: 40, keys: r#""mlp_only_layers": [0]"# },
    // Every other layer is sparse; more experts than lanes of a warp.
    Mixture { count: 130, chosen: 9, width: 8, keys: r#""decoder_sparse_step": 2"# },
    // All experts, for every token.
    Mixture { count: 6, chosen: 6, width: 130, keys: r#""norm_topk_prob": false"# },
    Mixture { count: 1, chosen: 1, width: 64, keys: r#""norm_topk_prob": true"# },
];

fn model(hidden: usize, mixture: Mixture) -> Config {
    let Mixture { count, chosen, width, keys } = mixture;
    let json = format!(
        r#"{{"model_type": "qwen3_moe", "hidden_size": {hidden}, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 40,
            "intermediate_size": 100, "num_experts": {count}, "num_experts_per_tok": {chosen},
            "moe_intermediate_size": {width}, {keys}, "vocab_size": 397, "rope_theta": 10000.0,
            "max_position_embeddings": 512, "tie_word_embeddings": true}}"#
    );
    Config::from_json(json.as_bytes()).unwrap()
}

fn random(config: &Config) -> RandomWeights {
    RandomWeights::new(config, 7)
}

fn device(config: &Config, weights: &dyn Weights, options: Options) -> CudaDevice {
    let mut device = CudaDevice::new(config, weights, options).unwrap();
    poison(&mut device, config);
    device
}

/// Few tokens; more than eight, so that groups take turns; and a block of them.
fn matches_the_reference(name: &str, config: &Config, weights: &dyn Weights) {
    let mut ours = device(config, weights, options(LIMITS));
    let mut theirs = Reference::<bf16>::new(config, weights, LIMITS).unwrap();
    let cases: [(Vec<Layout>, Noise); 4] = [
        (vec![(vec![(7, 3)], 1)], NOISE),
        (vec![(vec![(7, 3)], 3), (vec![(40, 0)], 5)], NOISE),
        (vec![(vec![(70, 3)], 19), (vec![], 4)], NOISE_OF_MANY),
        (vec![(vec![(20, 0)], 90), (vec![], 50)], NOISE_OF_MANY),
    ];
    for (lanes, noise) in cases {
        let works = works(config, &mut theirs, &lanes, 11);
        compare(config, &mut ours, &mut theirs, &works, noise)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// A prompt gives the same bits in blocks of any size: by every family of kernels.
fn in_blocks(
    config: &Config,
    device: &mut dyn Inspect,
    blocks: &[usize],
) -> impl PartialEq + use<> {
    let (prompt, own) = (tokens(300, 4, config.vocab), span(0, 300, 0));
    let logits = run_in_blocks(device, config, &prompt, blocks, &own);
    assert!(logits.iter().flatten().all(|logit| logit.is_finite()));
    (logits, device.kv_row(1, own.slot(299)))
}

const BLOCKS: [&[usize]; 3] =
    [&[150, 150], &[9, 33, 16, 8, 1, 83, 7, 143], &[1, 64, 2, 100, 31, 32, 5, 65]];

fn blocks_do_not_show(name: &str, config: &Config, device: &mut dyn Inspect) {
    let [truth, other, third] = BLOCKS.map(|blocks| in_blocks(config, device, blocks));
    assert!(other == truth && third == truth, "{name}");
}

/// Lanes alone and together, as ops and as a graph.
fn ways_do_not_show(name: &str, config: &Config, device: &mut CudaDevice) {
    ways::do_not_show(name, config, device, &[Launches::Ops, Launches::Graph], 50);
}

/// Checks models with random weights, each of a hidden size and a mixture.
fn for_each_size(all: &[(usize, Mixture)], check: impl Fn(&str, &Config, &dyn Weights) + Sync) {
    for_each(all, |(hidden, mixture)| {
        let config = model(*hidden, *mixture);
        let name = format!("{hidden}, {} of {}", mixture.chosen, mixture.count);
        check(&name, &config, &random(&config));
    });
}

#[test]
fn experts_match_the_reference() {
    if !gpu_is_there() {
        return;
    }
    let sizes = [(30, ODD), (300, SPREAD), (2100, SPREAD), (520, Mixture { width: 1030, ..ODD })];
    let others = OTHERS.map(|mixture| (270, mixture));
    for_each_size(&[&sizes[..], &others].concat(), matches_the_reference);
}

/// Models of any size: experts that fill tiles and units exactly, hardly, and over.
#[test]
fn every_op_of_sparse_models_matches_the_reference() {
    if !gpu_is_there() {
        return;
    }
    let sizes = (1_usize..600, 1_usize..4, 1_usize..6, 1_usize..66, 1_usize..600, 1_usize..400);
    let old = prop::collection::vec((1_usize..90, 0_usize..200), 0..3);
    let lanes = prop::collection::vec((old, 1_usize..15), 1..=3);
    let cases = (sparse_shapes(sizes), lanes, any::<u32>());
    for_each(&[(); 4], |()| {
        TestRunner::new(Cases::with_cases(4))
            .run(&cases, |(config, lanes, seed)| {
                let weights = random(&config);
                let mut ours = device(&config, &weights, options(LIMITS));
                let mut theirs = Reference::<bf16>::new(&config, &weights, LIMITS).unwrap();
                poison(&mut theirs, &config);
                let works = works(&config, &mut theirs, &lanes, seed);
                compare(&config, &mut ours, &mut theirs, &works, NOISE)
            })
            .unwrap();
    });
}

#[test]
fn experts_do_what_every_device_must() {
    if !gpu_is_there() {
        return;
    }
    let make_with = |config: &Config, weights: &dyn Weights, limits: Limits| -> Box<dyn Inspect> {
        Box::new(CudaDevice::new(config, weights, options(limits)).unwrap())
    };
    let make = |config: &Config, limits| make_with(config, &random(config), limits);
    conformance::experts_show_neither_cuts_nor_neighbours(&make);
    conformance::ties_go_to_the_lower_index(&make_with);
    let config = weft_testing::config("qwen3_moe");
    conformance::laid_routes_match_the_reference(&make_with, &random(&config), NOISE);
    let int4 = Mixed::new(&config, &[Coded::int(4)], |_| Some(0));
    conformance::laid_routes_match_the_reference(&make_with, &int4, NOISE);
}

#[test]
fn experts_of_every_form_match_the_reference() {
    if !gpu_is_there() {
        return;
    }
    for_each(&forms::all(), |form| {
        let config = model(300, SPREAD);
        let weights = Mixed::new(&config, &[*form], |_| Some(0));
        matches_the_reference(&format!("{form:?}"), &config, &weights);
        let mut device = device(&config, &weights, options(LIMITS));
        blocks_do_not_show(&format!("{form:?}"), &config, &mut device);
    });
}

/// Gate and up of different forms, and layers that differ.
fn mixed(config: &Config) -> Mixed {
    Mixed::new(config, &[Coded::Q4_K, Coded::Q6_K, Coded::int(8)], |tensor| match tensor {
        Tensor::Layer(0, LayerTensor::ExpertUp) => Some(1),
        Tensor::Layer(1, LayerTensor::ExpertDown) => Some(2),
        Tensor::Layer(1, LayerTensor::ExpertGate) => None,
        _ => Some(0),
    })
}

#[test]
fn mixed_forms_of_experts_match_the_reference() {
    if !gpu_is_there() {
        return;
    }
    let config = model(520, SPREAD);
    let weights = mixed(&config);
    matches_the_reference("mixed", &config, &weights);
    let mut device = device(&config, &weights, options(LIMITS));
    blocks_do_not_show("mixed", &config, &mut device);
    ways_do_not_show("mixed", &config, &mut device);
}

#[test]
fn every_way_computes_the_same_experts() {
    if !gpu_is_there() {
        return;
    }
    let all =
        [(300, SPREAD), (2048, Mixture { count: 64, chosen: 8, width: 768, ..SPREAD }), (30, ODD)];
    for_each(&all, |(hidden, mixture)| {
        let config = model(*hidden, *mixture);
        let name = format!("{hidden}, {} of {}", mixture.chosen, mixture.count);
        let int4 = Mixed::new(&config, &[Coded::int(4)], |_| Some(0));
        for weights in [&random(&config) as &dyn Weights, &int4] {
            let mut device = device(&config, weights, options(LIMITS));
            ways_do_not_show(&name, &config, &mut device);
            blocks_do_not_show(&name, &config, &mut device);
        }
    });
}

/// Prompts take other kernels where warpgroups multiply: the same bits.
#[test]
fn warpgroups_do_not_show_in_experts() {
    if !gpu_is_there() {
        return;
    }
    let chip = weft_cuda::probe().unwrap().chip;
    let config = model(300, SPREAD);
    let int4 = Mixed::new(&config, &[Coded::int(4)], |_| Some(0));
    let offsets = Mixed::new(&config, &[Coded::Q4_K], |_| Some(0));
    for weights in [&random(&config) as &dyn Weights, &int4, &offsets] {
        let with = Options { chip: Some(chip), ..Options::new(LIMITS) };
        let without = Some(Chip { has_warpgroups: false, ..chip });
        let [with, without] = [with, Options { chip: without, ..with }].map(|options| {
            in_blocks(&config, &mut device(&config, weights, options), &[150, 33, 117])
        });
        assert!(with == without);
    }
}

/// The values of a router, by expert and column.
type Router = fn(usize, usize) -> f32;

/// Weights whose router is another one.
struct Routed {
    others: RandomWeights,
    router: Router,
    hidden: usize,
    count: usize,
}

impl Routed {
    fn new(config: &Config, router: Router) -> Self {
        let count = config.experts.as_ref().unwrap().count;
        Self { others: random(config), router, hidden: config.hidden, count }
    }
}

impl Weights for Routed {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        if !matches!(tensor, Tensor::Layer(_, LayerTensor::Router)) {
            return self.others.read(tensor, visit);
        }
        for expert in 0..self.count {
            let row: Vec<f32> = (0..self.hidden).map(|c| (self.router)(expert, c)).collect();
            visit(expert, &row);
        }
        Ok(())
    }

    fn form(&self, tensor: Tensor) -> Form {
        self.others.form(tensor)
    }

    fn read_coded(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        self.others.read_coded(tensor, visit)
    }

    fn fingerprint(&self) -> [u8; 32] {
        [7; 32]
    }
}

/// The experts of all tokens of a prompt, in layer 0.
fn chosen(config: &Config, device: &mut CudaDevice, n_tokens: usize) -> Vec<f32> {
    let (prompt, own) = (tokens(n_tokens, 4, config.vocab), span(0, n_tokens, 0));
    let work = Work::new(&prompt, 0, Vec::new(), own);
    device.use_launches(Launches::Ops).unwrap();
    device.run(&plan(config)[..6], &Step { lanes: &[work.lane()] }).unwrap();
    let n = config.experts.as_ref().unwrap().chosen;
    let routes = device.read(Buffer::Routes);
    routes.chunks_exact(2 * n).take(n_tokens).flat_map(|routes| routes[..n].to_vec()).collect()
}

#[test]
fn ties_go_to_the_lower_expert() {
    if !gpu_is_there() {
        return;
    }
    let config = model(300, SPREAD);
    // All equal; and the first equal to the last few, which are larger than those between.
    let all: [(Router, [f32; 4]); 2] =
        [(|_, _| 0.0, [0.0, 1.0, 2.0, 3.0]), (|e, _| f32::from(e > 0 && e < 36), [0.0; 4])];
    for (i, (router, expected)) in all.into_iter().enumerate() {
        let weights = Routed::new(&config, router);
        matches_the_reference("ties", &config, &weights);
        let mut ours = device(&config, &weights, options(LIMITS));
        for n in [1, 8, 20, 150] {
            let found = chosen(&config, &mut ours, n);
            // In the second case, tokens whose columns sum to more than zero choose 1 to 4.
            let fits = |of: &[f32]| of == expected || i == 1 && [1.0, 0.0].contains(&of[0]);
            assert!(found.chunks_exact(4).all(fits), "{found:?}");
        }
        blocks_do_not_show("ties", &config, &mut ours);
    }
}

/// Four experts have all tokens, all others none; and each expert has some tokens.
#[test]
fn tokens_may_all_choose_the_same_experts() {
    if !gpu_is_there() {
        return;
    }
    let config = model(300, Mixture { count: 4, chosen: 1, ..SPREAD });
    let weights = Routed::new(&config, |_, _| 0.0);
    matches_the_reference("one expert", &config, &weights);
    let mut ours = device(&config, &weights, options(LIMITS));
    assert!(chosen(&config, &mut ours, 150).iter().all(|expert| *expert == 0.0));
    ways_do_not_show("one expert", &config, &mut ours);
    blocks_do_not_show("one expert", &config, &mut ours);
    let config = model(300, Mixture { count: 8, chosen: 1, ..SPREAD });
    let mut ours = device(&config, &random(&config), options(LIMITS));
    let found = chosen(&config, &mut ours, 150);
    assert!((0..8).all(|expert| found.contains(&(expert as f32))), "{found:?}");
}

#[test]
fn experts_take_what_they_are_said_to_take() {
    if !gpu_is_there() {
        return;
    }
    let config = model(2048, Mixture { count: 64, chosen: 8, width: 768, ..SPREAD });
    for form in [Coded::int(4), Coded::Q4_K] {
        let weights = Mixed::new(&config, &[form], |_| Some(0));
        let said = need(&config, &Forms::of(&weights, &config), &LIMITS);
        let device = device(&config, &weights, options(LIMITS));
        assert!(device.memory_bytes() <= said.total(), "{form:?}: {}", device.memory_bytes());
        assert!(device.memory_bytes() >= said.weights, "{form:?}: {}", device.memory_bytes());
    }
}

/// A device that has the persistent kernel.
fn persistent(config: &Config, weights: &dyn Weights) -> CudaDevice {
    // None of its tokens are drawn.
    let launches = Launches::Persistent;
    device(config, weights, Options { launches, draws: false, ..Options::new(LIMITS) })
}

/// All that an op of a sparse layer may have written for some tokens, and x.
fn written(device: &CudaDevice, op: Op, config: &Config, n_tokens: usize) -> Vec<u32> {
    let buffer = match op {
        Op::NormRoute { .. } => Buffer::Routes,
        Op::ExpertGateUp { .. } => Buffer::ExpertH,
        Op::NormGateUp { .. } => Buffer::H,
        Op::NormHead => {
            let logits = (0..n_tokens).flat_map(|output| device.logits(output));
            return logits.map(|logit| logit.to_bits()).collect();
        }
        Op::Embed | Op::ProjAdd { .. } | Op::DownAdd { .. } | Op::ExpertDownAdd { .. } => Buffer::X,
        Op::NormQkv { .. } | Op::RopeStore { .. } => Buffer::Q,
        Op::Attend { .. } => Buffer::A,
    };
    let values = device.read(buffer);
    values[..n_tokens * buffer.width(config)].iter().map(|value| value.to_bits()).collect()
}

/// The plan stopped after any op leaves the same bits in the persistent kernel as by single launches.
fn stops_do_not_show(name: &str, config: &Config, device: &mut CudaDevice) {
    let ops = plan(config);
    let mut works = Vec::new();
    for lane in 0..8 {
        let own = span(lane, 9, 0);
        fill(device, config, &own, lane);
        works.push(Work::new(&tokens(1, 60 + lane, config.vocab), 8, Vec::new(), own));
    }
    for n in [1, 2, 4, 5, 8] {
        let lanes: Vec<_> = works[..n].iter().map(Work::lane).collect();
        for end in 1..=ops.len() {
            let [truth, ours] = [Launches::Ops, Launches::Persistent].map(|launches| {
                device.use_launches(launches).unwrap();
                device.run(&ops[..end], &Step { lanes: &lanes }).unwrap();
                written(device, ops[end - 1], config, n)
            });
            let differs = ours.iter().zip(&truth).position(|(a, b)| a != b);
            let op = ops[end - 1];
            assert_eq!(differs, None, "{name}: {op} of {n} lanes, the element that differs first");
        }
    }
}

fn the_persistent_kernel_does_not_show(name: &str, config: &Config, weights: &dyn Weights) {
    let mut device = persistent(config, weights);
    stops_do_not_show(name, config, &mut device);
    ways::do_not_show(name, config, &mut device, &[Launches::Graph, Launches::Persistent], 20);
}

#[test]
fn the_persistent_kernel_computes_the_same_experts() {
    if !gpu_is_there() {
        return;
    }
    let wide = Mixture { count: 64, chosen: 8, width: 768, ..SPREAD };
    let sizes = [(30, ODD), (300, SPREAD), (2048, wide)];
    let others = [OTHERS[0], OTHERS[1], OTHERS[3]].map(|mixture| (270, mixture));
    for_each_size(&[&sizes[..], &others].concat(), the_persistent_kernel_does_not_show);
}

#[test]
fn the_persistent_kernel_computes_the_same_experts_in_every_form() {
    if !gpu_is_there() {
        return;
    }
    let all = forms::all();
    let [int8, int4, offsets, table] = [all[0], all[1], all[7], all[15]];
    for_each(&[Some(int4), Some(int8), Some(offsets), Some(table), None], |form| {
        let wide = Mixture { count: 16, chosen: 8, width: 768, ..SPREAD };
        let config = model(if *form == Some(int4) { 2048 } else { 520 }, wide);
        let weights =
            form.map_or_else(|| mixed(&config), |form| Mixed::new(&config, &[form], |_| Some(0)));
        the_persistent_kernel_does_not_show(&format!("{form:?}"), &config, &weights);
    });
}

/// The smallest of them, in every kernel: what a sanitizer has the patience for.
#[test]
fn a_few_tokens_of_small_experts() {
    if !gpu_is_there() {
        return;
    }
    let config = model(30, ODD);
    let mut device = persistent(&config, &random(&config));
    ways::do_not_show("small", &config, &mut device, &[Launches::Graph, Launches::Persistent], 1);
}

/// `Auto` gives the graph's bits, whichever way it takes.
#[test]
fn auto_computes_the_experts_of_the_graph() {
    if !gpu_is_there() {
        return;
    }
    let (config, graph) = (model(300, SPREAD), Options::new(LIMITS));
    let auto = Options { launches: Launches::Auto, ..graph };
    let [auto, graph] = [auto, graph].map(|options| {
        let mut device = device(&config, &random(&config), options);
        device.warm_up().unwrap();
        (in_blocks(&config, &mut device, &[150, 149, 1]), device.details().unwrap())
    });
    assert!(auto.0 == graph.0, "{} and {}", auto.1, graph.1);
    assert!(!auto.1.contains("because"), "the kernel was refused: {}", auto.1);
}
