//! Two devices in one process, each with its thread, decode long contexts at the same time: they
//! take turns, and each computes what it computes alone.
//!
//! Without a GPU each test is skipped; with `WEFT_REQUIRE_GPU=1` it fails.

mod gpu;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use gpu::gpu_is_there;
use weft_core::config::Config;
use weft_core::device::{Device, Lane, Limits, MAX_LANES, OneToken, Step};
use weft_core::kv::pages_for;
use weft_core::plan::plan;
use weft_core::sampling::{Sampler, Sampling};
use weft_core::shapes;
use weft_core::weights::RandomWeights;
use weft_cuda::{CudaDevice, Launches, Options};

/// Rows of the contexts: many sections, so that blocks on all multiprocessors wait for parts.
const ROWS: usize = 12_000;
const TOKENS: usize = 150;
const LIMITS: Limits =
    Limits { step_tokens: 32, step_outputs: MAX_LANES, positions: 16_384, pages: 256 };

/// Qwen3-0.6B's widths in a few layers: the model of `take_over.rs`, whose kernels are the same.
fn config() -> Config {
    Config { layers: 3, vocab: 3001, ..shapes::config("qwen3-0.6b").unwrap() }
}

fn device(config: &Config, launches: Launches, seed: u64) -> CudaDevice {
    let options = Options { launches, ..Options::new(LIMITS) };
    CudaDevice::new(config, &RandomWeights::new(config, seed), options).unwrap()
}

/// Decodes from an empty cache of zeros; the tokens and the bits of the last logits.
fn decode(device: &mut CudaDevice, config: &Config, sampling: &Sampling) -> (Vec<u32>, Vec<u32>) {
    let ops = plan(config);
    let mut sampler = Sampler::new(sampling, &[], &[], config.vocab).unwrap();
    let (mut tokens, mut next) = (Vec::new(), 1);
    for n in 0..TOKENS {
        let rows = ROWS + n;
        let place = OneToken::new(0, pages_for(rows), rows, next);
        let lanes: [Lane<'_>; 1] = [place.lane()];
        device.decode(&ops, &Step { lanes: &lanes }, &[Some(&sampler)], TOKENS - 1 - n).unwrap();
        next = device.chosen(0, 0).expect("a token");
        sampler.accept(next).unwrap();
        tokens.push(next);
    }
    (tokens, device.logits(0).iter().map(|logit| logit.to_bits()).collect())
}

#[test]
fn devices_that_decode_at_the_same_time_take_turns() {
    if !gpu_is_there() {
        return;
    }
    let config = &config();
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let drawn = Sampling { temperature: 1.0, top_k: 20, seed: 3, ..Sampling::default() };
    // Among all ranks: sixteen blocks meet.
    let wide = Sampling { temperature: 1.0, top_k: 0, seed: 4, ..Sampling::default() };
    let ways = [
        ((Launches::Graph, &greedy), (Launches::Graph, &drawn)),
        ((Launches::Graph, &wide), (Launches::Ops, &wide)),
        ((Launches::Persistent, &greedy), (Launches::Graph, &wide)),
        ((Launches::Persistent, &drawn), (Launches::Persistent, &greedy)),
    ];
    for (first, second) in ways {
        let sides = [(first, 1), (second, 2)];
        let alone = sides.map(|((way, sampling), seed)| {
            decode(&mut device(config, way, seed), config, sampling)
        });
        let (meet, start) = (&Barrier::new(2), Instant::now());
        let together = std::thread::scope(|scope| {
            let sides = sides.map(|((way, sampling), seed)| {
                scope.spawn(move || {
                    let mut device = device(config, way, seed);
                    meet.wait();
                    decode(&mut device, config, sampling)
                })
            });
            sides.map(|side| side.join().unwrap())
        });
        assert!(together == alone, "{first:?} beside {second:?}");
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    }
}
