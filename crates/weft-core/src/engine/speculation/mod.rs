//! Speculation: drafts of an answer's next tokens, which the device verifies in one step.
//!
//! A step of many tokens gives the bits of steps of one, and a draw depends on the seed and the
//! token's index alone. So a drafted token is accepted exactly if plain decoding would have chosen
//! it, and answers are equal bit for bit, with or without drafts. A [`Drafter`] guesses; `policy`
//! decides how much; `Sequence` verifies. Nothing here knows the lanes' pages or rows; a draft
//! model has its own (`model`).

mod context;
mod costs;
mod index;
mod model;
mod policy;
mod prediction;
mod request;

use std::time::Duration;

use crate::chunk::Piece;
use crate::config::Config;
use crate::device::{Device, MAX_DRAFT};
use crate::dtype::Dtype;
use crate::model::Model;
use crate::sampling::Sampler;
use crate::weights::Forms;

pub use self::model::{DraftModelError, check_draft_tokenizer};
pub use self::request::{DraftCounts, DraftSource, Speculate, Speculation, WrongSpeculate};

use self::context::Context;
use self::costs::{Costs, Odds, StepKind};
use self::model::DraftModel;
use self::policy::{Account, best_length};
use self::prediction::Prediction;
use super::Engine;
use super::sequence::Sequence;

/// The most that a step is taken to cost, in plain steps.
const MAX_COST: f64 = 4.0;

/// What a draft continues.
struct Text<'a> {
    /// The prompt, then the answer.
    tokens: &'a [u32],
    prompt_len: usize,
    /// The sampler of the next token.
    sampler: &'a Sampler,
}

/// A way to guess the next tokens of one answer. A drafter sees every text of its lane, or skips
/// some: it finds out what is new. Heads that read the model's own hidden rows would be one more;
/// they would get these rows with the text.
trait Drafter: Send {
    /// Its name in reports.
    fn source(&self) -> DraftSource;

    /// Adds up to `max` tokens that may follow a text to `to`, which is empty, and returns the
    /// support of the guess: the number of the text's last tokens that it follows from.
    fn draft(&mut self, text: &Text<'_>, max: usize, to: &mut Vec<u32>) -> usize;
}

/// The engine's part: what lanes share.
#[derive(Default)]
pub(super) struct Speculating {
    /// For requests that do not say.
    default: Speculate,
    costs: Costs,
    odds: Odds,
    pub(super) indexes: context::Indexes,
    model: Option<DraftModel>,
    /// Steps in which lanes could draft.
    n_rounds: usize,
}

/// A lane's part: its drafters and its current draft.
pub(super) struct Drafting {
    mode: Speculate,
    drafters: Vec<Box<dyn Drafter>>,
    account: Account,
    counts: Speculation,
    draft: Draft,
    /// Tokens of the answer when the account was last brought up to date.
    n_counted: usize,
}

/// A guess, and what became of it.
#[derive(Default)]
struct Draft {
    tokens: Vec<u32>,
    source: DraftSource,
    support: usize,
    n_accepted: usize,
}

impl Speculating {
    /// What the lanes of a model share.
    pub(super) fn new(config: &Config, forms: &Forms, dtype: Dtype) -> Self {
        Self { costs: Costs::new(config, forms, dtype), ..Self::default() }
    }

    /// Pages of the draft model that no lane has.
    #[cfg(test)]
    pub(super) fn free_draft_pages(&self) -> Option<usize> {
        self.model.as_ref().map(DraftModel::free_pages)
    }
}

impl Drafting {
    /// The drafters for a request, the ones that know most first.
    pub(super) fn new(
        speculate: Option<Speculate>,
        prediction: Option<&[u32]>,
        pieces: &[Piece],
        shared: &mut Speculating,
    ) -> Self {
        let mode = speculate.unwrap_or(shared.default);
        let mut drafters: Vec<Box<dyn Drafter>> = Vec::new();
        if mode != Speculate::Off {
            shared.odds.fade();
            if let Some(tokens) = prediction {
                drafters.push(Box::new(Prediction::new(tokens)));
            }
            drafters.push(Box::new(Context::new(pieces, &mut shared.indexes)));
            if let Some(model) = &shared.model {
                drafters.push(Box::new(model.drafter()));
            }
        }
        let (account, counts, draft) = Default::default();
        Self { mode, drafters, account, counts, draft, n_counted: 0 }
    }

    /// A lane that never drafts.
    pub(super) fn off() -> Self {
        let (account, counts, draft) = Default::default();
        Self { mode: Speculate::Off, drafters: Vec::new(), account, counts, draft, n_counted: 0 }
    }

    /// The tokens of the current draft.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.draft.tokens
    }

    /// Drafted and accepted tokens up to now.
    pub(super) fn counts(&self) -> Speculation {
        self.counts
    }

    /// The source of the current draft.
    pub(super) fn source(&self) -> DraftSource {
        self.draft.source
    }

    /// Counts a token of the draft that was chosen.
    pub(super) fn accept(&mut self) {
        self.draft.n_accepted += 1;
    }

    /// Drops the current draft, or all of it but the first tokens.
    fn truncate(&mut self, n: usize) {
        self.draft.tokens.truncate(n);
    }

