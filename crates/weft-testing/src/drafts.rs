//! Tests that drafts change nothing: answers with any drafts, right or wrong, equal those of plain
//! decoding, bit for bit.

use weft_core::chunk::{ChunkId, Composition, Kind, Piece, Repair, Reuse};
use weft_core::engine::{Engine, FinishReason, Request, Speculate, Speculation, Token};
use weft_core::model::Model;
use weft_core::sampling::{Constraint, Sampling};

use super::exact::{Make, Random, Size, attention};
use super::{Rule, tokens};

/// More tokens than any vocabulary has.
const ANY: usize = u32::MAX as usize;

/// A request, and how it is drafted the second time.
struct Asked {
    prompt: Composition,
    sampling: Sampling,
    has_rule: bool,
    speculate: Speculate,
    /// The share of right tokens in the prediction, in percent, if there is one.
    right: Option<usize>,
}

/// Everything of an answer that must be equal.
#[derive(Debug, PartialEq)]
struct Outcome {
    tokens: Vec<Token>,
    reason: FinishReason,
    attention: Vec<f64>,
    cached_tokens: usize,
    generated_tokens: usize,
}

/// Answers rounds of requests side by side, first plainly, then with drafts on another device that
/// has seen the same requests. Prompts share documents, some of them moved and repaired; samplers
/// are of all kinds, some with rules and stop strings; drafts are right, wrong and half right, from
/// predictions and from the context, of every length or as long as they pay. Answers, reports and
/// what is found in the cache are equal.
pub fn drafts_change_nothing(model: &Model, make: Make<'_>, size: Size, seed: u64) {
    let mut random = Random(seed);
    let mut rounds: Vec<Vec<Asked>> = (0..size.rounds)
        .map(|_| (0..1 + random.below(6)).map(|_| asked(&mut random, size)).collect())
        .collect();
    rounds[0].push(repetitive(asked(&mut random, size), size));
    // Devices take turns: kernels of one must not wait for kernels of another.
    let mut engine = Engine::new(model, make(size.limits));
    engine.set_speculation(Speculate::Off);
    let run = |engine: &mut Engine, requests: Vec<Request>| -> Vec<(Outcome, Speculation)> {
        engine.generate_batch(requests).unwrap().into_iter().map(outcome).collect()
    };
    let plain: Vec<Vec<_>> = rounds
        .iter()
        .map(|round| run(&mut engine, round.iter().map(Asked::request).collect()))
        .collect();
    drop(engine);
    let mut engine = Engine::new(model, make(size.limits));
    let mut all = Speculation::default();
    for (nth, (round, plain)) in rounds.iter().zip(plain).enumerate() {
        let requests = round.iter().zip(&plain).map(|(asked, (plain, counts))| {
            assert_eq!(*counts, Speculation::default(), "a plain answer drafts nothing");
            asked.with_draft(plain, &mut random)
        });
        let drafted = run(&mut engine, requests.collect());
        for ((asked, (plain, _)), (drafted, counts)) in round.iter().zip(plain).zip(drafted) {
            let (speculate, right) = (asked.speculate, asked.right);
            let what =
                format!("seed {seed}, round {nth}, {speculate}, {right:?} % right, {counts:?}");
            let pairs = drafted.tokens.iter().zip(&plain.tokens);
            let differs = pairs.into_iter().position(|(a, b)| a != b);
            assert_eq!(differs, None, "the first token that differs; {what}, {:?}", asked.sampling);
            assert_eq!(drafted, plain, "{what}");
            all = all.plus(&counts);
        }
    }
    let Speculation { context, prediction, .. } = all;
    assert!(prediction.accepted > 0 && prediction.accepted < prediction.drafted, "{all:?}");
    assert!(context.accepted > 0, "{all:?}");
}

/// Allows one of three tokens, by the last one and their number.
fn one_of_three(token: u32, last: u32, n_tokens: u32) -> bool {
    (token * 7 + last + n_tokens).is_multiple_of(3)
}

impl Asked {
    fn request(&self) -> Request {
        let mut request = Request::new(self.prompt.clone(), self.sampling.clone());
        let rule = || Box::new(Rule::new(ANY, one_of_three)) as Box<dyn Constraint>;
        request.constraint = self.has_rule.then(rule);
        request
    }

