//! The engine: requests go in, tokens come out.
//!
//! [`Engine::step`] is one round of the main loop: it chooses how many tokens each lane runs, runs
//! the plan on the device, samples the lanes that have run all their tokens, and removes finished
//! lanes. [`Engine::generate`] calls it for one request and returns the tokens as an iterator.

mod batch;
mod chunks;
mod event;
mod generation;
mod held;
mod output;
mod placement;
mod reading;
mod repair;
mod request;
mod sequence;
mod speculation;
mod stats;
#[cfg(test)]
mod tests;
mod verify;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::{Cache, RowShape};
use crate::chunk::{Composition, Library, Report};
use crate::device::{Device, DeviceError, Lane, MAX_LANES, Step};
use crate::model::Model;
use crate::plan::{Op, plan};
use crate::prompt::Template;
use crate::sampling::{Choice, Sampler};
use crate::tokenizer::Tokenizer;
use crate::weights::Forms;

pub use self::batch::Completion;
pub use self::chunks::{PiecePreview, Preview};
pub use self::event::{Event, PromptPrediction, PromptToken, Token};
pub use self::generation::{GenerateError, Generation};
pub use self::reading::Reading;
pub use self::request::{Cancel, Request, RequestError};
pub use self::speculation::{
    DraftCounts, DraftModelError, DraftSource, Speculate, Speculation, WrongSpeculate,
    check_draft_tokenizer,
};
pub use self::stats::{FinishReason, Finished, Stats};
pub use self::verify::{ScoredRows, Verification};
pub use crate::cache::{
    BreakerState, CacheStats, ChunkTiers, Fetched, Interest, LaneId, Latency, RemoteStats,
    RemoteTier, RowGroup, Saving, TierStats, Tiers, WhenFetched,
};

use self::held::Policy;
use self::output::OutputProcessor;
use self::sequence::Sequence;
use self::speculation::{Drafting, Speculating};

/// How long a step without work waits for rows from elsewhere. Its caller may have other work.
const NEWS_WAIT: Duration = Duration::from_millis(5);

/// A model on a device, its running lanes, and the cached rows.
pub struct Engine {
    plan: Vec<Op>,
    device: Box<dyn Device>,
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<Template>>,
    stop_ids: Vec<u32>,
    /// Number of tokens that prompts may contain and that may be drawn. If the model has more rows
    /// than the tokenizer has tokens, the others are padding.
    vocab: usize,
    /// Of the model; the context may have fewer.
    positions: usize,
    cache: Cache,
    library: Library,
    lanes: Vec<Sequence>,
    next_id: u64,
    /// Events of lanes that ran while another was run to its end. The next step reports them.
    unreported: Vec<Event>,
    /// Number of steps that the device may start early.
    reach: usize,
    /// Whether rows are kept for later requests.
    keeps: bool,
    /// The states of the lanes that read them in this step, in lane order.
    states: Vec<Vec<f32>>,
    speculating: Speculating,
    /// Whether the last step ran no lane and waited for nothing.
    was_idle: bool,
}

/// A lane's part of a step's results.
struct Results<'a> {
    device: &'a dyn Device,
    /// Number of tokens that can be drawn; the other logits are padding.
    vocab: usize,
    lane: usize,
    first_output: usize,
    /// The state of the lane's last token, if the lane reads it.
    state: Option<&'a [f32]>,
}

impl Results<'_> {
    /// Row `output` of the lane's logits.
    fn logits(&self, output: usize) -> &[f32] {
        self.logits_of(output, self.vocab)
    }

    /// The same, with at most `width` columns; those after the tokens are padding.
    fn logits_of(&self, output: usize, width: usize) -> &[f32] {
        let row = self.device.logits(self.first_output + output);
        &row[..width.min(row.len())]
    }

    /// The token that the device chose for an output of the lane, if any.
    fn chosen(&self, output: usize) -> Option<Choice> {
        let token = self.device.chosen(self.lane, output)?;
        Some(Choice { token, logprobs: self.device.logprobs(self.lane, output) })
    }

    fn attention(&self, output: usize) -> Vec<f32> {
        self.device.attention(self.lane, output)
    }
}

impl Engine {
    /// An engine for a model on a device that was created for it. Rows are cached only in the
    /// device's pages.
    pub fn new(model: &Model, device: Box<dyn Device>) -> Self {
        Self::with_tiers(model, device, Tiers::default())
    }

