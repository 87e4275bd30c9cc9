//! Times tokens by the persistent kernel and by graphs on one device, in turn, and compares what they computed.
//! Prints one JSON object per line; leaves with an error where bits differ.
//!
//!     cargo run --release -p weft-cuda --example decode_times -- qwen3-0.6b 200,8000 1,2,4 | tee times.jsonl
//!
//! The arguments are a named shape, contexts and numbers of lanes. Every lane has rows of its own.

mod prefilled;

use std::time::Instant;

use prefilled::{BLOCK, Failed, median, place, prefill};
use weft_core::config::Config;
use weft_core::device::{Device, Lane, Limits, OneToken, Step};
use weft_core::kv::{PAGE_ROWS, pages_for};
use weft_core::plan::plan;
use weft_core::sampling::{Sampler, Sampling};
use weft_core::shapes;
use weft_core::weights::{Forms, RandomWeights};
use weft_cuda::{CudaDevice, Launches, Options};

const ROUNDS: usize = 8;
/// Tokens of a lane that are decoded, begun ahead: as many as an answer has in one launch.
const AHEAD: usize = 64;

/// Settings of an answer that is drawn.
fn drawn() -> Sampling {
    Sampling {
        temperature: 0.7,
        top_k: 20,
        top_p: 0.8,
        presence_penalty: 1.0,
        ..Sampling::default()
    }
}

/// Decodes tokens of every lane, begun ahead: the time of one in µs, and all of them.
fn decode(
    device: &mut CudaDevice,
    config: &Config,
    (context, n_lanes): (usize, usize),
    settings: &Sampling,
) -> Result<(f64, Vec<u32>), Failed> {
    let ops = plan(config);
    let sampler = |lane: usize| {
        let settings = Sampling { seed: lane as u64, ..settings.clone() };
        Sampler::new(&settings, &[], &[], config.vocab)
    };
    let mut samplers = (0..n_lanes).map(sampler).collect::<Result<Vec<_>, _>>()?;
    let mut next: Vec<u32> = (0..n_lanes as u32).map(|lane| 11 + lane).collect();
    let (mut said, start) = (Vec::new(), Instant::now());
    for n in 0..AHEAD {
        let next_of = |(lane, token)| place(lane, context + 1 + n, AHEAD - n, token);
        let places: Vec<OneToken> = next.iter().copied().enumerate().map(next_of).collect();
        let lanes: Vec<Lane<'_>> = places.iter().map(OneToken::lane).collect();
        let drawn: Vec<_> = samplers.iter().map(Some).collect();
        device.decode(&ops, &Step { lanes: &lanes }, &drawn, AHEAD - 1 - n)?;
        for (lane, sampler) in samplers.iter_mut().enumerate() {
            next[lane] = device.chosen(lane, 0).ok_or("a token was left to the host")?;
            sampler.accept(next[lane])?;
        }
        said.extend_from_slice(&next);
    }
    Ok((start.elapsed().as_secs_f64() * 1e6 / AHEAD as f64, said))
}

/// Times of all rounds, in µs of a token.
#[derive(Default)]
struct Samples {
    ahead: Vec<f64>,
    drawn: Vec<f64>,
    single: Vec<f64>,
}

fn measure(
    device: &mut CudaDevice,
    name: &str,
    config: &Config,
    context: usize,
    n_lanes: usize,
) -> Result<bool, Failed> {
    let ops = plan(config);
    let places: Vec<OneToken> =
        (0..n_lanes).map(|lane| place(lane, context + 1, AHEAD, 11 + lane as u32)).collect();
    prefill(device, &ops, &places, config.vocab)?;
    let lanes: Vec<Lane<'_>> = places.iter().map(OneToken::lane).collect();
    let step = Step { lanes: &lanes };
    let rows = |device: &CudaDevice| -> Vec<Vec<f32>> {
        (0..n_lanes).map(|lane| device.logits(lane).to_vec()).collect()
    };
    let ways = [Launches::Graph, Launches::Persistent];
    let mut samples = [Samples::default(), Samples::default()];
    let (mut same, mut expected) = (true, None);
    for _ in 0..ROUNDS {
        for (way, samples) in ways.into_iter().zip(&mut samples) {
            device.use_launches(way)?;
            let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
            let (ahead, best) = decode(device, config, (context, n_lanes), &greedy)?;
            let (time, sampled) = decode(device, config, (context, n_lanes), &drawn())?;
            let start = Instant::now();
            for _ in 0..10 {
                device.run(&ops, &step)?;
            }
            samples.single.push(start.elapsed().as_secs_f64() * 1e5);
            samples.ahead.push(ahead);
            samples.drawn.push(time);
            let found = (rows(device), best, sampled);
            same &= *expected.get_or_insert_with(|| found.clone()) == found;
        }
    }
    let [graph, persistent] = samples;
    let replay = median(device.replay_us(&ops, &step, 20)?);
    let bytes: u64 = ops
        .iter()
        .map(|op| op.bytes(config, &Forms::default(), device.dtype(), &step.work()))
        .sum();
    let time = median(persistent.ahead.clone());
    println!(
        r#"{{"shape": "{name}", "context": {context}, "lanes": {n_lanes}, "same_bits": {same}, "persistent_us": {time:.1}, "tok_per_s": {:.0}, "gb_per_s": {:.0}, "persistent_drawn_us": {:.1}, "persistent_one_token_us": {:.1}, "graph_us": {:.1}, "graph_ahead_us": {:.1}, "graph_drawn_us": {:.1}, "graph_replay_us": {replay:.1}, "over_graph": {:.3}, "ahead_samples_us": {:.1?}}}"#,
        1e6 * n_lanes as f64 / time,
        bytes as f64 / time / 1e3,
        median(persistent.drawn),
        median(persistent.single),
        median(graph.single.clone()),
        median(graph.ahead.clone()),
        median(graph.drawn),
        median(graph.ahead) / time,
        persistent.ahead,
    );
    Ok(same)
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "qwen3-0.6b".to_owned());
    let list = |text: Option<String>, or: &str| -> Result<Vec<usize>, _> {
        text.unwrap_or_else(|| or.to_owned()).split(',').map(str::parse).collect()
    };
    let contexts = list(arguments.next(), "200")?;
    let lanes = list(arguments.next(), "1")?;
    let config = shapes::config(&name).ok_or("no such shape")?;
    let longest = contexts.iter().max().ok_or("no context")? + AHEAD + 1;
    let most_lanes = lanes.iter().max().ok_or("no lanes")?;
    let limits = Limits {
        step_tokens: BLOCK,
        step_outputs: 8,
        positions: longest.next_multiple_of(PAGE_ROWS),
        pages: most_lanes * pages_for(longest),
    };
    let options = Options { launches: Launches::Persistent, ..Options::new(limits) };
    let mut device = CudaDevice::new(&config, &RandomWeights::new(&config, 1), options)?;
    let mut same = true;
    for context in contexts {
        for n_lanes in &lanes {
            same &= measure(&mut device, &name, &config, context, *n_lanes)?;
        }
    }
    if same { Ok(()) } else { Err("bits differ".into()) }
}
