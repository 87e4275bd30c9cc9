//! Tokens chosen on the GPU against the sampler that defines them; steps begun ahead against steps one by
//! one, bit for bit.
//!
//! Without a GPU each test is skipped; with `WEFT_REQUIRE_GPU=1` it fails.

mod gpu;
mod large_logits;

use std::sync::Mutex;

use large_logits::{LIMITS, VOCAB, all_ways, config, gpu_alone, head};
use weft_core::config::Config;
use weft_core::device::{Device, Lane, Outputs, Span, Step};
use weft_core::plan::plan;
use weft_core::sampling::{Sampler, Sampling, SamplingError, uniform};
use weft_core::weights::{Forms, RandomWeights, Weights};
use weft_cuda::{CudaDevice, Launches, Options};
use weft_testing::{Work, span, tokens};

fn device(config: &Config, weights: &dyn Weights) -> CudaDevice {
    CudaDevice::new(config, weights, Options::new(LIMITS)).unwrap()
}

/// One lane: a token after `before` rows that are there.
fn work(token: u32, before: usize, own: &Span) -> Work {
    let own = Span { len: before + 1, ..own.clone() };
    Work { outputs: Outputs::Last, ..Work::new(&[token], before, Vec::new(), own) }
}

/// Settings of every kind, and a seed.
fn settings(kind: usize, seed: u64) -> Sampling {
    let drawn = Sampling { temperature: 0.7, top_k: 20, seed, ..Sampling::default() };
    match kind {
        0 => Sampling { temperature: 0.0, ..drawn },
        1 => Sampling { top_p: 0.8, ..drawn },
        2 => Sampling { temperature: 0.6, top_p: 0.95, ..drawn },
        3 => Sampling { temperature: 100.0, top_k: 128, ..drawn },
        4 => Sampling { temperature: 1.5, top_k: 100, min_p: 0.05, ..drawn },
        5 => Sampling { top_k: 1, ..drawn },
        6 => Sampling { repetition_penalty: 1.3, top_k: 50, ..drawn },
        7 => Sampling { frequency_penalty: 0.7, presence_penalty: 1.5, temperature: 0.0, ..drawn },
        8 => Sampling { logit_bias: vec![(3, 30.0), (4, 29.5), (5, -100.0)], ..drawn },
        9 => Sampling { min_tokens: 9, stop_ids: vec![2, 3, 4], ..drawn },
        10 => Sampling { ignore_eos: true, temperature: 1e-3, top_p: 0.3, ..drawn },
        // From here on among more ranks than one block weighs.
        11 => Sampling { temperature: 1.0, top_k: 0, ..drawn },
        12 => Sampling { temperature: 1.2, top_k: 0, top_p: 0.95, ..drawn },
        13 => Sampling { top_k: 0, min_p: 0.05, ..drawn },
        14 => Sampling { temperature: 100.0, top_k: 129, ..drawn },
        15 => Sampling { top_k: 1000, top_p: 0.9, repetition_penalty: 1.3, ..drawn },
        16 => Sampling { temperature: 50.0, top_k: 0, top_p: 0.5, min_p: 0.9, ..drawn },
        17 => Sampling { temperature: 1e-30, top_k: 0, top_p: 0.5, ..drawn },
        _ => {
            Sampling { logit_bias: vec![(3, 9.0), (4, -9.0)], ignore_eos: true, top_k: 0, ..drawn }
        }
    }
}
const KINDS: usize = 19;
const WIDE_KINDS: usize = 11;
const ENDS: [u32; 2] = [0, 7];

