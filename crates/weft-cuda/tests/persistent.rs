//! The persistent kernel against launches one after the other, bit for bit: the plan stopped after any op, many
//! tokens in one launch, launches that are ended or that lose a result.
//!
//! Without a GPU each test says so and passes, unless `WEFT_REQUIRE_GPU=1`.

#[path = "../../weft/tests/common/mod.rs"]
mod common;
mod gpu;

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use common::{LIMITS, Work, config, fill, poison, span, tokens};
use gpu::gpu_is_there;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft::config::Config;
use weft::device::{Buffer, Device, Lane, Outputs, Span, Step};
use weft::plan::{Op, plan};
use weft::weights::RandomWeights;
use weft_cuda::{CudaDevice, Launches, Options};

fn device(config: &Config, launches: Launches) -> CudaDevice {
    let options = Options { launches, ..Options::new(LIMITS) };
    let mut device = CudaDevice::new(config, &RandomWeights::new(config, 7), options).unwrap();
    poison(&mut device, config);
    device
}

/// Sizes that fill tiles and units exactly, hardly, and over; one, several and many sections to a block; blocks with
/// no tiles and with more than are computed at once; with and without norms, bias and a head of its own.
fn sizes(name: &str) -> Config {
    let (family, rest) = match name {
        "wide" => (
            "qwen3",
            r#""hidden_size": 4096, "num_hidden_layers": 1, "num_attention_heads": 32,
               "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
               "vocab_size": 1000, "tie_word_embeddings": false"#,
        ),
        "small" => (
            "qwen3",
            r#""hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
               "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
               "vocab_size": 3001, "tie_word_embeddings": true"#,
        ),
        "odd" => (
            "llama",
            r#""hidden_size": 301, "num_hidden_layers": 2, "num_attention_heads": 15,
               "num_key_value_heads": 3, "head_dim": 46, "intermediate_size": 533,
               "vocab_size": 397, "tie_word_embeddings": false"#,
        ),
        family => return config(family),
    };
    let json = format!(
        r#"{{"model_type": "{family}", "rope_theta": 10000.0, "max_position_embeddings": 512, {rest}}}"#
    );
    Config::from_json(json.as_bytes()).unwrap()
}

const WAYS: [Launches; 2] = [Launches::Persistent, Launches::Ops];
const SIZES: [&str; 5] = ["qwen3", "qwen2", "odd", "small", "wide"];

/// Lanes with old spans of some lengths and homes, and some new tokens after them.
type Plans = Vec<(Vec<(usize, usize)>, usize)>;

fn lanes() -> impl Strategy<Value = Plans> {
    let old = prop::collection::vec((1_usize..330, 0_usize..150), 0..3);
    prop::collection::vec((old, 1_usize..3), 1..=8).prop_map(|mut lanes: Plans| {
        // Eight tokens are the most.
        let n_new = if lanes.len() > 4 { 1 } else { 2 };
        lanes.iter_mut().for_each(|lane| lane.1 = lane.1.min(n_new));
        lanes
    })
}

/// Turns them into work on both devices, whose old rows hold the same numbers. A lane's last span has pages for
/// `room` rows more.
fn works(
    config: &Config,
    devices: &mut [CudaDevice; 2],
    plans: &Plans,
    seed: u32,
    room: usize,
) -> Vec<Work> {
    let mut page = 0;
    let mut works = Vec::new();
    for (lane, (old, n_new)) in plans.iter().enumerate() {
        let (mut position, mut left) = (0, Vec::new());
        // All lanes together must fit the pages and the positions of the limits.
        let most = (320 / plans.len()).min(512 - 150 - n_new - room);
        for (rows, home) in old {
            let rows = (*rows).min(most - position);
            if rows == 0 {
                break;
            }
            let placed = Span { home_position: *home, ..span(page, rows, position) };
            devices.iter_mut().for_each(|device| fill(device, config, &placed, seed));
            page += placed.pages.len() as u32;
            position += rows;
            left.push(placed);
        }
        let new = tokens(*n_new, seed.wrapping_add(lane as u32), config.vocab);
        let own = span(page, n_new + room, position);
        page += own.pages.len() as u32;
        works.push(Work { outputs: Outputs::Last, ..Work::new(&new, 0, left, own) });
    }
    works
}

