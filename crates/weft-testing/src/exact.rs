//! Tests that `exact` is exact: an answer depends neither on how its prompt was cut, nor on which
//! rows were cached in which tier, nor on other lanes, nor on the kernels.

use std::collections::{HashMap, VecDeque};

use weft_core::chunk::{Composition, Kind, Piece, Repair, Tier};
use weft_core::device::{Device, Limits};
use weft_core::engine::{Engine, Event, Finished, LaneId, Request, RequestError, Tiers, Token};
use weft_core::model::Model;
use weft_core::sampling::Sampling;
use weft_core::store::Store;

use super::tokens;

/// Creates a device for the model, with these limits.
pub type Make<'m> = &'m dyn Fn(Limits) -> Box<dyn Device>;

/// The amount of work in a test.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub limits: Limits,
    /// Rounds of up to eight prompts side by side.
    pub rounds: usize,
    pub longest_prompt: usize,
    pub longest_answer: usize,
}

/// An engine with pages, memory and files answers prompts that share prefixes. The answers are
/// compared with those of each prompt alone without a cache, on a device that `truth` creates.
pub fn answers_are_the_cold_ones(
    model: &Model,
    make: Make<'_>,
    truth: Make<'_>,
    size: Size,
    seed: u64,
) {
    let answers = World::new(model, make, size, seed).run();
    // Devices take turns: kernels of one must not wait for kernels of another.
    let limits = Limits { pages: size.limits.positions.div_ceil(64) + 1, ..size.limits };
    let mut alone = Engine::new(model, truth(limits));
    let mut n_kept = 0;
    for (nth, answer) in answers.iter().enumerate() {
        let request = Request::new(answer.prompt.clone(), answer.sampling.clone()).cold();
        let mut generation = alone.generate(request).unwrap();
        let cold: Vec<Token> = generation.by_ref().map(Result::unwrap).collect();
        let finished = generation.finished().unwrap();
        let what = || format!("seed {seed}, answer {nth}: {}", answer.describe());
        let warm = &answer.tokens[..];
        let differs = warm.iter().zip(&cold).position(|(warm, cold)| warm != cold);
        assert_eq!(differs, None, "the first token that differs; {}", what());
        let Some(warm_finished) = &answer.finished else { continue };
        assert_eq!(warm.len(), cold.len(), "{}", what());
        assert_eq!(attention(warm_finished), attention(&finished), "{}", what());
        n_kept += usize::from(warm_finished.stats.cached_tokens > 0);
    }
    assert!(n_kept * 4 > answers.len(), "{n_kept} of {} found anything kept", answers.len());
}

/// The attention of an answer.
pub(crate) fn attention(finished: &Finished) -> Vec<f64> {
    let pieces = finished.report.pieces.iter().map(|piece| piece.attention);
    pieces.chain([finished.report.answer_attention]).collect()
}

/// A prompt and its answer.
struct Answer {
    prompt: Composition,
    sampling: Sampling,
    tokens: Vec<Token>,
    /// `None` if it was cancelled.
    finished: Option<Finished>,
}

impl Answer {
    fn describe(&self) -> String {
        let lengths: Vec<usize> = self.prompt.pieces.iter().map(|p| p.tokens.len()).collect();
        let stats = self.finished.as_ref().map(|finished| finished.stats);
        format!("pieces {lengths:?}, {stats:?}, {:?}", self.sampling)
    }
}

/// A running or waiting request.
struct Asked {
    prompt: Composition,
    sampling: Sampling,
    /// Cancelled after this many tokens.
    cancelled_after: Option<usize>,
}

struct World<'a> {
    model: &'a Model,
    make: Make<'a>,
    size: Size,
    random: Random,
    folder: tempfile::TempDir,
    engine: Engine,
    /// Prompts with their answers; later prompts start with them.
    seen: Vec<Vec<u32>>,
    answers: Vec<Answer>,
}

impl<'a> World<'a> {
    fn new(model: &'a Model, make: Make<'a>, size: Size, seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = open(model, make, size, &folder);
        let random = Random(seed);
        Self { model, make, size, random, folder, engine, seen: Vec::new(), answers: Vec::new() }
    }

    fn run(mut self) -> Vec<Answer> {
        for _ in 0..self.size.rounds {
            let n = 1 + self.random.below(8);
            let asked: VecDeque<Asked> = (0..n).map(|_| self.asked()).collect();
            self.answer_all(asked);
            self.disturb();
        }
        self.answers
    }

    /// Moves cached rows to other tiers, or starts a new process.
    fn disturb(&mut self) {
        match self.random.below(6) {
            0 | 1 => self.engine.demote(Tier::Ram),
            2 => self.engine.demote(Tier::Disk),
            3 => {
                self.engine.save(true);
                self.engine = open(self.model, self.make, self.size, &self.folder);
            }
            _ => {}
        }
    }

    fn asked(&mut self) -> Asked {
        let all = self.prompt();
        let mut pieces = Vec::new();
        let mut rest = &all[..];
        while !rest.is_empty() {
            let most = *self.random.pick(&[3, 40, 300]);
            let (piece, after) = rest.split_at((1 + self.random.below(most)).min(rest.len()));
            pieces.push(Piece::exact(Kind::Context, piece.to_vec()));
            rest = after;
            if pieces.len() == 100 && !rest.is_empty() {
                pieces.push(Piece::exact(Kind::Context, std::mem::take(&mut rest).to_vec()));
            }
        }
        let longest = self.size.longest_answer;
        let cancelled_after = (self.random.below(6) == 0).then(|| self.random.below(longest));
        let prompt = Composition { pieces, repair: Repair::None };
        Asked { prompt, sampling: self.sampling(), cancelled_after }
    }