/// The GPU's token is the sampler's, for logits of a whole vocabulary, step by step.
fn tokens_are_the_sampler_s(vocab: usize) {
    let config = config(vocab);
    // Three lanes run as four.
    let options = all_ways(&config, &[4]);
    let Some(_gpu) = gpu_alone(&config, &options) else { return };
    let mut device = CudaDevice::new(&config, &head(&config, |_, _| {}), options).unwrap();
    // The last rows are padding where there are enough.
    let usable = if vocab > 200 { vocab - 100 } else { vocab };
    let fits = |kind: &usize| vocab > 5 || ![8, 9, 18].contains(kind);
    let ways = [Launches::Graph, Launches::Persistent];
    for (kind, way) in (0..KINDS).filter(fits).flat_map(|kind| ways.map(|way| (kind, way))) {
        device.use_launches(way).unwrap();
        let samplers = |seed: u64| {
            let prompt = tokens(30, seed as u32, usable);
            let ends = if vocab > 8 { &ENDS[..] } else { &ENDS[..1] };
            Sampler::new(&settings(kind, seed), &prompt, ends, usable).unwrap()
        };
        let mut lanes: Vec<Sampler> = (0..3).map(samplers).collect();
        // The host takes long to rank a large vocabulary.
        let n_rows = if kind < WIDE_KINDS || vocab < 10_000 { 20 } else { 6 };
        let mut next = vec![1, 2, 0];
        for row in 0..n_rows {
            let what = format!("vocab {vocab}, {way:?}, kind {kind}, row {row}");
            next = compare(&mut device, &config, &mut lanes, &next, row, &what);
        }
    }
}

/// Decodes a token of each lane; those that the GPU chose, which must be the samplers'.
fn compare(
    device: &mut CudaDevice,
    config: &Config,
    lanes: &mut [Sampler],
    next: &[u32],
    row: usize,
    what: &str,
) -> Vec<u32> {
    let own = |lane: usize| span(lane as u32, 64, 0);
    let works: Vec<Work> =
        next.iter().enumerate().map(|(lane, token)| work(*token, row, &own(lane))).collect();
    let step: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
    let drawn: Vec<_> = lanes.iter().map(Some).collect();
    let usable = drawn[0].unwrap().next_draw().unwrap().vocab;
    device.decode(&plan(config), &Step { lanes: &step }, &drawn, 0).unwrap();
    let compared = lanes.iter_mut().enumerate().map(|(lane, sampler)| {
        let truth = sampler.sample(&device.logits(lane)[..usable]).unwrap().token;
        assert_eq!(device.chosen(lane, 0), Some(truth), "{what}, lane {lane}");
        truth
    });
    compared.collect()
}

#[test]
fn tokens_are_the_sampler_s_of_3() {
    tokens_are_the_sampler_s(3);
}

#[test]
fn tokens_are_the_sampler_s_of_101() {
    tokens_are_the_sampler_s(101);
}

#[test]
fn tokens_are_the_sampler_s_of_2000() {
    tokens_are_the_sampler_s(2000);
}

#[test]
fn tokens_are_the_sampler_s_of_5003() {
    tokens_are_the_sampler_s(5003);
}

#[test]
fn tokens_are_the_sampler_s_of_151_936() {
    tokens_are_the_sampler_s(151_936);
}

/// Draws by settings of all sizes, side by side with others, from a vocabulary of real size.
#[test]
fn draws_among_any_number_of_ranks_are_the_sampler_s() {
    let config = config(151_936);
    let Some(_gpu) = gpu_alone(&config, &Options::new(LIMITS)) else { return };
    // Of every 64 rows half are alike, and so are their logits.
    let first = Mutex::new(Vec::<f32>::new());
    let weights = head(&config, |row, values| {
        let mut first = first.lock().unwrap();
        match row % 64 {
            0 => first.clone_from(values),
            1..32 => values.clone_from(&first),
            _ => {}
        }
    });
    let mut device = device(&config, &weights);
    for case in 0..60 {
        let settings = |lane: u64| {
            let at = case * 40 + lane * 10;
            let number = |i: u64| uniform(77, at + i);
            let pick = |i: u64, of: &[f32]| of[(number(i) * of.len() as f64) as usize];
            Sampling {
                temperature: pick(0, &[0.01, 0.1, 0.6, 1.0, 2.0, 100.0]),
                top_k: pick(1, &[0.0, 0.0, 20.0, 129.0, 1000.0, 30_000.0, 200_000.0]) as usize,
                top_p: pick(2, &[1.0, 1.0, 0.999, 0.9, 0.5, 0.01, 1e-12]),
                min_p: pick(3, &[0.0, 0.0, 1e-4, 0.02, 0.3, 1.0]),
                repetition_penalty: pick(4, &[1.0, 1.0, 1.1]),
                presence_penalty: pick(5, &[0.0, 0.0, 0.5]),
                seed: at,
                ..Sampling::default()
            }
        };
        let prompt = tokens(500, case as u32, config.vocab);
        let mut lanes: Vec<Sampler> = (0..4)
            .map(|lane| Sampler::new(&settings(lane), &prompt, &[], config.vocab).unwrap())
            .collect();
        let next: Vec<u32> = (0..4).map(|lane| lane + 7 * case as u32).collect();
        compare(&mut device, &config, &mut lanes, &next, 0, &format!("case {case}"));
    }
}

