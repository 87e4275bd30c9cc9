//! A device that chooses tokens and starts steps early: the engine's answers, reports and cache
//! equal those with a device that does neither.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::wrapped::wrapped;
use super::*;
use crate::device::{MAX_DRAFT, Outputs, Span};
use crate::sampling::{Constraint, Logprobs};

/// A lane's part of a step, owned.
#[derive(Clone, PartialEq)]
struct HeldNode {
    token: u32,
    position: u32,
    key_position: u32,
    slot: u32,
    spans: Vec<Span>,
    marks: Vec<u32>,
}

impl HeldNode {
    fn of(lane: &Lane<'_>) -> Self {
        Self {
            token: lane.tokens[0],
            position: lane.positions[0],
            key_position: lane.key_positions[0],
            slot: lane.store_at[0],
            spans: lane.spans.to_vec(),
            marks: lane.marks.to_vec(),
        }
    }

    fn lane(&self) -> Lane<'_> {
        Lane {
            tokens: std::slice::from_ref(&self.token),
            positions: std::slice::from_ref(&self.position),
            key_positions: std::slice::from_ref(&self.key_position),
            store_at: std::slice::from_ref(&self.slot),
            spans: &self.spans,
            marks: &self.marks,
            outputs: Outputs::Last,
        }
    }

    fn follow(&mut self, token: u32) {
        self.token = token;
        self.position += 1;
        self.key_position += 1;
        self.slot += 1;
        self.spans.last_mut().unwrap().len += 1;
    }
}

/// The results of a step that was started early.
struct Begun {
    nodes: Vec<HeldNode>,
    /// For each lane and output.
    chosen: Vec<Vec<Option<Choice>>>,
    attention: Vec<Vec<Vec<f32>>>,
}

impl Begun {
    fn choice(&self, lane: usize, output: usize) -> Option<&Choice> {
        self.chosen[lane].get(output)?.as_ref()
    }
}

/// Chooses by copies of the samplers, and runs as many steps early as it may.
struct Ahead {
    device: Box<dyn Device>,
    /// The last requested step, then the steps started early.
    begun: Vec<Begun>,
    /// Leaves every n-th choice to the engine.
    leaves: usize,
    n_choices: usize,
    served: Arc<AtomicUsize>,
}

impl Ahead {
    fn choose(
        &mut self,
        step: &Step<'_>,
        samplers: &mut [Option<Sampler>],
        nodes: &[HeldNode],
    ) -> Begun {
        let (mut first, mut chosen, mut attention) = (0, Vec::new(), Vec::new());
        for (index, (lane, sampler)) in step.lanes.iter().zip(samplers).enumerate() {
            let outputs = 0..lane.n_outputs();
            let choose = |output| self.choose_one(sampler.as_mut()?, lane, output, first + output);
            chosen.push(outputs.clone().map(choose).collect());
            let is_reported =
                |output: &usize| step.n_tokens() <= MAX_DRAFT || output + 1 == lane.n_outputs();
            let shares = |output: usize| match is_reported(&output) {
                true => self.device.attention(index, output),
                false => Vec::new(),
            };
            attention.push(outputs.map(shares).collect());
            first += lane.n_outputs();
        }
        Begun { nodes: nodes.to_vec(), chosen, attention }
    }

    /// Chooses as a copy of the sampler does after the draft's tokens before this output. The
    /// sampler of a lane without a draft goes on with its choice.
    fn choose_one(
        &mut self,
        sampler: &mut Sampler,
        lane: &Lane<'_>,
        output: usize,
        row: usize,
    ) -> Option<Choice> {
        self.n_choices += 1;
        let mut copy = sampler.clone();
        let drafted = if lane.n_outputs() > 1 { &lane.tokens[1..=output] } else { &[] };
        drafted.iter().try_for_each(|token| copy.accept(*token)).ok()?;
        let logits = &self.device.logits(row)[..copy.next_draw()?.vocab];
        if self.n_choices.is_multiple_of(self.leaves) {
            return None;
        }
        let choice = copy.sample(logits).unwrap();
        if lane.n_outputs() == 1 {
            *sampler = copy;
        }
        Some(choice)
    }

