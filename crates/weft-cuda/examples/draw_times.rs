//! Times tokens by how they are chosen, on one device: each is chosen by the GPU and fed to the next step. Prints one
//! JSON object per line.
//!
//!     cargo run --release -p weft-cuda --example draw_times -- qwen3-0.6b 1,8 2 | tee times.jsonl
//!
//! The arguments are a named shape, numbers of lanes, and of layers where not all are wanted. Every lane begins at
//! row 192. The last way is the host's, from logits that it fetches.

use std::time::Instant;

use weft_core::config::Config;
use weft_core::device::{Device, Lane, Limits, OneToken, Step};
use weft_core::plan::{Op, plan};
use weft_core::sampling::{Sampler, Sampling};
use weft_core::shapes;
use weft_core::weights::RandomWeights;
use weft_cuda::{CudaDevice, Options};

const ROUNDS: usize = 5;
/// Rows before the first token, full pages of them; and tokens, as many as a page holds.
const BEFORE: usize = 192;
const TOKENS: usize = 64;
const PAGES_OF_LANE: usize = 4;

type Failed = Box<dyn std::error::Error>;

/// The ways of choosing a token, and whether the GPU does.
fn ways() -> [(&'static str, Sampling, bool); 8] {
    let plain = Sampling { seed: 1, ..Sampling::default() };
    let with = |change: &dyn Fn(&mut Sampling)| {
        let mut sampling = plain.clone();
        change(&mut sampling);
        sampling
    };
    [
        ("greedy", with(&|s| s.temperature = 0.0), true),
        ("top_k 20, top_p 0.95", Sampling { seed: 1, ..Sampling::thinking() }, true),
        ("all", plain.clone(), true),
        ("top_p 0.95", with(&|s| s.top_p = 0.95), true),
        ("min_p 0.05", with(&|s| s.min_p = 0.05), true),
        ("top_k 1000, top_p 0.95", with(&|s| (s.top_k, s.top_p) = (1000, 0.95)), true),
        ("all, temperature 100", with(&|s| s.temperature = 100.0), true),
        ("top_p 0.95 by the host", with(&|s| s.top_p = 0.95), false),
    ]
}

/// The time of a step in µs, over a page of tokens.
fn answer(
    device: &mut CudaDevice,
    config: &Config,
    ops: &[Op],
    n_lanes: usize,
    (sampling, on_gpu): (&Sampling, bool),
) -> Result<f64, Failed> {
    let sampler = |lane| {
        let sampling = Sampling { seed: lane as u64, ..sampling.clone() };
        Sampler::new(&sampling, &[], &[], config.vocab)
    };
    let mut samplers = (0..n_lanes).map(sampler).collect::<Result<Vec<_>, _>>()?;
    let mut next: Vec<u32> = (0..n_lanes as u32).collect();
    let start = Instant::now();
    for row in 0..TOKENS {
        let place = |lane| OneToken::new(lane, PAGES_OF_LANE, BEFORE + row + 1, next[lane]);
        let places: Vec<OneToken> = (0..n_lanes).map(place).collect();
        let lanes: Vec<Lane<'_>> = places.iter().map(OneToken::lane).collect();
        let drawn: Vec<_> = samplers.iter().map(|sampler| on_gpu.then_some(sampler)).collect();
        device.decode(ops, &Step { lanes: &lanes }, &drawn, TOKENS)?;
        for (lane, sampler) in samplers.iter_mut().enumerate() {
            next[lane] = match device.chosen(lane, 0) {
                Some(token) => {
                    sampler.accept(token)?;
                    token
                }
                None if on_gpu => return Err("the GPU left a token to the host".into()),
                None => sampler.sample(device.logits(lane))?.token,
            };
        }
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / TOKENS as f64)
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "qwen3-0.6b".to_owned());
    let lanes = arguments.next().unwrap_or_else(|| "1".to_owned());
    let lanes = lanes.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let mut config = shapes::config(&name).ok_or("no such shape")?;
    if let Some(layers) = arguments.next() {
        config.layers = layers.parse::<usize>()?.min(config.layers);
    }
    let most = lanes.iter().max().ok_or("no lanes")?;
    let limits = Limits {
        step_tokens: 8,
        step_outputs: 8,
        positions: BEFORE + TOKENS,
        pages: most * PAGES_OF_LANE,
    };
    let mut device =
        CudaDevice::new(&config, &RandomWeights::new(&config, 1), Options::new(limits))?;
    let ops = plan(&config);
    for n_lanes in lanes {
        // The host takes many times as long, and no less for each further lane.
        for (way, sampling, on_gpu) in ways().into_iter().filter(|way| way.2 || n_lanes == 1) {
            let mut time = || answer(&mut device, &config, &ops, n_lanes, (&sampling, on_gpu));
            time()?;
            let mut samples = (0..ROUNDS).map(|_| time()).collect::<Result<Vec<_>, _>>()?;
            samples.sort_by(f64::total_cmp);
            println!(
                r#"{{"shape": "{name}", "layers": {}, "lanes": {n_lanes}, "way": "{way}", "median_us": {:.1}, "samples_us": {samples:.1?}}}"#,
                config.layers,
                samples[ROUNDS / 2],
            );
        }
    }
    Ok(())
}