/// A device takes what it was said to take, but for what the driver adds.
#[test]
fn a_device_takes_what_was_said() {
    for vocab in [101, 151_936] {
        let config = config(vocab);
        let Some(_gpu) = gpu_alone(&config, &Options::new(LIMITS)) else { return };
        let taken = device(&config, &RandomWeights::new(&config, 1)).memory_bytes();
        let said = weft_cuda::need(&config, &Forms::default(), &LIMITS).total();
        let rest = said.checked_sub(taken).expect("no more than was said");
        assert!(rest < 100 << 20, "{said} said, {taken} taken");
    }
}

/// Equal logits go to the lower id, also where more are equal than ranks are wanted.
#[test]
fn ties_go_to_the_lower_id() {
    let config = config(VOCAB);
    let Some(_gpu) = gpu_alone(&config, &Options::new(LIMITS)) else { return };
    // Rows of a token depend on its id divided by 40: 40 tokens share each logit.
    let rows = Mutex::new(Vec::<f32>::new());
    let weights = head(&config, |row, values| {
        let mut last = rows.lock().unwrap();
        if row % 40 == 0 {
            last.clone_from(values);
        }
        values.clone_from(&last);
    });
    let mut device = device(&config, &weights);
    let ops = plan(&config);
    // Of draws among 128 ranks with 40 equals each there may be too many candidates.
    let kinds = [0, 1, 2, 5].into_iter().chain(WIDE_KINDS..KINDS);
    for (kind, seed) in kinds.flat_map(|kind| (0..10).map(move |seed| (kind, seed))) {
        let mut sampler = Sampler::new(&settings(kind, seed), &[], &[], 5003).unwrap();
        let works = [work(seed as u32 * 11, 0, &span(0, 64, 0))];
        let lanes = [works[0].lane()];
        device.decode(&ops, &Step { lanes: &lanes }, &[Some(&sampler)], 0).unwrap();
        let logits = device.logits(0).to_vec();
        assert_eq!(logits[80], logits[119], "the model has ties");
        let truth = sampler.sample(&logits).unwrap().token;
        assert_eq!(device.chosen(0, 0), Some(truth), "kind {kind}, seed {seed}");
    }
}

/// What a block cannot decide it leaves to the host: logits that are no numbers, too many equal ones.
#[test]
fn what_is_no_number_is_left_to_the_sampler() {
    let config = config(20_000);
    let options = all_ways(&config, &[1]);
    let Some(_gpu) = gpu_alone(&config, &options) else { return };
    let decode = |way: Launches, weights: &dyn Weights, sampler: &Sampler| {
        let mut device = CudaDevice::new(&config, weights, options).unwrap();
        device.use_launches(way).unwrap();
        let works = [work(1, 0, &span(0, 64, 0))];
        let lanes = [works[0].lane()];
        device.decode(&plan(&config), &Step { lanes: &lanes }, &[Some(sampler)], 0).unwrap();
        (device.chosen(0, 0), device.logits(0).to_vec())
    };
    let sampler = |kind| Sampler::new(&settings(kind, 1), &[], &[], 20_000).unwrap();
    let ways = [Launches::Graph, Launches::Persistent];
    for (kind, way) in [0, 1, 11, 12, 15].into_iter().flat_map(|kind| ways.map(|way| (kind, way))) {
        let broken = head(&config, |row, values| {
            if row == 12_345 {
                values.fill(f32::NAN);
            }
        });
        let (chosen, logits) = decode(way, &broken, &sampler(kind));
        assert_eq!(chosen, None);
        let error = sampler(kind).sample(&logits).unwrap_err();
        assert!(matches!(error, SamplingError::BadLogit { token: 12_345, .. }), "{error}");
        let flat = head(&config, |_, values| values.fill(0.0));
        let (chosen, logits) = decode(way, &flat, &sampler(kind));
        assert_eq!(logits[19_999], 0.0);
        // Of a draw of few ranks among 20,000 equals there are too many candidates.
        let truth = sampler(kind).sample(&logits).unwrap().token;
        assert_eq!(chosen, (kind != 1).then_some(truth), "kind {kind}");
    }
}