    /// The same, with tiers in main memory and on disk.
    pub fn with_tiers(model: &Model, device: Box<dyn Device>, tiers: Tiers) -> Self {
        let limits = device.limits();
        assert!(
            limits.step_tokens >= MAX_LANES && limits.step_outputs >= MAX_LANES,
            "a step must have room for a token and an output of each of {MAX_LANES} lanes"
        );
        let shape = RowShape::new(&model.config, device.dtype());
        let fingerprint = model.fingerprint(&device.kv_family());
        let mut cache = Cache::new(fingerprint, shape, limits.pages, tiers);
        cache.packs(device.packs_rows());
        let forms = Forms::of(&*model.weights, &model.config);
        Self {
            plan: plan(&model.config),
            tokenizer: Arc::clone(&model.tokenizer),
            template: model.template.clone(),
            stop_ids: model.stop_ids.clone(),
            vocab: model.tokenizer.vocab_size() as usize,
            positions: model.config.max_positions,
            cache,
            library: Library::default(),
            speculating: Speculating::new(&model.config, &forms, device.dtype()),
            device,
            lanes: Vec::with_capacity(MAX_LANES),
            next_id: 0,
            unreported: Vec::new(),
            reach: 0,
            keeps: true,
            states: Vec::new(),
            was_idle: false,
        }
    }

    /// Keeps no rows for later requests, and uses none of earlier ones.
    pub fn disable_cache(&mut self) {
        self.keeps = false;
    }

    /// The device the plan runs on.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Waits until steps are as fast as they will be, see [`Device::warm_up`].
    pub fn warm_up(&mut self) -> Result<(), DeviceError> {
        self.device.warm_up()
    }

    /// Maximum length of a context: prompt and answer together.
    pub fn context(&self) -> usize {
        self.device.limits().positions
    }

    /// Admits a request, and promises it all the memory that it can need. It never fails later for
    /// lack of memory.
    pub fn add(&mut self, request: Request) -> Result<LaneId, RequestError> {
        request.sampling.check(self.vocab)?;
        let request = request.settled();
        let policy = self.policy(&request);
        self.admit_lane(request, policy)
    }

    fn policy(&self, request: &Request) -> Policy {
        request.policy(request.use_cache && self.keeps)
    }

    fn admit_lane(&mut self, request: Request, policy: Policy) -> Result<LaneId, RequestError> {
        // Loading cached rows is part of the time to the first token.
        let started = Instant::now();
        let answer = self.check(&request)?;
        self.check_lane()?;
        let Request { prompt, sampling, cancel, constraint, group, reading, .. } = request;
        let (speculate, prediction) = (request.speculate, request.prediction);
        let tokens = prompt.tokens();
        let mut sampler = Sampler::new(&sampling, &tokens, &self.stop_ids, self.vocab)?;
        if let Some(rule) = constraint {
            sampler.constrain(rule);
        }
        let room = if policy.answers { self.context() - tokens.len() } else { 0 };
        let output = OutputProcessor::new(sampling, sampler, room);
        let id = LaneId(self.next_id);
        group.iter().for_each(|group| self.cache.join(group));
        let holding = held::take(&mut self.cache, &mut *self.device, id, &prompt, policy, answer)?;
        self.next_id += 1;
        if policy.keeps || policy.answers {
            self.count_uses(&prompt);
        }
        let drafting = match policy.answers {
            true => {
                let shared = &mut self.speculating;
                Drafting::new(speculate, prediction.as_deref(), &prompt.pieces, shared)
            }
            false => Drafting::off(),
        };
        let mut lane = Sequence::new(id, cancel, prompt, holding, output, policy.keeps);
        (lane.started, lane.drafting, lane.reading) = (started, drafting, reading);
        self.lanes.push(lane);
        Ok(id)
    }

    fn count_uses(&mut self, prompt: &Composition) {
        for id in prompt.pieces.iter().filter_map(|piece| piece.chunk) {
            self.library.count_use(&id);
            if self.library.is_pinned(&id) {
                // The lane references these rows now, so the promise still holds.
                let _ = self.cache.pin(&id, true);
            }
        }
    }