    /// Makes a draft of at most `max` tokens, if one pays.
    pub(super) fn propose(
        &mut self,
        tokens: &[u32],
        prompt_len: usize,
        sampler: &Sampler,
        (max, n_lanes): (usize, usize),
        shared: &Speculating,
    ) {
        self.account.pass(tokens.len() - prompt_len - self.n_counted);
        self.n_counted = tokens.len() - prompt_len;
        let is_closed = self.mode == Speculate::Auto && !self.account.is_open();
        if max == 0 || self.mode == Speculate::Off || is_closed {
            return;
        }
        let text = Text { tokens, prompt_len, sampler };
        let mut best_gain = 0.0;
        for drafter in &mut self.drafters {
            let source = drafter.source();
            let has_model = source == DraftSource::Model;
            if has_model && !self.draft.tokens.is_empty() {
                break;
            }
            let length = |support: usize, max: usize| {
                let ratio = |n: usize| {
                    let n_tokens = n_lanes + n;
                    shared.costs.ratio(StepKind { n_lanes, n_tokens, has_model })
                };
                let odds = self.account.hope(shared.odds.of(source, support));
                let best = best_length(odds, max, n_lanes, ratio);
                let pays = |n: usize| self.account.affords((ratio(n) - 1.0) * n_lanes as f64);
                match self.mode {
                    Speculate::Auto => best.filter(|(n, _)| pays(*n)),
                    Speculate::Fixed(n) => Some((n.min(max), 1.0)),
                    Speculate::Off => None,
                }
            };
            // A model's draft costs time, so its length is chosen first.
            let max = match has_model {
                true => length(0, max).map_or(0, |(n, _)| n),
                false => max,
            };
            let mut guess = Vec::new();
            let support = drafter.draft(&text, max, &mut guess);
            let chosen = length(support, guess.len()).filter(|(_, gain)| *gain > best_gain);
            let Some((n, gain)) = chosen else { continue };
            guess.truncate(n);
            guess.truncate(sampler.possible(&guess));
            if !guess.is_empty() {
                best_gain = gain;
                self.draft = Draft { tokens: guess, source, support, n_accepted: 0 };
            }
        }
    }

    /// Takes the result of the step, and forgets the draft. `time` is that of the step in plain
    /// steps of the same lanes, if that is known.
    fn settle(&mut self, n_lanes: usize, n_drafted: usize, time: Option<f64>, odds: &mut Odds) {
        let Draft { tokens, source, support, n_accepted } = std::mem::take(&mut self.draft);
        if tokens.is_empty() {
            return;
        }
        self.counts.add(source, tokens.len(), n_accepted);
        odds.record(source, support, tokens.len(), n_accepted);
        // The lane pays for all that wait, and lanes with drafts share that.
        let share = tokens.len() as f64 / n_drafted as f64;
        let cost = time.map_or(0.0, |time| (time - 1.0) * n_lanes as f64 * share);
        self.account.settle(n_accepted, cost);
    }
}

impl Engine {
    /// Sets how requests speculate that do not say. [`Speculate::Auto`] if it is never called.
    pub fn set_speculation(&mut self, speculate: Speculate) {
        self.speculating.default = speculate;
    }

    /// Lets a second model, on its own device, draft for requests that are added from now on. Its
    /// tokenizer must be the same.
    pub fn set_draft_model(
        &mut self,
        model: &Model,
        device: Box<dyn Device>,
    ) -> Result<(), DraftModelError> {
        check_draft_tokenizer(&model.tokenizer, &self.tokenizer)?;
        self.speculating.model = Some(DraftModel::new(model, device));
        Ok(())
    }

    /// Lets lanes draft, if every lane that runs goes on with its answer. Together they have
    /// [`MAX_DRAFT`] tokens.
    pub(super) fn draft(&mut self, pending: &[usize]) {
        let Self { lanes, speculating, .. } = self;
        let n_lanes = pending.iter().filter(|n| **n > 0).count();
        let running = || pending.iter().map(|n| *n > 0);
        let all_answer =
            lanes.iter().zip(running()).all(|(lane, runs)| !runs || lane.is_answering());
        if !all_answer {
            return;
        }
        let places = MAX_DRAFT.saturating_sub(n_lanes);
        for (lane, _) in lanes.iter_mut().zip(running()).filter(|(_, runs)| *runs) {
            lane.propose(places, n_lanes, speculating);
        }
        // Lanes share the places: the longest drafts give way, those of other lanes each time.
        speculating.n_rounds += 1;
        let (turn, n_all) = (speculating.n_rounds, lanes.len());
        while lanes.iter().map(|lane| lane.drafting.tokens().len()).sum::<usize>() > places {
            let by_turn = |(index, lane): &(usize, &mut Sequence)| {
                (lane.drafting.tokens().len(), (index + turn) % n_all)
            };
            let Some((_, lane)) = lanes.iter_mut().enumerate().max_by_key(by_turn) else { return };
            lane.drafting.truncate(lane.drafting.tokens().len() - 1);
        }
    }

    /// Takes the time of a step and the results of its drafts. Its `n_answers` lanes all went on
    /// with their answers.
    pub(super) fn settle_drafts(&mut self, n_answers: usize, time: Duration) {
        let Self { lanes, speculating: Speculating { costs, odds, .. }, .. } = self;
        let drafts = lanes.iter().map(|lane| &lane.drafting.draft);
        let n_drafted: usize = drafts.clone().map(|draft| draft.tokens.len()).sum();
        let is_slow =
            |draft: &Draft| draft.source == DraftSource::Model && !draft.tokens.is_empty();
        let has_model = drafts.clone().any(is_slow);
        let n_tokens = n_answers + n_drafted;
        costs.record(StepKind { n_lanes: n_answers, n_tokens, has_model }, time.as_secs_f64());
        // A step that waited for something else must not end all drafts.
        let in_plain = |plain: f64| (time.as_secs_f64() / plain).min(MAX_COST);
        let in_plain = costs.plain(n_answers).map(in_plain);
        for lane in lanes {
            lane.drafting.settle(n_answers, n_drafted, in_plain, odds);
        }
    }
}