/// An answer's tokens, and the attention of each.
type Answer = Vec<(u32, Vec<f32>)>;

/// How four lanes choose. Where one draws among all ranks no step runs in the persistent kernel.
const WITH_A_WIDE_ONE: [usize; 4] = [2, 0, 15, 6];
const WITHOUT: [usize; 4] = [2, 0, 7, 6];

/// Decodes answers of several lanes behind prompts of their own and one span that all share.
fn answers(
    device: &mut CudaDevice,
    config: &Config,
    kinds: [usize; 4],
    ahead: usize,
    host: bool,
) -> Vec<Answer> {
    const TOKENS: usize = 150;
    let ops = plan(config);
    let shared = span(0, 300, 0);
    let document = tokens(300, 3, config.vocab);
    for block in [0..150, 150..300] {
        let part = Work::new(&document[block.clone()], block.start, Vec::new(), shared.clone());
        weft_testing::run(device, &ops, &[Work { outputs: Outputs::None, ..part }]);
    }
    let mut samplers: Vec<Sampler> = (0..4)
        .map(|lane| Sampler::new(&settings(kinds[lane], 9), &document, &[], config.vocab))
        .collect::<Result<_, _>>()
        .unwrap();
    let mut answers = vec![Answer::new(); 4];
    let mut next = [5, 6, 7, 8];
    for row in 0..TOKENS {
        let works: Vec<Work> = (0..4)
            .map(|lane| {
                // Lanes are at different rows of their pages, and one is not at home.
                let (before, at) = (row + lane * 13, 300 + lane * 20);
                let own = span(8 + 5 * lane as u32, before + 1, at);
                let moved = Span { position: lane, ..shared.clone() };
                let work = Work::new(&[next[lane]], before, vec![moved], own);
                Work { outputs: Outputs::Last, ..work }
            })
            .collect();
        if row == 0 {
            for (lane, work) in works.iter().enumerate().skip(1) {
                let own = Span { len: lane * 13, ..work.spans[1].clone() };
                weft_testing::fill(device, config, &own, lane as u32);
            }
        }
        let step: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
        let step = Step { lanes: &step };
        let rows_left = works.iter().map(|work| 63 - work.store_at[0] as usize % 64).min();
        if host {
            device.run(&ops, &step).unwrap();
        } else {
            let drawn: Vec<_> = samplers.iter().map(Some).collect();
            device.decode(&ops, &step, &drawn, ahead.min(rows_left.unwrap())).unwrap();
        }
        for (lane, sampler) in samplers.iter_mut().enumerate() {
            next[lane] = match device.chosen(lane, 0) {
                Some(token) => {
                    sampler.accept(token).unwrap();
                    token
                }
                None => sampler.sample(device.logits(lane)).unwrap().token,
            };
            assert_eq!(device.chosen(lane, 0).is_none(), host);
            answers[lane].push((next[lane], device.attention(lane, 0)));
        }
    }
    answers
}

