//! The main path: requests go in, tokens come out.
//!
//! [`Engine::step`] is the whole loop: choose how many tokens each lane runs, run the plan on the
//! device, sample the lanes that reached the end of what they know, retire those that are done.
//! [`Engine::generate`] drives it for one request and gives its tokens as an iterator.

mod batch;
mod generation;
mod request;
mod sequence;
mod stats;

use std::sync::Arc;

use crate::device::{Device, DeviceError, Lane, MAX_LANES, Step};
use crate::kv::{PagePool, pages_for};
use crate::model::Model;
use crate::plan::{Op, plan};
use crate::sampling::{Logprobs, Sampler, SamplingError};
use crate::tokenizer::Tokenizer;

pub use self::batch::Completion;
pub use self::generation::{GenerateError, Generation};
pub use self::request::{Cancel, Request, RequestError};
pub use self::stats::{FinishReason, Finished, Stats};

use self::sequence::Sequence;

/// A running request. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(u64);

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
    /// The lane ended without an answer; nothing of it is kept.
    Failed {
        /// The lane.
        lane: LaneId,
        /// Why.
        error: SamplingError,
    },
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

/// A model on a device, and the lanes that run on it.
pub struct Engine {
    plan: Vec<Op>,
    device: Box<dyn Device>,
    tokenizer: Arc<Tokenizer>,
    stop_ids: Vec<u32>,
    /// Tokens that can be given and drawn. A model may have more rows than its tokenizer has
    /// tokens; those are padding.
    vocab: usize,
    pool: PagePool,
    lanes: Vec<Sequence>,
    next_id: u64,
}

impl Engine {
    /// Puts a model on a device that was made for it.
    pub fn new(model: &Model, device: Box<dyn Device>) -> Self {
        let limits = device.limits();
        assert!(
            limits.step_tokens >= MAX_LANES && limits.step_outputs >= MAX_LANES,
            "a step must have room for a token and an output of each of {MAX_LANES} lanes"
        );
        Self {
            plan: plan(&model.config),
            tokenizer: Arc::clone(&model.tokenizer),
            stop_ids: model.stop_ids.clone(),
            vocab: model.tokenizer.vocab_size() as usize,
            pool: PagePool::new(limits.pages),
            device,
            lanes: Vec::with_capacity(MAX_LANES),
            next_id: 0,
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

    /// Admits a request. All memory it can need is reserved now, so that it never fails later for
    /// want of it.
    pub fn add(&mut self, request: Request) -> Result<LaneId, RequestError> {
        let length = self.check(&request)?;
        self.check_room(length)?;
        let sampler = Sampler::new(&request.sampling, &request.prompt, &self.stop_ids, self.vocab)?;
        let pages = self.pool.take(pages_for(length))?;
        let id = LaneId(self.next_id);
        self.next_id += 1;
        self.lanes.push(Sequence::new(id, request, sampler, length, pages));
        Ok(id)
    }

    /// Checks a request in itself, and gives the number of KV rows it can need at most.
    fn check(&self, request: &Request) -> Result<usize, RequestError> {
        request.check(self.vocab, self.context())
    }

    /// Whether a lane and pages for `length` rows are free beside the lanes that run.
    fn check_room(&self, length: usize) -> Result<(), RequestError> {
        if self.lanes.len() == MAX_LANES {
            return Err(RequestError::NoLane);
        }
        Ok(self.pool.check(pages_for(length))?)
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

    /// Advances every lane: a block of its prompt, or one token of its answer. Does nothing where
    /// there is no lane. A device error ends all lanes.
    pub fn step(&mut self) -> Result<Vec<Event>, DeviceError> {
        let mut events = Vec::new();
        self.retire(&mut events);
        if self.lanes.is_empty() {
            return Ok(events);
        }
        self.schedule();
        if let Err(error) = self.run() {
            self.discard(|_| true);
            return Err(error);
        }
        self.sample(&mut events);
        self.retire(&mut events);
        Ok(events)
    }

    /// Gives every lane one token of the step, and what room is left to lanes in their prompt.
    fn schedule(&mut self) {
        let limits = self.device.limits();
        let mut tokens = limits.step_tokens - self.lanes.len();
        let mut outputs = limits.step_outputs - self.lanes.len();
        for lane in &mut self.lanes {
            let room = if lane.wants_all_outputs() { tokens.min(outputs) } else { tokens };
            let extra = room.min(lane.pending() - 1);
            lane.take(1 + extra);
            tokens -= extra;
            outputs -= if lane.wants_all_outputs() { extra } else { 0 };
        }
    }

    fn run(&mut self) -> Result<(), DeviceError> {
        let lanes: Vec<Lane<'_>> = self.lanes.iter().map(Sequence::lane).collect();
        self.device.run(&self.plan, &Step { lanes: &lanes })
    }

    /// Reads the step's logits: each lane's rows follow those of the lane before it.
    fn sample(&mut self, events: &mut Vec<Event>) {
        let mut first = 0;
        for lane in &mut self.lanes {
            let n_outputs = lane.lane().n_outputs();
            let logits = |output: usize| &self.device.logits(first + output)[..self.vocab];
            lane.advance(&logits, &self.tokenizer, events);
            first += n_outputs;
        }
    }

    /// Takes out the lanes that are done, cancelled or failed, and their pages with them.
    fn retire(&mut self, events: &mut Vec<Event>) {
        for lane in self.lanes.extract_if(.., |lane| lane.is_over()) {
            let (event, pages) = lane.finish();
            self.pool.give_back(pages);
            events.push(event);
        }
    }

    /// Takes out lanes at once, without telling anybody.
    fn discard(&mut self, which: impl Fn(LaneId) -> bool) {
        for lane in self.lanes.extract_if(.., |lane| which(lane.id())) {
            self.pool.give_back(lane.finish().1);
        }
    }
}
