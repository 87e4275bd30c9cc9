//! Log-probabilities and masks of grammars on the GPU against the sampler that defines them, bit for
//! bit, in every way of launching, and in steps begun ahead.
//!
//! Without a GPU each test is skipped; with `WEFT_REQUIRE_GPU=1` it fails.

mod gpu;
mod large_logits;

use std::time::{Duration, Instant};

use large_logits::{VOCAB, all_ways, config, gpu_alone, head};
use weft_core::config::Config;
use weft_core::device::{Device, Lane, Outputs, Span, Step};
use weft_core::plan::plan;
use weft_core::sampling::{Choice, Constraint, Sampler, Sampling, SamplingError};
use weft_cuda::{CudaDevice, Launches};
use weft_testing::{Work, span, tokens};

/// The numbers of lanes that have a persistent kernel where the vocabulary is not `VOCAB`.
const LANES: &[usize] = &[4];

fn device(config: &Config, change: impl Fn(usize, &mut Vec<f32>) + Send + Sync) -> CudaDevice {
    CudaDevice::new(config, &head(config, change), all_ways(config, LANES)).unwrap()
}

/// How many tokens a rule allows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Grammar {
    /// All but one of seven, as inside a JSON string.
    Dense,
    /// One of 97.
    Sparse,
    /// One.
    Forced,
    /// As `Dense`, computed too late at every fifth token.
    Late,
    /// As `Dense`, up to its third token.
    Broken,
}

/// Allows tokens by the last one and their number.
#[derive(Clone, Debug)]
struct Rule {
    grammar: Grammar,
    vocab: u32,
    last: u32,
    n: u32,
    /// The last tokens before.
    past: Vec<u32>,
}

impl Rule {
    fn allows(&self, token: u32) -> bool {
        let mixed = token.wrapping_mul(2_654_435_761).wrapping_add(self.last * 31 + self.n) >> 7;
        match self.grammar {
            Grammar::Sparse => mixed.is_multiple_of(97) || token == 8 + self.n,
            // Never one that ends an answer.
            Grammar::Forced => token == 8 + (self.last * 7 + self.n) % (self.vocab - 8),
            _ => !mixed.is_multiple_of(7),
        }
    }
}

