//! Drafts that are verified in one step against steps of one token, bit for bit: tokens,
//! log-probabilities, attention and rows, for right and wrong drafts, in every way of launching.
//!
//! Without a GPU each test is skipped; with `WEFT_REQUIRE_GPU=1` it fails.

mod gpu;
mod large_logits;

use large_logits::{LIMITS, VOCAB, all_ways, config, gpu_alone, head};
use weft_core::config::Config;
use weft_core::device::{Device, Inspect, Lane, Outputs, Span, Step};
use weft_core::plan::plan;
use weft_core::sampling::{Logprobs, Sampler, Sampling, uniform};
use weft_cuda::{CudaDevice, Launches, Options};
use weft_testing::{Rule, Work, fill, poison, span, tokens};

/// Tokens of every answer.
const N: usize = 45;
/// The most tokens of a step with drafts.
const MOST: usize = 8;

/// Allows two of three tokens, by the last one.
fn two_of_three(token: u32, last: u32, _: u32) -> bool {
    !(token.wrapping_mul(2_654_435_761).wrapping_add(last * 31) >> 7).is_multiple_of(3)
}

/// Samplers of every kind: greedy, drawn, with penalties, biases, a least length, log-probabilities,
/// a grammar, and draws among all ranks.
fn sampler(kind: usize, seed: u64) -> Sampler {
    let drawn = Sampling { temperature: 0.7, top_k: 20, seed, ..Sampling::default() };
    let greedy = Sampling { temperature: 0.0, ..drawn.clone() };
    let penalised = Sampling { repetition_penalty: 1.3, presence_penalty: 1.0, ..drawn.clone() };
    let settings = match kind % KINDS {
        0 => greedy,
        1 => Sampling { top_p: 0.8, ..drawn },
        2 => penalised,
        3 => Sampling { frequency_penalty: 2.0, presence_penalty: 2.0, ..greedy },
        4 => Sampling { logit_bias: vec![(3, 9.0), (4, -9.0)], logprobs: Some(3), ..drawn },
        5 => Sampling { min_tokens: 9, stop_ids: vec![2, 3, 4], logprobs: Some(0), ..drawn },
        6 => greedy,
        7 => Sampling { logprobs: Some(20), ..penalised },
        8 => Sampling { temperature: 1.2, top_k: 0, top_p: 0.95, ..drawn },
        _ => Sampling { top_k: 1000, logprobs: Some(2), ..penalised },
    };
    let prompt = tokens(30, seed as u32, VOCAB);
    let mut sampler = Sampler::new(&settings, &prompt, &[0, 7], VOCAB).unwrap();
    if [6, 7].contains(&(kind % KINDS)) {
        sampler.constrain(Box::new(Rule::new(VOCAB, two_of_three)));
    }
    sampler
}
const KINDS: usize = 10;

/// A lane before its answer.
#[derive(Clone)]
struct Asked {
    sampler: Sampler,
    own: Span,
    before: usize,
    first: u32,
    marks: Vec<u32>,
}

/// Lanes of some kinds, at different rows of their pages, the first after `before` rows. Marks lie
/// before the answer and in it.
fn asked(kinds: &[usize], before: usize) -> Vec<Asked> {
    let lane = |(lane, kind): (usize, &usize)| {
        let before = before + 3 * lane;
        let mut marks: Vec<u32> =
            [7, 64, before - 1, before, before + 4, before + 21].map(|mark| mark as u32).into();
        marks.retain(|mark| *mark > 0);
        marks.sort_unstable();
        marks.dedup();
        let own = span(6 * lane as u32, 6 * 64, 0);
        let sampler = sampler(*kind, lane as u64 + 5);
        Asked { sampler, own, before, first: 11 + lane as u32, marks }
    };
    kinds.iter().enumerate().map(lane).collect()
}

/// What a device says of a token.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    token: u32,
    logprobs: Option<Logprobs>,
    attention: Vec<f32>,
}

/// Rows that nobody has written are not numbers.
fn reset(device: &mut CudaDevice, config: &Config, lanes: &[Asked]) {
    poison(device, config);
    for (seed, lane) in (1..).zip(lanes) {
        fill(device, config, &Span { len: lane.before, ..lane.own.clone() }, seed);
    }
}

/// The lane's last token and a draft after it, when it has said something.
fn work(lane: &Asked, said: &[Said], draft: &[u32]) -> Work {
    let last = said.last().map_or(lane.first, |said| said.token);
    let own = Span { len: lane.before + said.len() + 1 + draft.len(), ..lane.own.clone() };
    let all = [&[last], draft].concat();
    let outputs = if draft.is_empty() { Outputs::Last } else { Outputs::All };
    let work = Work::new(&all, lane.before + said.len(), Vec::new(), own);
    Work { outputs, marks: lane.marks.clone(), ..work }
}

