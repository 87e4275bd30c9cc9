//! The main path: requests go in, tokens come out.
//!
//! [`Engine::step`] is the whole loop: choose how many tokens each lane runs, run the plan on the
//! device, sample the lanes that reached the end of what they know, retire those that are done.
//! [`Engine::generate`] drives it for one request and gives its tokens as an iterator.

mod batch;
mod chunks;
mod generation;
mod held;
mod output;
mod placement;
mod repair;
mod request;
mod sequence;
mod stats;
#[cfg(test)]
mod tests;
mod verify;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::{Cache, RowShape};
use crate::chunk::{Composition, Library};
use crate::device::{Device, DeviceError, Lane, MAX_LANES, Step};
use crate::model::Model;
use crate::plan::{Op, plan};
use crate::prompt::Template;
use crate::sampling::{Logprobs, Sampler, SamplingError};
use crate::tokenizer::Tokenizer;

pub use self::batch::Completion;
pub use self::chunks::{PiecePreview, Preview};
pub use self::generation::{GenerateError, Generation};
pub use self::request::{Cancel, Request, RequestError};
pub use self::stats::{FinishReason, Finished, Stats};

pub use self::verify::Verification;
pub use crate::cache::{CacheStats, LaneId, TierStats, Tiers};

use self::held::Policy;
use self::output::OutputProcessor;
use self::sequence::Sequence;

/// What happened to a lane in a step.
#[derive(Debug)]
pub enum Event {
    /// More of the prompt was run.
    Prefill {
        /// The lane.
        lane: LaneId,
        /// Prompt tokens run so far.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// A token was generated (or, with echo, taken from the prompt).
    Token {
        /// The lane.
        lane: LaneId,
        /// The token.
        token: Token,
    },
    /// The lane is done and gone.
    Done {
        /// The lane.
        lane: LaneId,
        /// Why, and what it took.
        finished: Finished,
    },
    /// The lane ended without an answer.
    Failed {
        /// The lane.
        lane: LaneId,
        /// Why.
        error: SamplingError,
    },
}

impl Event {
    /// The lane that it happened to.
    pub fn lane(&self) -> LaneId {
        match self {
            Self::Prefill { lane, .. }
            | Self::Token { lane, .. }
            | Self::Done { lane, .. }
            | Self::Failed { lane, .. } => *lane,
        }
    }
}

/// One token as the caller sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The text that became certain with it: whole characters, never part of a stop string. Empty
    /// while text is held back; the last token brings what is left.
    pub text: String,
    /// Log-probabilities, where they were asked for.
    pub logprobs: Option<Logprobs>,
}

/// A model on a device, the lanes that run on it, and the rows that are kept.
pub struct Engine {
    plan: Vec<Op>,
    device: Box<dyn Device>,
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<Template>>,
    stop_ids: Vec<u32>,
    /// Tokens that can be given and drawn. A model may have more rows than its tokenizer has
    /// tokens; those are padding.
    vocab: usize,
    cache: Cache,
    library: Library,
    lanes: Vec<Sequence>,
    next_id: u64,
    /// Events of lanes that ran beside one that was run to its end: the next step reports them.
    unreported: Vec<Event>,
    /// How many steps the device may begin before they are asked for.
    reach: usize,
}

/// A lane's part of what a step computed.
struct Results<'a> {
    device: &'a dyn Device,
    /// Tokens that can be drawn; logits of others are padding.
    vocab: usize,
    lane: usize,
    first_output: usize,
}

impl Results<'_> {
    /// Row `output` of the lane's logits.
    fn logits(&self, output: usize) -> &[f32] {
        &self.device.logits(self.first_output + output)[..self.vocab]
    }

    /// The token that the device chose, if it did.
    fn chosen(&self) -> Option<u32> {
        self.device.chosen(self.lane)
    }

    fn attention(&self) -> Vec<f32> {
        self.device.attention(self.lane)
    }
}

impl Engine {
    /// Puts a model on a device that was made for it. Rows are kept in the device's pages only.
    pub fn new(model: &Model, device: Box<dyn Device>) -> Self {
        Self::with_tiers(model, device, Tiers::default())
    }

    /// The same, with room for rows in main memory and on disk.
    pub fn with_tiers(model: &Model, device: Box<dyn Device>, tiers: Tiers) -> Self {
        let limits = device.limits();
        assert!(
            limits.step_tokens >= MAX_LANES && limits.step_outputs >= MAX_LANES,
            "a step must have room for a token and an output of each of {MAX_LANES} lanes"
        );
        let shape = RowShape::new(&model.config, device.dtype());
        let fingerprint = model.fingerprint(&device.kv_family());
        Self {
            plan: plan(&model.config),
            tokenizer: Arc::clone(&model.tokenizer),
            template: model.template.clone(),
            stop_ids: model.stop_ids.clone(),
            vocab: model.tokenizer.vocab_size() as usize,
            cache: Cache::new(fingerprint, shape, limits.pages, tiers),
            library: Library::default(),
            device,
            lanes: Vec::with_capacity(MAX_LANES),
            next_id: 0,
            unreported: Vec::new(),
            reach: 0,
        }
    }