    /// Checks a request, and returns the maximum number of rows of its answer.
    fn check(&self, request: &Request) -> Result<usize, RequestError> {
        // If all rows of a prompt are cached, its last token runs again and needs a row.
        Ok(request.check(self.vocab, self.context(), self.positions)?.max(1))
    }

    fn check_lane(&self) -> Result<(), RequestError> {
        if self.lanes.len() == MAX_LANES { Err(RequestError::NoLane) } else { Ok(()) }
    }

    /// Whether a lane and pages are free for a request, beside the running lanes.
    pub fn check_room(&self, request: &Request) -> Result<(), RequestError> {
        let answer = self.check(request)?;
        self.check_lane()?;
        Ok(held::check_room(&self.cache, &request.prompt, self.policy(request), answer)?)
    }

    /// Generates an answer, and returns an iterator over its tokens.
    pub fn generate(&mut self, request: Request) -> Result<Generation<'_>, RequestError> {
        let lane = self.add(request)?;
        Ok(Generation::new(self, lane))
    }

    /// Number of running lanes.
    pub fn running(&self) -> usize {
        self.lanes.len()
    }

    /// The report on a running lane, so far. `None` if the lane has ended.
    pub fn report(&self, id: LaneId) -> Option<Report> {
        self.lanes.iter().find(|lane| lane.id() == id).map(Sequence::report)
    }

    /// Pauses a lane, or resumes it, so that unread tokens of a slow reader do not fill memory. The
    /// lane keeps its rows and its promised pages; lanes that wait for rows that it was computing
    /// compute them. Does nothing if the lane has ended.
    pub fn pause(&mut self, id: LaneId, paused: bool) {
        let Self { lanes, cache, .. } = self;
        if let Some(lane) = lanes.iter_mut().find(|lane| lane.id() == id) {
            lane.paused = paused;
            if paused {
                lane.leave_nodes(cache);
            }
        }
    }

    /// Whether a step would do anything: a lane is not paused, or has to be removed.
    pub fn has_work(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.paused || lane.is_over())
    }

    /// Whether the last step ran no lane and waited for nothing: the next one may do the same.
    pub fn was_idle(&self) -> bool {
        self.was_idle
    }

    /// Runs a lane to its end, together with the others, and drops its tokens.
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

    /// Advances every lane by a block of its prompt or a token of its answer, except paused lanes;
    /// by several tokens if a draft of them is accepted. Also reports events of other lanes during
    /// [`Engine::generate`], [`Engine::warm`] or [`Engine::verify`]. A device error ends all lanes.
    pub fn step(&mut self) -> Result<Vec<Event>, DeviceError> {
        let mut events = std::mem::take(&mut self.unreported);
        self.retire(&mut events);
        self.was_idle = false;
        if self.lanes.is_empty() {
            return Ok(events);
        }
        self.cache.tend(&mut *self.device);
        let has_waited = self.await_copies();
        self.cache.evict_ahead(&mut *self.device);
        let start = Instant::now();
        if let Err(error) = self.choose_repairs().and_then(|()| self.schedule_and_run()) {
            self.discard(|_| true);
            self.unreported = events;
            return Err(error);
        }
        self.was_idle = !has_waited && self.lanes.iter().all(|lane| lane.lane().is_none());
        self.advance(start.elapsed(), &mut events);
        self.retire(&mut events);
        Ok(events)
    }

    /// Runs a step for some lanes. A later step reports the events of the others.
    fn step_for(&mut self, is_mine: impl Fn(LaneId) -> bool) -> Result<Vec<Event>, DeviceError> {
        let (mine, others) = self.step()?.into_iter().partition(|event| is_mine(event.lane()));
        self.unreported = others;
        Ok(mine)
    }

    /// Lets lanes wait whose rows have not come or are not settled. If no other lane can run, waits
    /// for the first copy, or a moment for rows from elsewhere, and returns true.
    pub(in crate::engine) fn await_copies(&mut self) -> bool {
        let Self { lanes, device, cache, .. } = self;
        lanes.iter_mut().for_each(|lane| {
            lane.check_arrived(cache);
            lane.check_settled(&**device);
        });
        // A lane may also wait for one that waits.
        if lanes.iter_mut().any(|lane| lane.pending(cache) > 0) {
            return false;
        }
        let waits = |lane: &&mut Sequence| !lane.paused && lane.settling.is_some();
        if let Some(lane) = lanes.iter_mut().find(waits) {
            lane.settle(&mut **device);
            true
        } else if lanes.iter().any(|lane| !lane.paused && lane.is_awaiting()) {
            cache.wait_for_news(NEWS_WAIT, &mut **device);
            lanes.iter_mut().for_each(|lane| lane.check_arrived(cache));
            true
        } else {
            false
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

    /// Gives each lane that can run one token of the step, and distributes the remaining space to
    /// lanes with more tokens. A lane waits if another one is computing rows that it needs.
    fn schedule_and_run(&mut self) -> Result<(), DeviceError> {
        let Self { lanes, cache, .. } = self;
        let pending: Vec<usize> = lanes.iter_mut().map(|lane| lane.pending(cache)).collect();
        self.draft(&pending);
        let Self { lanes, cache, device, .. } = self;
        let limits = device.limits();
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
        self.run_states()?;
        let Self { lanes, device, .. } = self;
        let is_active = |lane: &&Sequence| lane.lane().is_some() && !lane.reads_state();
        let active: Vec<&Sequence> = lanes.iter().filter(is_active).collect();
        if active.is_empty() {
            return Ok(());
        }
        let ahead = active.iter().map(|lane| lane.steps_ahead()).min().unwrap_or_default();
        let samplers: Vec<_> = active.iter().map(|lane| lane.sampler()).collect();
        let lanes: Vec<Lane<'_>> = active.iter().filter_map(|lane| lane.lane()).collect();
        device.decode(&self.plan, &Step { lanes: &lanes }, &samplers, ahead.min(self.reach))?;
        // If the device left one choice to the sampler, it may do so again, and steps started early
        // would be wasted. A draft says nothing about that.
        let left_one =
            (0..lanes.len()).any(|i| samplers[i].is_some() && device.chosen(i, 0).is_none());
        if active.iter().all(|lane| lane.drafting.tokens().is_empty()) {
            self.reach = if left_one { 0 } else { self.reach.saturating_mul(2).saturating_add(1) };
        }
        Ok(())
    }

    /// Reads the step's results. The logits of all lanes are consecutive, in lane order.
    fn advance(&mut self, time: Duration, events: &mut Vec<Event>) {
        let Self { lanes, cache, device, tokenizer, vocab, states, .. } = self;
        let n_tokens = |lane: &Sequence| lane.lane().map_or(0, |lane| lane.tokens.len());
        let all_tokens: usize = lanes.iter().map(n_tokens).sum();
        let n_ran = lanes.iter().filter(|lane| lane.lane().is_some()).count();
        let n_answers = lanes.iter().filter(|lane| lane.has_answered()).count();
        let (device, vocab, mut states) = (&**device, *vocab, states.iter());
        let mut results = Results { device, vocab, lane: 0, first_output: 0, state: None };
        for lane in lanes {
            let Some((n_tokens, n_outputs)) =
                lane.lane().map(|lane| (lane.tokens.len(), lane.n_outputs()))
            else {
                continue;
            };
            let share = time.mul_f64(n_tokens as f64 / all_tokens as f64);
            let reads_state = lane.reads_state();
            results.state = if reads_state { states.next().map(Vec::as_slice) } else { None };
            lane.advance(cache, &results, share, tokenizer, events);
            results.first_output += n_outputs;
            results.lane += usize::from(!reads_state);
        }
        if n_answers > 0 && n_answers == n_ran {
            self.settle_drafts(n_answers, time);
        }
    }

    /// Pages that lanes reference.
    #[cfg(test)]
    fn lane_pages(&self) -> Vec<crate::kv::PageId> {
        self.lanes.iter().flat_map(Sequence::pages).collect()
    }

    /// Removes the lanes that are finished, cancelled or failed, and caches their rows.
    fn retire(&mut self, events: &mut Vec<Event>) {
        for lane in self.lanes.extract_if(.., |lane| lane.is_over()) {
            events.push(lane.finish(&mut self.cache));
        }
        self.cache.drop_unawaited();
    }

    /// Removes lanes at once, without an event.
    fn discard(&mut self, which: impl Fn(LaneId) -> bool) {
        for lane in self.lanes.extract_if(.., |lane| which(lane.id())) {
            lane.finish(&mut self.cache);
        }
    }
}