/// Decodes one step: what is said of every lane's output that counts, the last of which is not
/// the next of its draft.
fn decode(
    device: &mut CudaDevice,
    config: &Config,
    works: &[Work],
    samplers: &mut [Sampler],
    ahead: usize,
) -> Vec<Vec<Said>> {
    let lanes: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
    let drawn: Vec<_> = samplers.iter().map(Some).collect();
    device.decode(&plan(config), &Step { lanes: &lanes }, &drawn, ahead).unwrap();
    let all = works.iter().zip(samplers).enumerate().map(|(lane, (work, sampler))| {
        let mut said = Vec::new();
        for output in 0..work.lane().n_outputs() {
            let token = device.chosen(lane, output).expect("the GPU chooses");
            let (logprobs, attention) =
                (device.logprobs(lane, output), device.attention(lane, output));
            said.push(Said { token, logprobs, attention });
            sampler.accept(token).unwrap();
            if work.tokens.get(output + 1) != Some(&token) {
                break;
            }
        }
        said
    });
    all.collect()
}

/// The keys and values of an answer's rows.
fn rows(device: &CudaDevice, config: &Config, lanes: &[Asked]) -> Vec<(Vec<u32>, Vec<u32>)> {
    let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect();
    let slots = |lane: &Asked| {
        let rows = lane.before..lane.before + N - 1;
        rows.map(|row| lane.own.slot(row)).collect::<Vec<_>>()
    };
    let all = lanes.iter().flat_map(slots);
    all.flat_map(|slot| (0..config.layers as u16).map(move |layer| (layer, slot)))
        .map(|(layer, slot)| {
            let (k, v) = device.kv_row(layer, slot);
            (bits(k), bits(v))
        })
        .collect()
}

/// All answers, one token at a time, and their rows.
type Truth = (Vec<Vec<Said>>, Vec<(Vec<u32>, Vec<u32>)>);

fn one_by_one(device: &mut CudaDevice, config: &Config, lanes: &[Asked]) -> Truth {
    reset(device, config, lanes);
    let mut samplers: Vec<Sampler> = lanes.iter().map(|lane| lane.sampler.clone()).collect();
    let mut said = vec![Vec::new(); lanes.len()];
    for _ in 0..N {
        let works: Vec<Work> =
            lanes.iter().zip(&said).map(|(lane, said)| work(lane, said, &[])).collect();
        for (said, new) in said.iter_mut().zip(decode(device, config, &works, &mut samplers, 0)) {
            said.extend(new);
        }
    }
    (said, rows(device, config, lanes))
}

/// The same answers by drafts: up to `longest` tokens of the truth, of which some are replaced.
/// Between them are steps of one token, some of which are begun ahead.
fn by_drafts(
    device: &mut CudaDevice,
    config: &Config,
    lanes: &[Asked],
    truth: &[Vec<Said>],
    (longest, seed): (usize, u64),
) -> Truth {
    reset(device, config, lanes);
    let mut numbers = (0..).map(|i| uniform(seed, i));
    let mut below = |n: usize| (numbers.next().unwrap() * n as f64) as usize;
    let mut samplers: Vec<Sampler> = lanes.iter().map(|lane| lane.sampler.clone()).collect();
    let mut said: Vec<Vec<Said>> = vec![Vec::new(); lanes.len()];
    while said.iter().any(|said| said.len() < N) {
        let (is_plain, ahead) = (below(3) == 0, below(4));
        let mut left = MOST - lanes.len();
        let mut works = Vec::new();
        for (i, lane) in lanes.iter().enumerate() {
            let done = said[i].len();
            let most = if is_plain { 0 } else { longest.min(left).min(N - 1 - done.min(N - 1)) };
            let n = if most == 0 { 0 } else { 1 + below(most) };
            left -= n;
            let of = |said: &Said| if below(5) == 0 { below(VOCAB) as u32 } else { said.token };
            let draft: Vec<u32> = truth[i].iter().skip(done).take(n).map(of).collect();
            works.push(work(lane, &said[i], &draft));
        }
        let new = decode(device, config, &works, &mut samplers, if is_plain { ahead } else { 0 });
        said.iter_mut().zip(new).for_each(|(said, new)| said.extend(new));
    }
    said.iter_mut().for_each(|said| said.truncate(N));
    (said, rows(device, config, lanes))
}

fn device(config: &Config) -> CudaDevice {
    let options = all_ways(config, &[]);
    CudaDevice::new(config, &head(config, |_, _| {}), options).unwrap()
}

fn compare(ours: &Truth, theirs: &Truth, what: &str) {
    for (lane, (ours, theirs)) in ours.0.iter().zip(&theirs.0).enumerate() {
        for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            assert_eq!(ours, theirs, "{what}: token {i} of lane {lane}");
        }
        assert_eq!(ours.len(), theirs.len(), "{what}: lane {lane}");
    }
    let first = ours.1.iter().zip(&theirs.1).position(|(ours, theirs)| ours != theirs);
    assert_eq!(first, None, "{what}: this row differs");
}

const WAYS: [Launches; 3] = [Launches::Ops, Launches::Graph, Launches::Persistent];