/// Steps that were begun ahead are the steps that are asked for one by one, token, shares and all, over
/// borders of pages and sections.
#[test]
fn steps_begun_ahead_are_the_steps_asked_for() {
    let config = config(VOCAB);
    let options = all_ways(&config, &[]);
    let Some(_gpu) = gpu_alone(&config, &options) else { return };
    let weights = head(&config, |_, _| {});
    let run = |kinds, launches, ahead, host| {
        let mut device = CudaDevice::new(&config, &weights, options).unwrap();
        device.use_launches(launches).unwrap();
        answers(&mut device, &config, kinds, ahead, host)
    };
    let truths = [WITH_A_WIDE_ONE, WITHOUT].map(|kinds| run(kinds, Launches::Ops, 0, true));
    for (what, launches, ahead, host) in [
        ("a graph, tokens by the host", Launches::Graph, 0, true),
        ("ops, tokens by the GPU", Launches::Ops, 0, false),
        ("ops, asked to go ahead", Launches::Ops, 9, false),
        ("a graph, one by one", Launches::Graph, 0, false),
        ("a graph, one ahead", Launches::Graph, 1, false),
        ("a graph, as far ahead as it goes", Launches::Graph, 64, false),
        ("one kernel, one by one", Launches::Persistent, 0, false),
        ("one kernel, two at a time", Launches::Persistent, 1, false),
        ("one kernel, as far ahead as it goes", Launches::Persistent, 64, false),
    ] {
        let (kinds, truth) = match launches {
            Launches::Persistent => (WITHOUT, &truths[1]),
            _ => (WITH_A_WIDE_ONE, &truths[0]),
        };
        let answers = run(kinds, launches, ahead, host);
        for (lane, (ours, theirs)) in answers.iter().zip(truth).enumerate() {
            let first = ours.iter().zip(theirs).position(|(a, b)| a != b);
            assert_eq!(first, None, "{what}: lane {lane} differs at this token");
        }
    }
}

/// What was begun and is not asked for leaves nothing behind.
#[test]
fn steps_begun_in_vain_do_not_show() {
    let config = config(VOCAB);
    let options = all_ways(&config, &[]);
    let Some(_gpu) = gpu_alone(&config, &options) else { return };
    let mut device = CudaDevice::new(&config, &head(&config, |_, _| {}), options).unwrap();
    for way in [Launches::Graph, Launches::Persistent] {
        device.use_launches(way).unwrap();
        begin_in_vain(&mut device, &config);
    }
}

fn begin_in_vain(device: &mut CudaDevice, config: &Config) {
    let ops = plan(config);
    let own = span(0, 64, 0);
    let other = span(1, 64, 0);
    let sampler = |index: usize| {
        let mut sampler = Sampler::new(&settings(2, 5), &[], &[], config.vocab).unwrap();
        (0..index).for_each(|_| sampler.accept(0).unwrap());
        sampler
    };
    let decode = |device: &mut CudaDevice, works: &[Work], index: usize, ahead: usize| {
        let lanes: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
        let samplers: Vec<Sampler> = works.iter().map(|_| sampler(index)).collect();
        let drawn: Vec<_> = samplers.iter().map(Some).collect();
        device.decode(&ops, &Step { lanes: &lanes }, &drawn, ahead).unwrap();
        let chosen: Vec<_> = (0..works.len()).map(|lane| device.chosen(lane, 0).unwrap()).collect();
        (chosen, device.attention(0, 0))
    };
    // What each of these gives when nothing was begun before it.
    let begun = [work(1, 0, &own)];
    let after = [
        ("another token", vec![work(9, 1, &own)]),
        ("another row", vec![work(4, 0, &own)]),
        ("another lane beside it", vec![work(9, 1, &own), work(3, 0, &other)]),
        ("another page", vec![work(2, 0, &other)]),
    ];
    let truths: Vec<_> = after
        .iter()
        .map(|(_, works)| {
            decode(device, &begun, 0, 0);
            decode(device, works, 1, 0)
        })
        .collect();
    for ((what, works), truth) in after.iter().zip(&truths) {
        decode(device, &begun, 0, 5);
        assert_eq!(&decode(device, works, 1, 5), truth, "{what}");
        decode(device, &begun, 0, 5);
        let lanes = [begun[0].lane()];
        device.run(&ops, &Step { lanes: &lanes }).unwrap();
        assert_eq!(device.chosen(0, 0), None, "a run chooses nothing");
        assert_eq!(&decode(device, works, 1, 0), truth, "{what}, after a run");
    }
    // Another draw of the same step.
    let token = decode(device, &begun, 0, 5).0[0];
    let follows = [work(token, 1, &own)];
    let begun_ahead = decode(device, &follows, 1, 0);
    decode(device, &begun, 0, 5);
    let other_draw = decode(device, &follows, 33, 5);
    decode(device, &begun, 0, 0);
    assert_eq!(decode(device, &follows, 33, 0), other_draw);
    assert_eq!(decode(device, &follows, 1, 0), begun_ahead);
}