    fn begin(
        &mut self,
        ops: &[Op],
        step: &Step<'_>,
        samplers: &[Option<&Sampler>],
        ahead: usize,
    ) -> Result<(), DeviceError> {
        self.device.run(ops, step)?;
        let mut copies: Vec<_> = samplers.iter().map(|sampler| sampler.cloned()).collect();
        let is_single = step.lanes.iter().all(|lane| lane.tokens.len() == 1);
        let mut nodes: Vec<HeldNode> =
            if is_single { step.lanes.iter().map(HeldNode::of).collect() } else { Vec::new() };
        self.begun = vec![self.choose(step, &mut copies, &nodes)];
        for _ in 0..ahead {
            let chosen = self.begun.last().unwrap().chosen.iter();
            let Some(tokens) = chosen.map(|choices| Some(choices[0].as_ref()?.token)).collect()
            else {
                break;
            };
            let tokens: Vec<u32> = tokens;
            nodes.iter_mut().zip(tokens).for_each(|(held, token)| held.follow(token));
            let lanes: Vec<Lane<'_>> = nodes.iter().map(HeldNode::lane).collect();
            let step = Step { lanes: &lanes };
            self.device.run(ops, &step)?;
            let begun = self.choose(&step, &mut copies, &nodes);
            self.begun.push(begun);
        }
        Ok(())
    }
}

impl Device for Ahead {
    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        self.begun.clear();
        self.device.run(ops, step)
    }

    fn decode(
        &mut self,
        ops: &[Op],
        step: &Step<'_>,
        samplers: &[Option<&Sampler>],
        ahead: usize,
    ) -> Result<(), DeviceError> {
        let is_begun = self.begun.get(1).is_some_and(|begun| {
            let nodes: Vec<HeldNode> = step.lanes.iter().map(HeldNode::of).collect();
            step.n_tokens() == step.lanes.len() && begun.nodes == nodes
        });
        if is_begun {
            self.begun.remove(0);
            self.served.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.begin(ops, step, samplers, ahead)
    }

    fn chosen(&self, lane: usize, output: usize) -> Option<u32> {
        self.begun.first().and_then(|begun| Some(begun.choice(lane, output)?.token))
    }

    fn logprobs(&self, lane: usize, output: usize) -> Option<Logprobs> {
        self.begun.first().and_then(|begun| begun.choice(lane, output)?.logprobs.clone())
    }

    fn logits(&self, output: usize) -> &[f32] {
        let is_left = |begun: &Begun| begun.chosen.iter().flatten().any(Option::is_none);
        assert!(self.begun.first().is_none_or(is_left), "logits that may be gone");
        self.device.logits(output)
    }

    fn attention(&self, lane: usize, output: usize) -> Vec<f32> {
        let begun = self.begun.first().map(|begun| begun.attention[lane][output].clone());
        begun.unwrap_or_else(|| self.device.attention(lane, output))
    }

    wrapped!();
}

pub(super) fn ahead_engine(leaves: usize) -> (Engine, Arc<AtomicUsize>) {
    let model = model();
    let limits = Limits { step_tokens: 64, step_outputs: 16, positions: CONTEXT, pages: 80 };
    let device = reference::open(&model.config, &*model.weights, limits).unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let (begun, counter) = (Vec::new(), Arc::clone(&served));
    let device = Ahead { device, begun, leaves, n_choices: 0, served: counter };
    (Engine::new(&model, Box::new(device)), served)
}

/// Settings of several kinds, for answers long enough to fill pages.
fn settings(kind: u32) -> Sampling {
    let plain = Sampling { max_tokens: Some(100), ignore_eos: true, ..Sampling::default() };
    match kind % 7 {
        0 => Sampling { temperature: 0.0, ..plain },
        1 => Sampling { top_k: 20, seed: 3, repetition_penalty: 1.2, ..plain },
        2 => Sampling { logprobs: Some(2), max_tokens: Some(9), ..plain },
        3 => Sampling { stop: vec!["e".into()], top_k: 40, seed: 8, ..plain },
        4 => Sampling { presence_penalty: 1.0, logit_bias: vec![(9, 3.0)], seed: 1, ..plain },
        // With a constraint.
        5 => Sampling { temperature: 0.0, ..plain },
        _ => Sampling { logprobs: Some(3), top_k: 30, seed: 4, presence_penalty: 1.0, ..plain },
    }
}

/// Allows tokens by the last one.
#[derive(Clone, Debug, Default)]
pub(super) struct Rule(Vec<u32>);

