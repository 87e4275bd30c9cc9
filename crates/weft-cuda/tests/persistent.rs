//! The persistent kernel against launches one after the other, bit for bit: the plan stopped after any op, many
//! tokens in one launch, chosen as the samplers choose them; launches that are ended or that lose a result.
//!
//! Without a GPU each test is skipped; with `WEFT_REQUIRE_GPU=1` it fails.

mod gpu;
mod samplers;
mod sizes;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use gpu::gpu_is_there;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use samplers::{KINDS, moved_on, samplers};
use sizes::{SIZES, compile_sizes, sizes};
use weft_core::config::Config;
use weft_core::device::{Buffer, Device, Inspect, Lane, Limits, Outputs, Span, Step};
use weft_core::plan::{Op, plan};
use weft_core::sampling::Sampler;
use weft_core::weights::RandomWeights;
use weft_cuda::{CudaDevice, Launches, Options};
use weft_testing::{Work, fill, poison, span, tokens};

/// Room for spans that begin in the middle of a page.
const LIMITS: Limits = Limits { pages: 56, ..weft_testing::LIMITS };

fn device(config: &Config, launches: Launches) -> CudaDevice {
    device_with(config, launches, LIMITS)
}

fn device_with(config: &Config, launches: Launches, limits: Limits) -> CudaDevice {
    // All ways from the same cubin: compiling takes longer than the tests.
    let made = if launches == Launches::Auto { launches } else { Launches::Persistent };
    let options = Options { launches: made, ..Options::new(limits) };
    let mut device = CudaDevice::new(config, &RandomWeights::new(config, 7), options).unwrap();
    device.use_launches(launches).unwrap();
    poison(&mut device, config);
    device
}

const WAYS: [Launches; 2] = [Launches::Persistent, Launches::Ops];

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

/// A span from page `first` on that begins with a page or, by the seed, in the middle of one, whose
/// rows before it hold numbers.
fn placed(
    config: &Config,
    devices: &mut [CudaDevice; 2],
    (first, rows, position): (u32, usize, usize),
    seed: u32,
) -> Span {
    let first_row = tokens(2, seed, 64)[1] as usize * (tokens(1, seed, 3)[0].min(1) as usize);
    let span = Span { first_row, ..span(first, first_row + rows, position) };
    let before = Span { first_row: 0, len: first_row, ..span.clone() };
    devices.iter_mut().for_each(|device| fill(device, config, &before, seed.wrapping_add(77)));
    Span { len: rows, ..span }
}

/// Marks below a position, by the seed: none, a few, or many side by side.
fn marks(below: usize, seed: u32) -> Vec<u32> {
    let n = [0, 1, 3, 9, 40][tokens(1, seed, 5)[0] as usize];
    let mut marks = tokens(n, seed.wrapping_add(5), below.max(1));
    marks.iter_mut().for_each(|mark| *mark = (*mark).max(1));
    marks.sort_unstable();
    marks.dedup();
    marks.retain(|mark| (*mark as usize) < below);
    marks
}

/// Turns them into work on both devices, whose old rows hold the same numbers. A lane's last span
/// has pages for `room` rows more. Spans begin anywhere in a page, and marks are anywhere; if rows
/// are to follow, up to the first new one.
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
            let seed = seed.wrapping_add(page);
            let old = placed(config, devices, (page, rows, position), seed);
            let old = Span { home_position: *home, ..old };
            devices.iter_mut().for_each(|device| fill(device, config, &old, seed));
            page += old.pages.len() as u32;
            position += rows;
            left.push(old);
        }
        let new = tokens(*n_new, seed.wrapping_add(lane as u32), config.vocab);
        let seed = seed.wrapping_add(page);
        let own = placed(config, devices, (page, n_new + room, position), seed);
        page += own.pages.len() as u32;
        let below = if room == 0 { position + n_new + 9 } else { position + 1 };
        let marks = marks(below, seed.wrapping_add(lane as u32));
        works.push(Work { outputs: Outputs::Last, marks, ..Work::new(&new, 0, left, own) });
    }
    works
}