/// A draft of one lane, of every length, of every kind of sampler, over the end of a page and of a
/// section.
#[test]
fn a_draft_is_the_steps_that_it_stands_for() {
    let config = config(VOCAB);
    let Some(_gpu) = gpu_alone(&config, &all_ways(&config, &[])) else { return };
    let mut device = device(&config);
    for (kind, before) in (0..KINDS).flat_map(|kind| [50, 240].map(|before| (kind, before))) {
        let lanes = asked(&[kind], before);
        device.use_launches(Launches::Ops).unwrap();
        let truth = one_by_one(&mut device, &config, &lanes);
        for (way, longest) in WAYS.into_iter().flat_map(|way| [1, 2, 3, 7].map(|n| (way, n))) {
            device.use_launches(way).unwrap();
            let seed = (kind * 8 + longest) as u64;
            let ours = by_drafts(&mut device, &config, &lanes, &truth.0, (longest, seed));
            let what = format!("{way:?}, kind {kind}, {before} rows, {longest} drafted");
            compare(&ours, &truth, &what);
        }
    }
}

/// Several lanes share the tokens of a step, each with a draft or without.
#[test]
fn drafts_of_several_lanes_are_the_steps_that_they_stand_for() {
    let config = config(VOCAB);
    let Some(_gpu) = gpu_alone(&config, &all_ways(&config, &[])) else { return };
    let mut device = device(&config);
    for kinds in [&[0, 0][..], &[0, 3], &[1, 2, 7], &[0, 1, 5], &[0, 4, 6, 2], &[8, 0, 9, 3]] {
        let lanes = asked(kinds, 40);
        device.use_launches(Launches::Ops).unwrap();
        let truth = one_by_one(&mut device, &config, &lanes);
        for (way, seed) in WAYS.into_iter().flat_map(|way| [1, 2].map(|seed| (way, seed))) {
            device.use_launches(way).unwrap();
            let ours = by_drafts(&mut device, &config, &lanes, &truth.0, (7, seed));
            compare(&ours, &truth, &format!("{way:?}, kinds {kinds:?}, seed {seed}"));
        }
    }
}

/// The way that was faster, whichever it is, with kernels that arrive in the middle of an answer.
#[test]
fn drafts_are_the_same_while_kernels_take_over() {
    let config = config(VOCAB);
    let Some(_gpu) = gpu_alone(&config, &all_ways(&config, &[])) else { return };
    let options = Options { launches: Launches::Auto, ..Options::new(LIMITS) };
    let mut device = CudaDevice::new(&config, &head(&config, |_, _| {}), options).unwrap();
    for kinds in [&[0][..], &[2], &[0, 1]] {
        let lanes = asked(kinds, 50);
        let truth = one_by_one(&mut device, &config, &lanes);
        device.delay_persistent(6, false);
        let ours = by_drafts(&mut device, &config, &lanes, &truth.0, (3, 9));
        compare(&ours, &truth, &format!("kinds {kinds:?}"));
        device.warm_up().unwrap();
        let ours = by_drafts(&mut device, &config, &lanes, &truth.0, (7, 10));
        compare(&ours, &truth, &format!("kinds {kinds:?}, warm"));
    }
}

/// A launch ends with the token that was asked for as the last; what comes next is not disturbed.
#[test]
fn a_draft_follows_steps_that_were_begun_ahead() {
    let config = config(VOCAB);
    let Some(_gpu) = gpu_alone(&config, &all_ways(&config, &[])) else { return };
    let mut device = device(&config);
    for (way, kind) in WAYS.into_iter().flat_map(|way| [0, 2, 6].map(|kind| (way, kind))) {
        device.use_launches(way).unwrap();
        let lanes = asked(&[kind], 10);
        let (truth, _) = one_by_one(&mut device, &config, &lanes);
        for aheads in [&[20, 19, 18][..], &[20, 19, 0], &[0, 20, 0], &[3, 2, 1]] {
            reset(&mut device, &config, &lanes);
            let mut samplers = [lanes[0].sampler.clone()];
            let mut said = Vec::new();
            let mut go_on = |device: &mut CudaDevice, said: &mut Vec<Said>, n: usize, ahead| {
                let draft = truth[0].iter().skip(said.len()).take(n).map(|said| said.token);
                let draft: Vec<u32> = draft.collect();
                let works = [work(&lanes[0], said, &draft)];
                said.extend(decode(device, &config, &works, &mut samplers, ahead).remove(0));
            };
            for _ in 0..3 {
                aheads.iter().for_each(|ahead| go_on(&mut device, &mut said, 0, *ahead));
                go_on(&mut device, &mut said, 3, 0);
                go_on(&mut device, &mut said, 6, 0);
            }
            assert_eq!(said.len(), 3 * (3 + 4 + 7), "all drafts are right");
            assert_eq!(said, truth[0][..said.len()], "{way:?}, kind {kind}, {aheads:?}");
        }
    }
}
