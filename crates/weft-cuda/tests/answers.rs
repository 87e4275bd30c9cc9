//! Answers through the engine on the GPU: the same bits twice, with the context computed or kept, cut
//! anywhere, alone or beside other lanes, by single launches, as a graph or as one kernel.
//!
//! Without a GPU each test is skipped; with `WEFT_REQUIRE_GPU=1` it fails.

mod gpu;

use std::sync::{Arc, Mutex};

use gpu::gpu_is_there;
use weft_core::chunk::{Composition, Kind, Piece, Repair};
use weft_core::config::{Config, Experts};
use weft_core::device::{Device, Limits, MAX_LANES};
use weft_core::engine::{Engine, Request, Token};
use weft_core::model::Model;
use weft_core::sampling::Sampling;
use weft_core::shapes;
use weft_core::tokenizer::Tokenizer;
use weft_cuda::{CudaDevice, Launches, Options};
use weft_testing::drafts;
use weft_testing::exact::{Size, answers_are_the_cold_ones};
use weft_testing::{in_tree, tokens};

const ANSWER: usize = 1000;
const LIMITS: Limits =
    Limits { step_tokens: 512, step_outputs: MAX_LANES, positions: 4096, pages: 512 };

/// Qwen3-0.6B's widths in a few layers.
fn model() -> Model {
    model_of(Config { layers: 4, ..shapes::config("qwen3-0.6b").unwrap() })
}

/// Qwen3-30B-A3B's widths in two layers with fewer experts.
fn sparse_model() -> Model {
    let shape = shapes::config("qwen3-30b-a3b").unwrap();
    let experts = shape.experts.clone().map(|experts| Experts { count: 16, ..experts });
    model_of(Config { layers: 2, experts, ..shape })
}

fn model_of(shape: Config) -> Model {
    let file = in_tree("crates/weft-core/tests/prompts/tokenizer.json");
    let tokenizer = Tokenizer::from_file(file).unwrap();
    let config = Config { vocab: tokenizer.vocab_size() as usize, ..shape };
    Model::random(config, 3, Arc::new(tokenizer))
}

fn device(model: &Model, launches: Launches, limits: Limits) -> Box<dyn Device> {
    let options = Options { launches, ..Options::new(limits) };
    Box::new(CudaDevice::new(&model.config, &*model.weights, options).unwrap())
}

fn engine(model: &Model, launches: Launches) -> Engine {
    Engine::new(model, device(model, launches, LIMITS))
}

/// Two devices of a process must not run long contexts at the same time (`sent.cuh`).
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A system prompt, two documents and a question of its own.
fn prompt(question: u32) -> Composition {
    let piece = |kind, n, seed| Piece::exact(kind, tokens(n, seed, 256));
    Composition {
        pieces: vec![
            piece(Kind::System, 100, 1),
            piece(Kind::Context, 700, 2),
            piece(Kind::Context, 333, 3),
            piece(Kind::Query, 30, 100 + question),
        ],
        repair: Repair::None,
    }
}

fn request(question: u32, sampling: &Sampling) -> Request {
    let sampling = Sampling { seed: u64::from(question), ..sampling.clone() };
    Request::new(prompt(question), sampling)
}

fn answer(engine: &mut Engine, request: Request) -> Vec<Token> {
    engine.generate_batch(vec![request]).unwrap().remove(0).tokens
}

fn assert_same(tokens: &[Token], truth: &[Token], how: &str) {
    assert_eq!(tokens.len(), ANSWER, "{how}");
    let differs = tokens.iter().zip(truth).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{how}: the token that differs first");
}

/// Answers in every way that must not show; gives what all of them said.
fn said_every_way(model: &Model, launches: Launches, sampling: &Sampling) -> Vec<Token> {
    let mut engine = engine(model, launches);
    let truth = answer(&mut engine, request(0, sampling).cold());
    for how in ["computed and kept", "kept", "kept, once more"] {
        let prompt = request(0, sampling);
        let cached = engine.preview(&prompt.prompt).cached_tokens();
        assert_eq!(cached > 0, how != "computed and kept", "{cached} tokens, {how}");
        assert_same(&answer(&mut engine, prompt), &truth, how);
    }
    let others = [7, 0, 8, 9].map(|question| request(question, sampling));
    let beside = engine.generate_batch(others.into()).unwrap();
    assert_same(&beside[1].tokens, &truth, "beside three others");
    let alone = answer(&mut engine, request(9, sampling).cold());
    assert_same(&beside[3].tokens, &alone, "another question, beside three others");
    assert!(alone != truth, "questions must matter");
    truth
}

fn the_same_bits_every_way(model: impl Fn() -> Model, sampling: &Sampling) {
    if !gpu_is_there() {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock();
    let model = model();
    let graph = said_every_way(&model, Launches::Graph, sampling);
    let persistent = said_every_way(&model, Launches::Persistent, sampling);
    assert_same(&persistent, &graph, "one kernel and graph");
}

fn drawn() -> Sampling {
    Sampling {
        temperature: 1.0,
        top_k: 20,
        max_tokens: Some(ANSWER),
        ignore_eos: true,
        ..Sampling::default()
    }
}

/// Drawn where the logits are, many tokens ahead of the host.
#[test]
fn a_thousand_tokens_are_the_same() {
    the_same_bits_every_way(model, &drawn());
}

/// Log-probabilities show differences that tokens do not.
#[test]
fn a_thousand_tokens_have_the_same_log_probabilities() {
    the_same_bits_every_way(model, &Sampling { logprobs: Some(4), ..drawn() });
}

/// The same of a model with experts, whose choice is made on the GPU too.
#[test]
fn a_thousand_tokens_of_experts_have_the_same_log_probabilities() {
    the_same_bits_every_way(sparse_model, &Sampling { logprobs: Some(4), ..drawn() });
}

/// Prompts that share prefixes of any length, kept in pages, memory and files, by every kind of launch; the truth
/// is by single launches, cold and alone.
#[test]
fn an_exact_answer_is_the_cold_one_whatever_is_kept() {
    if !gpu_is_there() {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock();
    let model = model();
    let limits = Limits { step_tokens: 512, step_outputs: MAX_LANES, positions: 1600, pages: 110 };
    let size = Size { limits, rounds: 8, longest_prompt: 1200, longest_answer: 150 };
    let truth = |limits| device(&model, Launches::Ops, limits);
    for (seed, launches) in (0..).zip([Launches::Graph, Launches::Persistent, Launches::Auto]) {
        let make = |limits| device(&model, launches, limits);
        answers_are_the_cold_ones(&model, &make, &truth, size, seed);
    }
}

/// Answers with drafts, right and wrong, by every kind of launch.
#[test]
fn drafts_change_nothing() {
    if !gpu_is_there() {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock();
    let model = model();
    let limits = Limits { step_tokens: 512, step_outputs: MAX_LANES, positions: 1600, pages: 200 };
    let size = Size { limits, rounds: 8, longest_prompt: 1200, longest_answer: 150 };
    for (seed, launches) in (0..).zip([Launches::Graph, Launches::Persistent, Launches::Auto]) {
        let make = |limits| device(&model, launches, limits);
        drafts::drafts_change_nothing(&model, &make, size, seed);
    }
}