/// All that an op may have written, as bits.
fn written(device: &CudaDevice, op: Op, config: &Config, works: &[Work]) -> Vec<Vec<u32>> {
    let n_tokens: usize = works.iter().map(|work| work.tokens.len()).sum();
    let n_outputs = works
        .iter()
        .map(|work| if work.outputs == Outputs::All { work.tokens.len() } else { 1 })
        .sum();
    let rows = |buffer: Buffer| device.read(buffer)[..n_tokens * buffer.width(config)].to_vec();
    let values = match op {
        Op::NormQkv { .. } => vec![rows(Buffer::Q), rows(Buffer::K), rows(Buffer::V)],
        Op::RopeStore { layer } => { works.iter().flat_map(|work| &work.store_at) }
            .flat_map(|slot| <[Vec<f32>; 2]>::from(device.kv_row(layer, *slot)))
            .collect(),
        Op::Attend { .. } => { (0..works.len()).map(|lane| device.attention(lane, 0)) }
            .chain([rows(Buffer::A)])
            .collect(),
        Op::Embed | Op::ProjAdd { .. } | Op::DownAdd { .. } => vec![rows(Buffer::X)],
        Op::NormGateUp { .. } => vec![rows(Buffer::H)],
        Op::NormRoute { .. } | Op::ExpertGateUp { .. } | Op::ExpertDownAdd { .. } => vec![],
        Op::NormHead => (0..n_outputs).map(|output| device.logits(output).to_vec()).collect(),
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
    compile_sizes(LIMITS);
    for name in SIZES {
        let config = sizes(name);
        let devices = RefCell::new(WAYS.map(|way| device(&config, way)));
        TestRunner::new(Cases::with_cases(if name == "wide" { 3 } else { 10 }))
            .run(&(lanes(), any::<u32>()), |(plans, seed)| {
                let devices = &mut *devices.borrow_mut();
                let mut works = works(&config, devices, &plans, seed, 0);
                // Kernels are made for tokens that all are outputs.
                works.iter_mut().for_each(|work| work.outputs = Outputs::All);
                compare_prefixes(&config, devices, &works)
            })
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Lanes of as many old spans as asked for, of five rows each, and one new token.
fn many_spans(config: &Config, devices: &mut [CudaDevice; 2], counts: &[usize]) -> Vec<Work> {
    const ROWS: usize = 5;
    let (mut page, mut works) = (0, Vec::new());
    for (lane, &n_spans) in counts.iter().enumerate() {
        let old: Vec<Span> = (0..n_spans)
            .map(|i| Span { home_position: 3 * i, ..span(page + i as u32, ROWS, i * ROWS) })
            .collect();
        for device in &mut *devices {
            let seeds = lane as u32 * 1000..;
            seeds.zip(&old).for_each(|(seed, span)| fill(device, config, span, seed));
        }
        page += n_spans as u32;
        let new = tokens(1, lane as u32, config.vocab);
        let own = span(page, 1, n_spans * ROWS);
        page += 1;
        works.push(Work { outputs: Outputs::Last, ..Work::new(&new, 0, old, own) });
    }
    works
}

/// Parts, one more than old spans, are fetched 32 at a time: as many as fill that once and twice, one more, and far more; of one token,
/// of several, and of so many that a block folds several heads.
#[test]
fn parts_of_many_spans_are_folded_to_the_same_bits() {
    if !gpu_is_there() {
        return;
    }
    let cases: [(&str, &[usize]); 5] = [
        ("qwen3", &[31, 32]),
        ("qwen3", &[63, 64]),
        ("qwen3", &[98]),
        ("small", &[70]),
        ("small", &[36, 36, 36, 36]),
    ];
    let limits = Limits { pages: 160, ..LIMITS };
    for (name, counts) in cases {
        let config = sizes(name);
        let mut devices = WAYS.map(|way| device_with(&config, way, limits));
        let works = many_spans(&config, &mut devices, counts);
        compare_prefixes(&config, &mut devices, &works)
            .unwrap_or_else(|error| panic!("{name}, {counts:?}: {error}"));
    }
}

/// Tokens of every lane, how each attended, and what they leave behind.
#[derive(Debug, PartialEq)]
struct Decoded {
    tokens: Vec<Vec<u32>>,
    shares: Vec<Vec<Vec<f32>>>,
    logits: Vec<Vec<f32>>,
    rows: Vec<(Vec<f32>, Vec<f32>)>,
}

/// Who chooses tokens: the samplers, from logits, or the device, some steps of which may be begun ahead.
#[derive(Clone, Copy, Debug)]
enum Chosen {
    BySamplers,
    /// In a launch of so many tokens; and after which one something else is asked of the device.
    ByDevice(usize, usize),
}

/// Decodes `n` tokens of every lane.
fn decode(
    device: &mut CudaDevice,
    config: &Config,
    works: &[Work],
    mut samplers: Vec<Sampler>,
    (n, chosen): (usize, Chosen),
) -> Decoded {
    let (ops, n_lanes) = (plan(config), works.len());
    let (mut tokens, mut shares) = (Vec::<Vec<u32>>::new(), Vec::new());
    let last_layer = config.layers as u16 - 1;
    for i in 0..n {
        let now: Vec<Work> = { works.iter().enumerate() }
            .map(|(lane, work)| match i {
                0 => work.clone(),
                _ => moved_on(work, tokens[i - 1][lane], i),
            })
            .collect();
        let lanes: Vec<Lane<'_>> = now.iter().map(Work::lane).collect();
        let step = Step { lanes: &lanes };
        let next = match chosen {
            Chosen::BySamplers => {
                device.run(&ops, &step).unwrap();
                let of = |lane: usize| samplers[lane].sample(device.logits(lane)).unwrap().token;
                (0..n_lanes).map(of).collect()
            }
            Chosen::ByDevice(most, interrupted) => {
                let drawn: Vec<_> = samplers.iter().map(Some).collect();
                device.decode(&ops, &step, &drawn, most.saturating_sub(i + 1)).unwrap();
                let next: Vec<u32> =
                    (0..n_lanes).map(|lane| device.chosen(lane, 0).expect("a token")).collect();
                samplers
                    .iter_mut()
                    .zip(&next)
                    .for_each(|(sampler, token)| sampler.accept(*token).unwrap());
                if i == interrupted {
                    device.kv_row(last_layer, now[0].store_at[0]);
                }
                next
            }
        };
        tokens.push(next);
        shares.push((0..n_lanes).map(|lane| device.attention(lane, 0)).collect());
    }
    let slots = works.iter().flat_map(|work| {
        let span = work.spans.last().unwrap();
        (0..n).map(|n| span.slot(span.len - 1 + n)).collect::<Vec<_>>()
    });
    Decoded {
        logits: (0..n_lanes).map(|lane| device.logits(lane).to_vec()).collect(),
        rows: slots.map(|slot| device.kv_row(last_layer, slot)).collect(),
        tokens,
        shares,
    }
}

const NEVER: usize = usize::MAX;

#[test]
fn many_tokens_in_one_launch_are_those_of_one_after_the_other() {
    if !gpu_is_there() {
        return;
    }
    compile_sizes(LIMITS);
    for name in SIZES {
        let config = sizes(name);
        let devices =
            RefCell::new([Launches::Persistent, Launches::Graph].map(|way| device(&config, way)));
        let cases = (lanes(), 1_usize..40, 0..=KINDS, any::<u32>());
        TestRunner::new(Cases::with_cases(if name == "wide" { 4 } else { 12 }))
            .run(&cases, |(mut plans, n, kind, seed)| {
                plans.iter_mut().for_each(|(_, n_new)| *n_new = 1);
                let devices = &mut *devices.borrow_mut();
                let works = works(&config, devices, &plans, seed, 45);
                let [ours, theirs] = devices;
                let draws = || samplers(kind, works.len(), seed, config.vocab);
                let truth = decode(theirs, &config, &works, draws(), (n, Chosen::BySamplers));
                let chosen = Chosen::ByDevice(n, NEVER);
                for (way, device) in [("graph", theirs), ("one launch", &mut *ours)] {
                    let decoded = decode(device, &config, &works, draws(), (n, chosen));
                    prop_assert_eq!(&decoded.tokens, &truth.tokens, "{}", way);
                    prop_assert_eq!(&decoded, &truth, "{}", way);
                }
                let again = decode(ours, &config, &works, draws(), (n, chosen));
                prop_assert_eq!(&again, &truth);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// The smallest launch of several tokens in every kernel: what a sanitizer has the patience for.
#[test]
fn a_few_tokens_of_a_small_model() {
    if !gpu_is_there() {
        return;
    }
    let config = sizes("qwen3");
    let mut devices = [Launches::Persistent, Launches::Graph].map(|way| device(&config, way));
    for (n_lanes, kind) in [1, 2, 3, 4, 5, 8].into_iter().flat_map(|n| [(n, 0), (n, KINDS)]) {
        let works = works(&config, &mut devices, &vec![(vec![(300, 3)], 1); n_lanes], 5, 8);
        let [ours, theirs] = &mut devices;
        let draws = || samplers(kind, n_lanes, 1, config.vocab);
        let truth = decode(theirs, &config, &works, draws(), (3, Chosen::BySamplers));
        let chosen = Chosen::ByDevice(3, NEVER);
        let decoded = decode(ours, &config, &works, draws(), (3, chosen));
        assert_eq!(decoded, truth, "{n_lanes} lanes, kind {kind}");
    }
}

/// A span that some lanes share and one may have twice; more queries of one section than there are
/// tokens are for no kernel, and run as single launches.
#[test]
fn sections_with_many_queries_give_the_same_bits() {
    if !gpu_is_there() {
        return;
    }
    for (name, n_lanes, n_new, twice) in [
        ("qwen3", 2, 1, false),
        ("qwen3", 2, 1, true),
        ("small", 2, 1, false),
        ("small", 4, 1, false),
        ("small", 4, 1, true),
        ("small", 1, 2, false),
        ("wide", 4, 1, false),
    ] {
        let config = sizes(name);
        let mut devices = WAYS.map(|way| device(&config, way));
        let shared = span(0, 100, 0);
        devices.iter_mut().for_each(|device| fill(device, &config, &shared, 3));
        let lane = |lane: usize| {
            let again = Span { position: 100, ..shared.clone() };
            let mut old = vec![shared.clone(), again];
            old.truncate(if twice && lane == 0 { 2 } else { 1 });
            let own = span(2 + lane as u32, n_new, old.len() * 100);
            Work::new(&tokens(n_new, lane as u32, config.vocab), 0, old, own)
        };
        let works: Vec<Work> = (0..n_lanes).map(lane).collect();
        compare_prefixes(&config, &mut devices, &works)
            .unwrap_or_else(|error| panic!("{name}, {n_lanes} lanes, {twice}: {error}"));
    }
}

/// What is chosen by measurement computes what either way does, and says what it was chosen by; a second device does
/// not measure again.
#[test]
fn the_faster_way_computes_the_same() {
    if !gpu_is_there() {
        return;
    }
    let config = sizes("small");
    let ops = plan(&config);
    let mut devices = [Launches::Auto, Launches::Graph].map(|way| device(&config, way));
    let measured = |device: &mut CudaDevice| {
        device.warm_up().unwrap();
        let details = device.details().unwrap();
        details.split(';').next().unwrap_or_default().to_owned()
    };
    let first = measured(&mut devices[0]);
    assert!(first.contains("1× 72 rows"), "{first}");
    assert_eq!(measured(&mut device(&config, Launches::Auto)), first);
    let works = works(&config, &mut devices, &vec![(vec![(70, 3)], 1); 2], 5, 0);
    let [ours, theirs] = devices.each_mut().map(|device| weft_testing::run(device, &ops, &works));
    assert_eq!(ours, theirs);
}

/// A thousand short answers of random lanes, spans, lengths and samplers, each left at random for the next one or for
/// another call: never a wrong token, never a hang.
#[test]
fn launches_ended_at_random_hand_out_the_same_tokens() {
    if !gpu_is_there() {
        return;
    }
    let config = sizes("qwen3");
    let devices =
        RefCell::new([Launches::Persistent, Launches::Graph].map(|way| device(&config, way)));
    let runs = prop::collection::vec((1_usize..24, 1_usize..45, 0_usize..40), 20);
    TestRunner::new(Cases::with_cases(50))
        .run(&(lanes(), runs, 0..=KINDS, any::<u32>()), |(mut plans, runs, kind, seed)| {
            plans.iter_mut().for_each(|(_, n_new)| *n_new = 1);
            let devices = &mut *devices.borrow_mut();
            let works = works(&config, devices, &plans, seed, 45);
            let [ours, theirs] = devices;
            let draws = || samplers(kind, works.len(), seed, config.vocab);
            let truth = decode(theirs, &config, &works, draws(), (24, Chosen::BySamplers));
            for (n, most, interrupted) in runs {
                let chosen = Chosen::ByDevice(most, interrupted);
                let ours = decode(ours, &config, &works, draws(), (n, chosen));
                prop_assert_eq!(&ours.tokens[..], &truth.tokens[..n]);
                prop_assert_eq!(&ours.shares[..], &truth.shares[..n]);
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
    for n_lanes in [1, 2, 3, 4, 8] {
        let works = works(&config, &mut devices, &vec![(vec![(70, 3)], 1); n_lanes], 5, 0);
        let [ours, theirs] = &mut devices;
        let expected = weft_testing::run(theirs, &ops, &works);
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
        assert_eq!(weft_testing::run(ours, &ops, &works), expected);
    }
}
