//! The persistent kernel takes over in the middle of answers, as it does after a start that compiled
//! it: neither tokens, logits, shares nor rows that were there before show it.
//!
//! Without a GPU each test is skipped; with `WEFT_REQUIRE_GPU=1` it fails.

mod gpu;
mod samplers;

use gpu::gpu_is_there;
use samplers::{KINDS, moved_on, samplers};
use weft_core::config::Config;
use weft_core::device::{Device, Inspect, Lane, Limits, Outputs, Span, Step};
use weft_core::plan::plan;
use weft_core::sampling::Sampler;
use weft_core::shapes;
use weft_core::weights::RandomWeights;
use weft_cuda::{CudaDevice, Launches, Options};
use weft_testing::{Work, fill, span, tokens};

const LIMITS: Limits = Limits { pages: 64, positions: 2560, ..weft_testing::LIMITS };
/// Rows of each lane before its first token: the measurement of a kernel uses the same pages.
const OLD: usize = 130;
const TOKENS: usize = 40;

/// Qwen3-0.6B's widths in a few layers, where the kernel is faster than the graph.
fn config() -> Config {
    Config { layers: 3, vocab: 3001, ..shapes::config("qwen3-0.6b").unwrap() }
}

fn device(config: &Config, launches: Launches) -> CudaDevice {
    let options = Options { launches, ..Options::new(LIMITS) };
    CudaDevice::new(config, &RandomWeights::new(config, 7), options).unwrap()
}

/// Lanes with old rows in the first pages, and one new token with room for those that follow.
fn works(config: &Config, devices: &mut [CudaDevice], n_lanes: usize, seed: u32) -> Vec<Work> {
    let lane = |lane: usize| {
        let first = lane as u32 * 4;
        let old = span(first, OLD, 0);
        devices.iter_mut().for_each(|device| fill(device, config, &old, seed + lane as u32));
        let own = Span { len: 1, ..span(first + old.pages.len() as u32, TOKENS + 1, OLD) };
        let new = tokens(1, seed + lane as u32, config.vocab);
        Work { outputs: Outputs::Last, ..Work::new(&new, 0, vec![old], own) }
    };
    (0..n_lanes).map(lane).collect()
}

/// All that an answer may show, and all rows of its lanes afterwards.
#[derive(Debug, PartialEq)]
struct Decoded {
    tokens: Vec<Vec<Option<u32>>>,
    shares: Vec<Vec<Vec<f32>>>,
    logits: Vec<Vec<f32>>,
    rows: Vec<(Vec<f32>, Vec<f32>)>,
}

fn decode(
    device: &mut CudaDevice,
    config: &Config,
    works: &[Work],
    mut samplers: Vec<Sampler>,
) -> Decoded {
    let ops = plan(config);
    let mut now = works.to_vec();
    let (mut tokens, mut shares) = (Vec::new(), Vec::new());
    for n in 0..TOKENS {
        let lanes: Vec<Lane<'_>> = now.iter().map(Work::lane).collect();
        let drawn: Vec<_> = samplers.iter().map(Some).collect();
        device.decode(&ops, &Step { lanes: &lanes }, &drawn, TOKENS - 1 - n).unwrap();
        let next: Vec<Option<u32>> = (0..works.len()).map(|lane| device.chosen(lane, 0)).collect();
        shares.push((0..works.len()).map(|lane| device.attention(lane, 0)).collect());
        for (lane, token) in next.iter().enumerate() {
            let token = token.expect("the device chooses");
            samplers[lane].accept(token).unwrap();
            now[lane] = moved_on(&works[lane], token, n + 1);
        }
        tokens.push(next);
    }
    let last = config.layers as u16 - 1;
    let slots = works.iter().flat_map(|work| {
        let [old, own] = &work.spans[..] else { panic!("two spans") };
        let old = (0..OLD).map(|row| old.slot(row));
        old.chain((0..TOKENS).map(|row| own.slot(row))).collect::<Vec<u32>>()
    });
    let slots: Vec<u32> = slots.collect();
    Decoded {
        logits: (0..works.len()).map(|lane| device.logits(lane).to_vec()).collect(),
        rows: slots.iter().flat_map(|slot| [0, last].map(|l| device.kv_row(l, *slot))).collect(),
        tokens,
        shares,
    }
}

#[test]
fn nobody_notices_when_the_kernel_takes_over() {
    if !gpu_is_there() {
        return;
    }
    let config = config();
    let mut devices = [Launches::Auto, Launches::Graph].map(|way| device(&config, way));
    for (n_lanes, kind) in [(1, 0), (1, KINDS), (2, KINDS), (4, 0), (7, KINDS)] {
        // In the first step, and later; with the times that are on disk, and with new ones.
        for (after, measures) in [(0, false), (1, true), (7, false), (23, true)] {
            let seed = (n_lanes * 100 + after) as u32;
            let works = works(&config, &mut devices, n_lanes, seed);
            let [ours, theirs] = &mut devices;
            let draws = || samplers(kind, n_lanes, seed, config.vocab);
            let truth = decode(theirs, &config, &works, draws());
            ours.delay_persistent(after, measures);
            assert!(ours.describe().ends_with("graph"), "{}", ours.describe());
            let decoded = decode(ours, &config, &works, draws());
            let case = format!("{n_lanes} lanes, kind {kind}, after {after} steps, {measures}");
            assert_eq!(decoded.tokens, truth.tokens, "{case}");
            assert!(decoded == truth, "{case}");
            let details = ours.details().unwrap_or_default();
            assert!(!details.contains("because") && !details.contains("until"), "{details}");
            assert!(ours.describe().ends_with("persistent"), "{details}");
        }
    }
}

/// Steps run while the kernel is compiled, and a device may go meanwhile.
#[test]
fn a_device_may_go_while_its_kernel_is_compiled() {
    if !gpu_is_there() {
        return;
    }
    // A vocabulary that no other test has: its kernels are in no cache.
    let vocab = 2000 + std::process::id() as usize % 900;
    let config = Config { vocab, ..config() };
    let mut first = device(&config, Launches::Auto);
    let works = works(&config, std::slice::from_mut(&mut first), 1, 5);
    let draws = || samplers(0, 1, 5, config.vocab);
    let said = decode(&mut first, &config, &works, draws());
    assert!(first.details().unwrap_or_default().contains("until"), "compiled in no time");
    drop(first);
    let mut second = device(&config, Launches::Graph);
    fill(&mut second, &config, &works[0].spans[0], 5);
    assert!(decode(&mut second, &config, &works, draws()) == said);
}