    /// The device the plan runs on.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The longest context: prompt and answer together.
    pub fn context(&self) -> usize {
        self.device.limits().positions
    }

    /// Admits a request. All memory it can need is promised to it now, so that it never fails later
    /// for want of it.
    pub fn add(&mut self, request: Request) -> Result<LaneId, RequestError> {
        request.sampling.check(self.vocab)?;
        let request = request.settled();
        let policy = request.policy();
        self.admit_lane(request, policy)
    }

    fn admit_lane(&mut self, request: Request, policy: Policy) -> Result<LaneId, RequestError> {
        // Bringing kept rows is part of the time to the first token.
        let started = Instant::now();
        let answer = self.check(&request)?;
        self.check_lane()?;
        let Request { prompt, sampling, cancel, constraint, .. } = request;
        let tokens = prompt.tokens();
        let mut sampler = Sampler::new(&sampling, &tokens, &self.stop_ids, self.vocab)?;
        if let Some(rule) = constraint {
            sampler.constrain(rule);
        }
        let room = if policy.answers { self.context() - tokens.len() } else { 0 };
        let output = OutputProcessor::new(sampling, sampler, room);
        let id = LaneId(self.next_id);
        let holding = held::take(&mut self.cache, &mut *self.device, id, &prompt, policy, answer)?;
        self.next_id += 1;
        if policy.keeps || policy.answers {
            self.count_uses(&prompt);
        }
        let mut lane = Sequence::new(id, cancel, prompt, holding, output, policy.keeps);
        lane.started = started;
        self.lanes.push(lane);
        Ok(id)
    }

    fn count_uses(&mut self, prompt: &Composition) {
        for id in prompt.pieces.iter().filter_map(|piece| piece.chunk) {
            self.library.count_use(&id);
            if self.library.is_pinned(&id) {
                // The lane holds these rows now, so nothing that was promised is lost.
                let _ = self.cache.pin(&id, true);
            }
        }
    }

    /// Checks a prompt, and gives the rows that its answer can need at most.
    fn check(&self, request: &Request) -> Result<usize, RequestError> {
        // A prompt whose rows are all kept runs its last token again, and needs a row for it.
        Ok(request.check(self.vocab, self.context())?.max(1))
    }

    fn check_lane(&self) -> Result<(), RequestError> {
        if self.lanes.len() == MAX_LANES { Err(RequestError::NoLane) } else { Ok(()) }
    }

    /// Whether a lane and pages are free for a request beside the lanes that run.
    pub fn check_room(&self, request: &Request) -> Result<(), RequestError> {
        let answer = self.check(request)?;
        self.check_lane()?;
        Ok(held::check_room(&self.cache, &request.prompt, request.policy(), answer)?)
    }