impl Constraint for Rule {
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), String> {
        match self.grammar {
            Grammar::Late if self.n % 5 == 2 => std::thread::sleep(Duration::from_millis(400)),
            Grammar::Broken if self.n == 3 => return Err("it is over".to_owned()),
            _ => {}
        }
        let allowed = (0..self.vocab).filter(|token| self.allows(*token));
        allowed.for_each(|token| mask[token as usize / 32] |= 1 << (token % 32));
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        assert!(self.allows(token), "{token} is forbidden");
        self.past.push(self.last);
        (self.last, self.n) = (token, self.n + 1);
        Ok(())
    }

    fn roll_back(&mut self, n: usize) -> Result<(), String> {
        for _ in 0..n {
            self.last = self.past.pop().expect("an accepted token");
            self.n -= 1;
        }
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// A sampler of some kind, with or without log-probabilities and a grammar.
fn sampler(
    (kind, logprobs, grammar): (usize, Option<usize>, Option<Grammar>),
    seed: u64,
    vocab: usize,
) -> Sampler {
    let drawn = Sampling { temperature: 0.7, top_k: 20, seed, logprobs, ..Sampling::default() };
    let settings = match kind {
        0 => Sampling { temperature: 0.0, ..drawn },
        1 => Sampling { top_p: 0.8, min_p: 0.01, ..drawn },
        2 => Sampling { repetition_penalty: 1.3, presence_penalty: 1.0, top_k: 50, ..drawn },
        3 => Sampling { temperature: 0.0, logit_bias: vec![(3, 30.0), (4, 29.5)], ..drawn },
        // Among more ranks than one block weighs.
        4 => Sampling { temperature: 1.2, top_k: 0, top_p: 0.95, ..drawn },
        _ => Sampling { top_k: 1000, repetition_penalty: 1.3, ignore_eos: true, ..drawn },
    };
    let prompt = tokens(30, seed as u32, vocab);
    let mut sampler = Sampler::new(&settings, &prompt, &[0, 7], vocab).unwrap();
    if let Some(grammar) = grammar {
        sampler.constrain(Box::new(Rule {
            grammar,
            vocab: vocab as u32,
            last: 0,
            n: 0,
            past: Vec::new(),
        }));
    }
    sampler
}
const KINDS: usize = 6;
const WIDE_KINDS: usize = 4;

/// The choice that the device made for a lane, if it made one.
fn choice(device: &CudaDevice, lane: usize) -> Option<Choice> {
    Some(Choice { token: device.chosen(lane, 0)?, logprobs: device.logprobs(lane, 0) })
}

/// A lane's token after `row` rows.
fn work(lane: usize, token: u32, row: usize) -> Work {
    let own = Span { len: row + 1, ..span(lane as u32, 64, 0) };
    Work { outputs: Outputs::Last, ..Work::new(&[token], row, Vec::new(), own) }
}

fn choices_are_the_sampler_s(vocab: usize) {
    let config = config(vocab);
    let Some(_gpu) = gpu_alone(&config, &all_ways(&config, LANES)) else { return };
    let mut device = device(&config, |_, _| {});
    let usable = if vocab > 200 { vocab - 100 } else { vocab };
    let ops = plan(&config);
    let needs = [
        [
            (Some(5), None),
            (None, Some(Grammar::Dense)),
            (Some(20), Some(Grammar::Sparse)),
            (None, None),
        ],
        [
            (Some(0), Some(Grammar::Forced)),
            (None, None),
            (Some(1), Some(Grammar::Dense)),
            (Some(3), None),
        ],
    ];
    for way in [Launches::Graph, Launches::Persistent, Launches::Ops] {
        device.use_launches(way).unwrap();
        for (kind, needs) in (0..KINDS).flat_map(|kind| needs.map(|needs| (kind, needs))) {
            let samplers = (0..4).map(|lane| {
                let (logprobs, grammar) = needs[lane];
                sampler((kind, logprobs, grammar), lane as u64, usable)
            });
            let mut lanes: Vec<Sampler> = samplers.collect();
            let mut truths = lanes.clone();
            let mut next = [1, 2, 0, 3];
            // The host takes long to rank a large vocabulary.
            for row in 0..if kind < WIDE_KINDS || vocab < 10_000 { 12 } else { 4 } {
                let works: Vec<Work> = (0..4).map(|lane| work(lane, next[lane], row)).collect();
                let step: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
                let drawn: Vec<_> = lanes.iter().map(Some).collect();
                device.decode(&ops, &Step { lanes: &step }, &drawn, 0).unwrap();
                for lane in 0..4 {
                    let ours = choice(&device, lane);
                    let truth = truths[lane].sample(&device.logits(lane)[..usable]).unwrap();
                    let what = format!("vocab {vocab}, {way:?}, kind {kind}, row {row}, {lane}");
                    assert_eq!(ours.as_ref(), Some(&truth), "{what}: {:?}", needs[lane]);
                    lanes[lane].accept(truth.token).unwrap();
                    next[lane] = truth.token;
                }
            }
        }
    }
}

#[test]
fn choices_are_the_sampler_s_of_101() {
    choices_are_the_sampler_s(101);
}

#[test]
fn choices_are_the_sampler_s_of_5003() {
    choices_are_the_sampler_s(5003);
}

#[test]
fn choices_are_the_sampler_s_of_151_936() {
    choices_are_the_sampler_s(151_936);
}

type Needs = (usize, Option<usize>, Option<Grammar>);
/// Lanes with different needs beside one another.
const MIXED: [Needs; 4] = [
    (0, Some(5), None),
    (1, Some(2), Some(Grammar::Dense)),
    (0, None, Some(Grammar::Sparse)),
    (2, None, None),
];
const ALONE: [Needs; 1] = [(0, Some(20), Some(Grammar::Dense))];
const WITH_A_WIDE_ONE: [Needs; 2] = [(4, Some(3), Some(Grammar::Dense)), (1, Some(20), None)];
const LATE: [Needs; 2] = [(1, Some(4), Some(Grammar::Late)), (0, Some(1), None)];

/// The choices of an answer, with the attention of each.
type Answer = Vec<(Choice, Vec<f32>)>;

/// Answers, and how many choices were left to the host.
fn answers(
    device: &mut CudaDevice,
    config: &Config,
    needs: &[Needs],
    n_tokens: usize,
    ahead: Option<usize>,
) -> (Vec<Answer>, usize) {
    let ops = plan(config);
    let new = |(lane, needs): (usize, &Needs)| sampler(*needs, lane as u64, config.vocab);
    let mut samplers: Vec<Sampler> = needs.iter().enumerate().map(new).collect();
    let mut answers = vec![Vec::new(); needs.len()];
    let mut next: Vec<u32> = (5..).take(needs.len()).collect();
    let mut n_left = 0;
    for row in 0..n_tokens {
        let at = |lane: usize| {
            let own = span(3 * lane as u32, row + 1, 0);
            Work { outputs: Outputs::Last, ..Work::new(&[next[lane]], row, Vec::new(), own) }
        };
        let works: Vec<Work> = (0..needs.len()).map(at).collect();
        let step: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
        match ahead {
            None => device.run(&ops, &Step { lanes: &step }).unwrap(),
            Some(ahead) => {
                let drawn: Vec<_> = samplers.iter().map(Some).collect();
                let ahead = ahead.min(63 - row % 64);
                device.decode(&ops, &Step { lanes: &step }, &drawn, ahead).unwrap();
            }
        }
        for (lane, sampler) in samplers.iter_mut().enumerate() {
            let choice = match choice(device, lane) {
                Some(choice) => {
                    sampler.accept(choice.token).unwrap();
                    choice
                }
                None => {
                    n_left += 1;
                    sampler.sample(device.logits(lane)).unwrap()
                }
            };
            next[lane] = choice.token;
            answers[lane].push((choice, device.attention(lane, 0)));
        }
    }
    (answers, n_left)
}

/// Steps begun ahead wait for their masks and publish what the sampler would.
#[test]
fn steps_begun_ahead_are_the_steps_asked_for() {
    let config = config(VOCAB);
    let Some(_gpu) = gpu_alone(&config, &all_ways(&config, LANES)) else { return };
    let mut device = device(&config, |_, _| {});
    for (what, needs) in [("mixed", &MIXED[..]), ("alone", &ALONE), ("wide", &WITH_A_WIDE_ONE)] {
        device.use_launches(Launches::Ops).unwrap();
        let (truth, _) = answers(&mut device, &config, needs, 140, None);
        for (launches, ahead) in [
            (Launches::Ops, 0),
            (Launches::Graph, 0),
            (Launches::Graph, 64),
            (Launches::Persistent, 0),
            (Launches::Persistent, 1),
            (Launches::Persistent, 64),
        ] {
            device.use_launches(launches).unwrap();
            let (ours, n_left) = answers(&mut device, &config, needs, 140, Some(ahead));
            assert_eq!(n_left, 0, "{what}, {launches:?}, {ahead} ahead: left to the host");
            for (lane, (ours, theirs)) in ours.iter().zip(&truth).enumerate() {
                let first = ours.iter().zip(theirs).position(|(a, b)| a != b);
                assert_eq!(first, None, "{what}, {launches:?}, {ahead} ahead, lane {lane}");
            }
        }
    }
}

/// A mask that comes too late leaves the choice to the sampler, and nothing else changes.
#[test]
fn late_masks_leave_the_choice_to_the_host() {
    let config = config(VOCAB);
    let Some(_gpu) = gpu_alone(&config, &all_ways(&config, LANES)) else { return };
    let mut device = device(&config, |_, _| {});
    device.use_launches(Launches::Ops).unwrap();
    let (truth, _) = answers(&mut device, &config, &LATE, 14, None);
    for (launches, ahead) in
        [(Launches::Graph, 0), (Launches::Persistent, 0), (Launches::Persistent, 64)]
    {
        device.use_launches(launches).unwrap();
        let (ours, n_left) = answers(&mut device, &config, &LATE, 14, Some(ahead));
        assert_eq!(ours, truth, "{launches:?}, {ahead} ahead");
        assert_eq!(n_left, 3, "{launches:?}, {ahead} ahead: tokens 2, 7 and 12");
    }
}

/// A rule that cannot go on is the sampler's error, not a token.
#[test]
fn a_rule_that_cannot_go_on_is_left_to_the_sampler() {
    let config = config(VOCAB);
    let Some(_gpu) = gpu_alone(&config, &all_ways(&config, LANES)) else { return };
    let mut device = device(&config, |_, _| {});
    let ops = plan(&config);
    for (way, kind) in [(Launches::Graph, 0), (Launches::Graph, 4), (Launches::Persistent, 1)] {
        device.use_launches(way).unwrap();
        let mut sampler = sampler((kind, Some(2), Some(Grammar::Broken)), 1, config.vocab);
        let mut next = 1;
        for row in 0..4 {
            let works = [work(0, next, row)];
            let lanes = [works[0].lane()];
            device.decode(&ops, &Step { lanes: &lanes }, &[Some(&sampler)], 3 - row).unwrap();
            match device.chosen(0, 0) {
                Some(token) => {
                    sampler.accept(token).unwrap();
                    next = token;
                }
                None => {
                    assert_eq!(row, 3);
                    let error = sampler.sample(device.logits(0)).unwrap_err();
                    assert_eq!(error, SamplingError::Constraint("it is over".into()));
                }
            }
        }
        assert_eq!(sampler.n_generated(), 3, "{way:?}");
    }
}

/// A launch that waits for a mask ends as soon as anything else is asked for, and leaves nothing.
#[test]
fn steps_begun_in_vain_do_not_wait_for_their_masks() {
    let config = config(VOCAB);
    let Some(_gpu) = gpu_alone(&config, &all_ways(&config, LANES)) else { return };
    let mut device = device(&config, |_, _| {});
    let ops = plan(&config);
    let new = || sampler((0, Some(3), Some(Grammar::Dense)), 1, config.vocab);
    let decode = |device: &mut CudaDevice, sampler: &Sampler, work: &Work, ahead: usize| {
        let lanes = [work.lane()];
        device.decode(&ops, &Step { lanes: &lanes }, &[Some(sampler)], ahead).unwrap();
        choice(device, 0).unwrap()
    };
    for way in [Launches::Graph, Launches::Persistent] {
        device.use_launches(way).unwrap();
        let truth = decode(&mut device, &new(), &work(1, 9, 0), 0);
        let mut times = Vec::new();
        for _ in 0..5 {
            decode(&mut device, &new(), &work(0, 1, 0), 60);
            let start = Instant::now();
            assert_eq!(decode(&mut device, &new(), &work(1, 9, 0), 0), truth, "{way:?}");
            times.push(start.elapsed());
        }
        times.sort_unstable();
        assert!(times[2] < Duration::from_millis(50), "{way:?}: {times:?}");
    }
}

/// Log-probabilities of equal logits are those of the lowest ids, however many are equal. A mask
/// does not hide what is no number.
#[test]
fn equal_logits_are_reported_and_faults_are_left_to_the_sampler() {
    let config = config(VOCAB);
    let Some(_gpu) = gpu_alone(&config, &all_ways(&config, LANES)) else { return };
    let ops = plan(&config);
    let of = |flat: bool, needs: Needs| {
        let mut device = device(&config, |row, values| {
            if flat {
                values.fill(0.0);
            } else if row == 1234 {
                values.fill(f32::NAN);
            }
        });
        for way in [Launches::Graph, Launches::Persistent] {
            device.use_launches(way).unwrap();
            let mut sampler = sampler(needs, 1, config.vocab);
            let works = [work(0, 1, 0)];
            let lanes = [works[0].lane()];
            device.decode(&ops, &Step { lanes: &lanes }, &[Some(&sampler)], 0).unwrap();
            let ours = choice(&device, 0);
            match sampler.sample(device.logits(0)) {
                Ok(truth) => assert_eq!(ours, Some(truth), "{way:?}, {needs:?}"),
                Err(error) => {
                    assert!(matches!(error, SamplingError::BadLogit { token: 1234, .. }));
                    assert_eq!(ours, None, "{way:?}, {needs:?}");
                }
            }
        }
    };
    for kind in [0, 4] {
        of(true, (kind, Some(20), None));
        of(true, (kind, Some(20), Some(Grammar::Sparse)));
        of(false, (kind, Some(5), None));
        of(false, (kind, None, Some(Grammar::Forced)));
    }
}