/// All that an op may have written, as bits.
fn written(device: &CudaDevice, op: Op, config: &Config, works: &[Work]) -> Vec<Vec<u32>> {
    let n_tokens: usize = works.iter().map(|work| work.tokens.len()).sum();
    let rows = |buffer: Buffer| device.read(buffer)[..n_tokens * buffer.width(config)].to_vec();
    let values = match op {
        Op::NormQkv { .. } => vec![rows(Buffer::Q), rows(Buffer::K), rows(Buffer::V)],
        Op::RopeStore { layer } => { works.iter().flat_map(|work| &work.store_at) }
            .flat_map(|slot| <[Vec<f32>; 2]>::from(device.kv_row(layer, *slot)))
            .collect(),
        Op::Attend { .. } => { (0..works.len()).map(|lane| device.attention(lane)) }
            .chain([rows(Buffer::A)])
            .collect(),
        Op::Embed | Op::ProjAdd { .. } | Op::DownAdd { .. } => vec![rows(Buffer::X)],
        Op::NormGateUp { .. } => vec![rows(Buffer::H)],
        Op::NormHead => (0..works.len()).map(|output| device.logits(output).to_vec()).collect(),
    };
    values.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
}

/// Runs the plan's first ops, one more each time, in both ways.
fn compare_prefixes(
    config: &Config,
    devices: &mut [CudaDevice; 2],
    works: &[Work],
) -> Result<(), TestCaseError> {
    let lanes: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
    let step = Step { lanes: &lanes };
    let ops = plan(config);
    for n in 1..=ops.len() {
        let results = devices.each_mut().map(|device| {
            device.run(&ops[..n], &step).unwrap();
            written(device, ops[n - 1], config, works)
        });
        for (i, (ours, theirs)) in results[0].iter().zip(&results[1]).enumerate() {
            let differ = ours.iter().zip(theirs).position(|(a, b)| a != b);
            prop_assert!(
                differ.is_none(),
                "{} is the first to differ: row {i}, element {differ:?}",
                ops[n - 1]
            );
        }
        prop_assert_eq!(results[0].len(), results[1].len());
    }
    Ok(())
}