impl Rule {
    fn allows(&self, token: u32) -> bool {
        let last = self.0.last().copied().unwrap_or_default();
        (token * 7 + last).is_multiple_of(3)
    }
}

impl Constraint for Rule {
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), String> {
        for (word, bits) in (0..).zip(mask) {
            let is_set = |bit: u32| u32::from(self.allows(word * 32 + bit)) << bit;
            *bits = (0..32).map(is_set).sum();
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        if !self.allows(token) {
            return Err(format!("{token} is forbidden"));
        }
        self.0.push(token);
        Ok(())
    }

    fn roll_back(&mut self, n: usize) -> Result<(), String> {
        self.0.truncate(self.0.len() - n);
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// A request of some kind.
pub(super) fn request(kind: u32) -> Request {
    let mut request = Request::new(exact(&[kind], kind), settings(kind));
    if kind >= 5 {
        request.constraint = Some(Box::new(Rule::default()));
    }
    request
}

/// The reported parts of an answer: its tokens, how it ended, and its attention.
pub(super) fn outcomes(
    engine: &mut Engine,
    requests: Vec<Request>,
) -> Vec<(Vec<Token>, FinishReason, Vec<f64>)> {
    let answers = engine.generate_batch(requests).unwrap();
    let outcomes = answers.into_iter().map(|answer| {
        let finished = answer.ending.unwrap();
        let report = finished.report;
        let looked = report.pieces.iter().map(|piece| piece.attention);
        let looked = looked.chain([report.answer_attention]).collect();
        (answer.tokens, finished.reason, looked)
    });
    outcomes.collect()
}

#[test]
fn answers_are_those_of_a_device_that_waits_to_be_asked() {
    for (kinds, leaves) in [(vec![0], 1000), (vec![1], 1000), (vec![0, 1, 4], 1000), (vec![1], 7)]
        .into_iter()
        .chain([(vec![0, 2, 1], 1000), (vec![3, 4, 0, 1], 11), (vec![3, 1], 1000)])
        .chain([(vec![5], 1000), (vec![6], 9), (vec![6, 2, 5, 1], 1000), (vec![5, 3, 6], 13)])
    {
        let requests = || kinds.iter().copied().map(request).collect();
        let (mut ours, served) = ahead_engine(leaves);
        ours.set_speculation(Speculate::Off);
        let mut theirs = engine();
        assert_eq!(outcomes(&mut ours, requests()), outcomes(&mut theirs, requests()), "{kinds:?}");
        assert!(served.load(Ordering::Relaxed) > 10, "{kinds:?}: steps were begun and used");
        // The cached rows are those of the answers; no wasted step left any.
        assert_eq!(
            outcomes(&mut ours, requests()),
            outcomes(&mut theirs, requests()),
            "{kinds:?} again"
        );
        ours.cache.check(&[]);
        assert_eq!(ours.cache.n_promised(), 0);
    }
}

#[test]
fn tokens_are_reported_one_by_one_and_a_cancel_ends_an_answer_at_once() {
    let (mut engine, served) = ahead_engine(1000);
    engine.set_speculation(Speculate::Off);
    let prompt = exact(&[1], 0);
    let truth = outcomes(&mut self::engine(), vec![Request::new(prompt.clone(), settings(0))]);
    let request = Request::new(prompt.clone(), settings(0));
    let cancel = request.cancel.clone();
    engine.add(request).unwrap();
    let mut said = Vec::new();
    while said.len() < 20 {
        let events = engine.step().unwrap();
        let tokens = events.iter().filter(|event| matches!(event, Event::Token { .. })).count();
        assert!(tokens <= 1, "a step reports at most one token of a lane");
        said.extend(events.into_iter().filter_map(|event| match event {
            Event::Token { token, .. } => Some(token),
            _ => None,
        }));
    }
    assert!(served.load(Ordering::Relaxed) > 10);
    cancel.cancel();
    let events = engine.step().unwrap();
    assert!(matches!(&events[..], [Event::Done { finished, .. }]
        if finished.reason == FinishReason::Cancelled));
    assert_eq!(said, truth[0].0[..20]);
    // The rows of the cancelled answer serve the same prompt with the answer's first tokens.
    let mut turn = prompt;
    turn.pieces.push(Piece::exact(Kind::Context, said.iter().map(|token| token.id).collect()));
    turn.pieces.push(query(4));
    let (again, _) = ask(&mut engine, &turn);
    assert_eq!(again, cold(&turn));
}