    /// Tokens that start like an earlier prompt and its answer, up to any token, and continue
    /// differently; or the same tokens; or new ones.
    fn prompt(&mut self) -> Vec<u32> {
        let new = tokens(1 + self.random.below(300), self.random.below(1 << 30) as u32, 256);
        let mut prompt = match self.random.below(8) {
            0 => Vec::new(),
            _ if self.seen.is_empty() => Vec::new(),
            n => {
                let seen = self.seen[self.random.below(self.seen.len())].clone();
                let kept = if n < 3 { seen.len() } else { self.random.below(seen.len()) };
                seen[..kept].to_vec()
            }
        };
        if prompt.is_empty() || self.random.below(8) > 0 {
            prompt.extend(new);
        }
        prompt.truncate(self.size.longest_prompt);
        prompt
    }

    fn sampling(&mut self) -> Sampling {
        let random = &mut self.random;
        let plain = Sampling {
            seed: random.below(1 << 40) as u64,
            max_tokens: Some(1 + random.below(self.size.longest_answer)),
            ignore_eos: true,
            logprobs: (random.below(3) == 0).then_some(2),
            ..Sampling::default()
        };
        match random.below(7) {
            0 | 1 => Sampling { temperature: 0.0, ..plain },
            2 => plain,
            3 => Sampling { temperature: 0.8, top_k: 20, ..plain },
            4 => Sampling { top_p: 0.9, min_p: 0.01, ..plain },
            5 => Sampling { presence_penalty: 0.7, frequency_penalty: 0.2, ..plain },
            _ => Sampling {
                top_k: 300,
                repetition_penalty: 1.3,
                logit_bias: vec![(7, 2.0), (90, -3.0)],
                ..plain
            },
        }
    }

    /// Answers all requests side by side. They arrive one after the other, while others run.
    fn answer_all(&mut self, mut waiting: VecDeque<Asked>) {
        let mut running: HashMap<LaneId, (Asked, Request, Vec<Token>)> = HashMap::new();
        while !(waiting.is_empty() && running.is_empty()) {
            if running.is_empty() || self.random.below(3) == 0 {
                self.admit(&mut waiting, &mut running);
            }
            for event in self.engine.step().unwrap() {
                let lane = event.lane();
                match event {
                    Event::Token { token, .. } => {
                        let (asked, request, tokens) = running.get_mut(&lane).unwrap();
                        tokens.push(token);
                        if asked.cancelled_after == Some(tokens.len()) {
                            request.cancel.cancel();
                        }
                    }
                    Event::Done { finished, .. } => {
                        let (asked, _, tokens) = running.remove(&lane).unwrap();
                        self.keep(asked, tokens, finished);
                    }
                    Event::Failed { error, .. } => panic!("{error}"),
                    Event::Read { .. } | Event::Prompt { .. } => panic!("no request reads"),
                    Event::Prefill { done, .. } => {
                        let (asked, request, _) = &running[&lane];
                        if asked.cancelled_after == Some(0) && done > 70 {
                            request.cancel.cancel();
                        }
                    }
                }
            }
        }
    }

    fn admit(
        &mut self,
        waiting: &mut VecDeque<Asked>,
        running: &mut HashMap<LaneId, (Asked, Request, Vec<Token>)>,
    ) {
        let Some(asked) = waiting.pop_front() else { return };
        let request = Request::new(asked.prompt.clone(), asked.sampling.clone());
        match self.engine.add(request.clone()) {
            Ok(lane) => {
                running.insert(lane, (asked, request, Vec::new()));
            }
            Err(RequestError::NoRoom(_)) if !running.is_empty() => waiting.push_front(asked),
            Err(error) => panic!("{error}"),
        }
    }

    fn keep(&mut self, asked: Asked, tokens: Vec<Token>, finished: Finished) {
        let is_whole = asked.cancelled_after.is_none();
        let ids = tokens.iter().map(|token| token.id);
        self.seen.push(asked.prompt.tokens().into_iter().chain(ids).collect());
        let Asked { prompt, sampling, .. } = asked;
        self.answers.push(Answer {
            prompt,
            sampling,
            tokens,
            finished: is_whole.then_some(finished),
        });
    }
}

fn open(model: &Model, make: Make<'_>, size: Size, folder: &tempfile::TempDir) -> Engine {
    let store = Store::open(folder.path(), 1 << 30).unwrap();
    // Main memory for a third of the pages' rows, so that some move on to disk.
    let device = make(size.limits);
    let row_bytes = model.config.kv_bytes_per_token(device.dtype());
    let ram_bytes = size.limits.pages as u64 * 64 / 3 * row_bytes;
    Engine::with_tiers(model, device, Tiers { ram_bytes, store: Some(store), ..Tiers::default() })
}

/// Random numbers from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * n as u128) >> 64) as usize
    }

    pub(crate) fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len())]
    }
}