#[test]
fn the_plan_stopped_after_any_op_left_the_same_bits() {
    if !gpu_is_there() {
        return;
    }
    for name in SIZES {
        let config = sizes(name);
        let devices = RefCell::new(WAYS.map(|way| device(&config, way)));
        TestRunner::new(Cases::with_cases(if name == "wide" { 3 } else { 10 }))
            .run(&(lanes(), any::<u32>()), |(plans, seed)| {
                let devices = &mut *devices.borrow_mut();
                let works = works(&config, devices, &plans, seed, 0);
                compare_prefixes(&config, devices, &works)
            })
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// The token with the largest logit, the first of equals.
fn best(logits: &[f32]) -> u32 {
    let better = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    (0..logits.len()).fold(0, better) as u32
}

/// What `n` tokens of every lane leave behind.
#[derive(Debug, PartialEq)]
struct Decoded {
    tokens: Vec<Vec<u32>>,
    logits: Vec<Vec<f32>>,
    shares: Vec<Vec<f32>>,
    rows: Vec<(Vec<f32>, Vec<f32>)>,
}

/// The lanes after `n` more tokens of each: the one that was drawn last stands at the end of its span.
fn moved_on(work: &Work, token: u32, n: usize) -> Work {
    let mut work = work.clone();
    let span = work.spans.last_mut().unwrap();
    span.len += n;
    work.store_at = vec![span.slot(span.len - 1)];
    work.positions[0] += n as u32;
    work.key_positions[0] += n as u32;
    work.tokens = vec![token];
    work
}

fn left_behind(
    device: &CudaDevice,
    config: &Config,
    works: &[Work],
    tokens: Vec<Vec<u32>>,
) -> Decoded {
    let lanes = 0..works.len();
    let slots = works.iter().flat_map(|work| {
        let span = work.spans.last().unwrap();
        (0..tokens.len()).map(|n| span.slot(span.len - 1 + n)).collect::<Vec<_>>()
    });
    let last = config.layers as u16 - 1;
    Decoded {
        logits: lanes.clone().map(|lane| device.logits(lane).to_vec()).collect(),
        shares: lanes.map(|lane| device.attention(lane)).collect(),
        rows: slots.map(|slot| device.kv_row(last, slot)).collect(),
        tokens,
    }
}

/// Token by token, the best logit each time.
fn step_by_step(device: &mut CudaDevice, config: &Config, works: &[Work], n: usize) -> Decoded {
    let ops = plan(config);
    let mut tokens: Vec<Vec<u32>> = Vec::new();
    for i in 0..n {
        let now: Vec<Work> = { works.iter().enumerate() }
            .map(|(lane, work)| match i {
                0 => work.clone(),
                _ => moved_on(work, tokens[i - 1][lane], i),
            })
            .collect();
        common::run(device, &ops, &now);
        tokens.push((0..works.len()).map(|lane| best(device.logits(lane))).collect());
    }
    left_behind(device, config, works, tokens)
}

/// In one launch, which is ended after `n` tokens if it would make more.
fn in_one_launch(
    device: &mut CudaDevice,
    config: &Config,
    works: &[Work],
    n: usize,
    most: usize,
) -> Decoded {
    let lanes: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
    let mut tokens: Vec<Vec<u32>> = Vec::new();
    let n_handed = device
        .decode_greedy(&Step { lanes: &lanes }, most, &mut |row| {
            tokens.push(row.to_vec());
            if tokens.len() == n { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(n_handed, tokens.len());
    left_behind(device, config, works, tokens)
}

#[test]
fn many_tokens_in_one_launch_are_those_of_one_after_the_other() {
    if !gpu_is_there() {
        return;
    }
    for name in SIZES {
        let config = sizes(name);
        let devices =
            RefCell::new([Launches::Persistent, Launches::Graph].map(|way| device(&config, way)));
        let cases = (lanes(), 1_usize..40, any::<u32>());
        TestRunner::new(Cases::with_cases(if name == "wide" { 3 } else { 8 }))
            .run(&cases, |(mut plans, n, seed)| {
                plans.iter_mut().for_each(|(_, n_new)| *n_new = 1);
                let devices = &mut *devices.borrow_mut();
                let works = works(&config, devices, &plans, seed, 45);
                let [ours, theirs] = devices;
                let expected = step_by_step(theirs, &config, &works, n);
                for _ in 0..2 {
                    prop_assert_eq!(&in_one_launch(ours, &config, &works, n, n), &expected);
                }
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// The smallest launch of several tokens: what a sanitizer has the patience for.
#[test]
fn a_few_tokens_of_a_small_model() {
    if !gpu_is_there() {
        return;
    }
    let config = sizes("qwen3");
    let mut devices = [Launches::Persistent, Launches::Graph].map(|way| device(&config, way));
    let works = works(&config, &mut devices, &vec![(vec![(300, 3)], 1); 2], 5, 8);
    let [ours, theirs] = &mut devices;
    let expected = step_by_step(theirs, &config, &works, 3);
    assert_eq!(in_one_launch(ours, &config, &works, 3, 3), expected);
}

/// What is chosen by measurement computes what either way does, and says what it was chosen by.
#[test]
fn the_faster_way_computes_the_same() {
    if !gpu_is_there() {
        return;
    }
    let config = sizes("small");
    let ops = plan(&config);
    let mut devices = [Launches::Auto, Launches::Graph].map(|way| device(&config, way));
    let told = devices[0].describe();
    assert!(told.contains("1×200 rows"), "{told}");
    let works = works(&config, &mut devices, &vec![(vec![(70, 3)], 1); 2], 5, 0);
    let [ours, theirs] = devices.each_mut().map(|device| common::run(device, &ops, &works));
    assert_eq!(ours, theirs);
}

/// A thousand short launches of random lanes, spans and lengths, ended at random: never a wrong token, never a hang.
#[test]
fn launches_ended_at_random_hand_out_the_same_tokens() {
    if !gpu_is_there() {
        return;
    }
    let config = sizes("qwen3");
    let devices =
        RefCell::new([Launches::Persistent, Launches::Graph].map(|way| device(&config, way)));
    let cases = (lanes(), prop::collection::vec((1_usize..24, 1_usize..45), 20), any::<u32>());
    TestRunner::new(Cases::with_cases(50))
        .run(&cases, |(mut plans, runs, seed)| {
            plans.iter_mut().for_each(|(_, n_new)| *n_new = 1);
            let devices = &mut *devices.borrow_mut();
            let works = works(&config, devices, &plans, seed, 45);
            let [ours, theirs] = devices;
            let expected = step_by_step(theirs, &config, &works, 24).tokens;
            for (n, most) in runs {
                let tokens = in_one_launch(ours, &config, &works, n, most).tokens;
                prop_assert_eq!(&tokens[..], &expected[..n.min(most)]);
            }
            Ok(())
        })
        .unwrap();
}

/// A result that never comes ends the launch with the op that waited, and the next launch is as good as ever.
#[test]
fn a_lost_result_is_an_error_and_no_hang() {
    if !gpu_is_there() {
        return;
    }
    let config = sizes("qwen3");
    let ops = plan(&config);
    let mut devices = WAYS.map(|way| device(&config, way));
    let works = works(&config, &mut devices, &vec![(vec![(70, 3)], 1); 2], 5, 0);
    let [mut ours, mut theirs] = devices;
    let expected = common::run(&mut theirs, &ops, &works);
    let lanes: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
    // The first block has tiles of a matrix only where there are as many as blocks; what it surely has is a section,
    // whose parts are folded in the same op.
    let attend = ops.iter().position(|op| *op == Op::Attend { layer: 1 }).unwrap();
    ours.withhold(Some(attend));
    let start = Instant::now();
    let error = ours.run(&ops, &Step { lanes: &lanes }).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(error.op, ops[attend].to_string(), "{error}");
    ours.withhold(None);
    assert_eq!(common::run(&mut ours, &ops, &works), expected);
}