    /// The same with a prediction that is partly the plain answer.
    fn with_draft(&self, plain: &Outcome, random: &mut Random) -> Request {
        let mut request = self.request();
        request.speculate = Some(self.speculate);
        request.prediction = self.right.map(|right| {
            let corrupt = |token: &Token| match random.below(100) < right {
                true => vec![token.id],
                // Mostly another token; now and then one too many, or none.
                false => match random.below(8) {
                    0 => vec![token.id, 5],
                    1 => vec![],
                    _ => vec![(token.id + 1) % 256],
                },
            };
            plain.tokens.iter().flat_map(corrupt).collect()
        });
        request
    }
}

fn outcome(completion: weft_core::engine::Completion) -> (Outcome, Speculation) {
    let finished = completion.ending.unwrap();
    let outcome = Outcome {
        tokens: completion.tokens,
        reason: finished.reason,
        attention: attention(&finished),
        cached_tokens: finished.stats.cached_tokens,
        generated_tokens: finished.stats.generated_tokens,
    };
    (outcome, finished.stats.speculation)
}

fn asked(random: &mut Random, size: Size) -> Asked {
    let piece = |kind, n: usize, seed| {
        let tokens = tokens(n, seed, 256);
        let chunk = (kind == Kind::Context).then(|| ChunkId::of(kind, &tokens));
        Piece { chunk, ..Piece::exact(kind, tokens) }
    };
    let reuse = *random.pick(&[Reuse::Exact, Reuse::Exact, Reuse::Anchored, Reuse::Isolated]);
    let repair = *random.pick(&[Repair::None, Repair::Link(4)]);
    let mut pieces = vec![piece(Kind::System, 20, 1)];
    for _ in 0..random.below(4) {
        let seed = random.below(5) as u32;
        let longest = size.longest_prompt / 5;
        pieces.push(Piece { reuse, ..piece(Kind::Context, longest / 2 + seed as usize * 7, seed) });
    }
    pieces.push(piece(Kind::Query, 1 + random.below(70), random.below(1 << 20) as u32));
    Asked {
        prompt: Composition { pieces, repair },
        has_rule: random.below(4) == 0,
        sampling: sampling(random, size),
        speculate: match random.below(5) {
            0 => Speculate::Auto,
            _ => Speculate::Fixed(1 + random.below(Speculate::MAX)),
        },
        right: *random.pick(&[None, Some(0), Some(50), Some(90), Some(100)]),
    }
}

/// A request whose answer repeats itself, so that the context has something to draft.
fn repetitive(asked: Asked, size: Size) -> Asked {
    let sampling = Sampling {
        temperature: 0.0,
        logit_bias: vec![(7, 60.0), (9, 59.5)],
        presence_penalty: 0.7,
        max_tokens: Some(size.longest_answer),
        ignore_eos: true,
        logprobs: Some(1),
        ..Sampling::default()
    };
    Asked { sampling, has_rule: false, speculate: Speculate::Fixed(5), right: None, ..asked }
}

fn sampling(random: &mut Random, size: Size) -> Sampling {
    let max_tokens = 1 + random.below(size.longest_answer);
    let plain = Sampling {
        seed: random.below(1 << 40) as u64,
        max_tokens: Some(max_tokens),
        ignore_eos: random.below(4) > 0,
        logprobs: (random.below(3) == 0).then_some(2),
        stop: if random.below(5) == 0 { vec!["e".into(), "th".into()] } else { Vec::new() },
        stop_ids: if random.below(6) == 0 { (0..90).collect() } else { Vec::new() },
        min_tokens: random.below(12).min(max_tokens),
        ..Sampling::default()
    };
    match random.below(8) {
        0 | 1 => Sampling { temperature: 0.0, ..plain },
        2 => plain,
        3 => Sampling { temperature: 0.8, top_k: 20, ..plain },
        4 => Sampling { top_p: 0.9, min_p: 0.01, ..plain },
        5 => Sampling { presence_penalty: 0.7, frequency_penalty: 0.2, ..plain },
        6 => Sampling { temperature: 0.0, repetition_penalty: 1.3, ..plain },
        _ => Sampling {
            top_k: 300,
            repetition_penalty: 1.3,
            logit_bias: vec![(7, 2.0), (90, -3.0)],
            ..plain
        },
    }
}