    /// Generates an answer; the iterator gives its tokens as they come.
    pub fn generate(&mut self, request: Request) -> Result<Generation<'_>, RequestError> {
        let lane = self.add(request)?;
        Ok(Generation::new(self, lane))
    }

    /// Lanes that are running.
    pub fn running(&self) -> usize {
        self.lanes.len()
    }

    /// Has a lane wait, or go on: one whose reader is slow must not fill memory with what nobody
    /// reads. Its rows and its promise stay. A lane that is gone is no error.
    pub fn pause(&mut self, id: LaneId, paused: bool) {
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id() == id) {
            lane.paused = paused;
        }
    }

    /// Whether a step would do anything: some lane is not paused, or is to be taken out.
    pub fn has_work(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.paused || lane.is_over())
    }

    /// Runs a lane to its end, with those beside it, and lets its tokens go.
    fn finish_lane(&mut self, id: LaneId) -> Result<(), GenerateError> {
        while self.lanes.iter().any(|lane| lane.id() == id) {
            for event in self.step_for(|lane| lane == id)? {
                if let Event::Failed { error, .. } = event {
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Advances every lane: a block of its prompt, or one token of its answer; nothing where all are
    /// paused. Also reports what happened to lanes while [`Engine::generate`], [`Engine::warm`] or
    /// [`Engine::verify`] ran beside them. A device error ends all lanes.
    pub fn step(&mut self) -> Result<Vec<Event>, DeviceError> {
        let mut events = std::mem::take(&mut self.unreported);
        self.retire(&mut events);
        if self.lanes.is_empty() {
            return Ok(events);
        }
        self.await_copies();
        self.cache.evict_ahead(&mut *self.device);
        let start = Instant::now();
        if let Err(error) = self.choose_repairs().and_then(|()| self.schedule_and_run()) {
            self.discard(|_| true);
            self.unreported = events;
            return Err(error);
        }
        self.advance(start.elapsed(), &mut events);
        self.retire(&mut events);
        Ok(events)
    }

    /// A step for the sake of some lanes: a later step reports what happens to the others.
    fn step_for(&mut self, is_mine: impl Fn(LaneId) -> bool) -> Result<Vec<Event>, DeviceError> {
        let (mine, others) = self.step()?.into_iter().partition(|event| is_mine(event.lane()));
        self.unreported = others;
        Ok(mine)
    }

    /// Has lanes wait whose pages are not settled. Where no other can go on, the first is waited for.
    pub(in crate::engine) fn await_copies(&mut self) {
        let Self { lanes, device, cache, .. } = self;
        lanes.iter_mut().for_each(|lane| lane.check_settled(&**device));
        // A lane may also wait for one that waits.
        if lanes.iter_mut().any(|lane| lane.pending(cache) > 0) {
            return;
        }
        let waits = |lane: &&mut Sequence| !lane.paused && lane.settling.is_some();
        if let Some(lane) = lanes.iter_mut().find(waits) {
            lane.settle(&mut **device);
        }
    }

    fn choose_repairs(&mut self) -> Result<(), DeviceError> {
        let Self { lanes, cache, device, plan, .. } = self;
        for lane in lanes {
            while lane.has_to_choose_repairs(cache) {
                repair::choose(lane, cache, &mut **device, plan)?;
            }
        }
        Ok(())
    }

    /// Gives every lane that can go on one token of the step, and what room is left to lanes that
    /// have more to run. A lane that needs rows which another is computing waits.
    fn schedule_and_run(&mut self) -> Result<(), DeviceError> {
        let Self { lanes, cache, device, .. } = self;
        let limits = device.limits();
        let pending: Vec<usize> = lanes.iter_mut().map(|lane| lane.pending(cache)).collect();
        let active = pending.iter().filter(|n| **n > 0).count();
        let mut tokens = limits.step_tokens - active;
        let mut outputs = limits.step_outputs - active;
        for (lane, pending) in lanes.iter_mut().zip(pending) {
            let room = if lane.wants_all_outputs() { tokens.min(outputs) } else { tokens };
            let extra = room.min(pending.saturating_sub(1));
            lane.prepare(pending.min(1 + extra), cache, &mut **device);
            tokens -= extra;
            outputs -= if lane.wants_all_outputs() { extra } else { 0 };
        }
        let active: Vec<&Sequence> = lanes.iter().filter(|lane| lane.lane().is_some()).collect();
        if active.is_empty() {
            return Ok(());
        }
        let ahead = active.iter().map(|lane| lane.steps_ahead()).min().unwrap_or_default();
        let samplers: Vec<_> = active.iter().map(|lane| lane.sampler()).collect();
        let lanes: Vec<Lane<'_>> = active.iter().filter_map(|lane| lane.lane()).collect();
        device.decode(&self.plan, &Step { lanes: &lanes }, &samplers, ahead.min(self.reach))?;
        // A device that left a choice to the sampler may do so again: what it began would be in vain.
        let left_one =
            (0..lanes.len()).any(|i| samplers[i].is_some() && device.chosen(i).is_none());
        self.reach = if left_one { 0 } else { self.reach.saturating_mul(2).saturating_add(1) };
        Ok(())
    }

    /// Reads the step's results: each lane's rows of logits follow those of the lane before it.
    fn advance(&mut self, time: Duration, events: &mut Vec<Event>) {
        let Self { lanes, cache, device, tokenizer, vocab, .. } = self;
        let n_tokens = |lane: &Sequence| lane.lane().map_or(0, |lane| lane.tokens.len());
        let all_tokens: usize = lanes.iter().map(n_tokens).sum();
        let mut results = Results { device: &**device, vocab: *vocab, lane: 0, first_output: 0 };
        for lane in lanes {
            let Some((n_tokens, n_outputs)) =
                lane.lane().map(|lane| (lane.tokens.len(), lane.n_outputs()))
            else {
                continue;
            };
            let share = time.mul_f64(n_tokens as f64 / all_tokens as f64);
            lane.advance(cache, &results, share, tokenizer, events);
            results.first_output += n_outputs;
            results.lane += 1;
        }
    }

    /// Pages that lanes hold.
    #[cfg(test)]
    fn lane_pages(&self) -> Vec<crate::kv::PageId> {
        self.lanes.iter().flat_map(Sequence::pages).collect()
    }

    /// Takes out the lanes that are done, cancelled or failed; what they computed is kept.
    fn retire(&mut self, events: &mut Vec<Event>) {
        for lane in self.lanes.extract_if(.., |lane| lane.is_over()) {
            events.push(lane.finish(&mut self.cache));
        }
    }

    /// Takes out lanes at once, without an event.
    fn discard(&mut self, which: impl Fn(LaneId) -> bool) {
        for lane in self.lanes.extract_if(.., |lane| which(lane.id())) {
            lane.finish(&mut self.cache);
        }
    }
}
