//! A sequence: a running request with the nodes of its prompt and the rows of its answer.
//!
//! It computes the nodes that are not cached, in order, waits for nodes that another lane computes,
//! repairs moved nodes, and then adds one row per token of the answer. All of `impl Sequence` lies
//! in this folder; [`OutputProcessor`] turns tokens into output.

mod answering;
mod filling;
mod paging;
mod reading;
mod report;
mod settling;

use std::ops::Range;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::held::{AnswerStart, HeldNode, Holding};
use super::output::OutputProcessor;
use super::repair::Repairs;
use super::speculation::Drafting;
use super::{Cancel, Event, FinishReason, Finished, LaneId, Reading, Results, Stats};
use crate::cache::{Cache, NewNode};
use crate::chunk::{Composition, Piece, Tier};
use crate::device::{Device, Lane, Outputs, Span};
use crate::kv::{PAGE_ROWS, PageId, Slot, pages_for};
use crate::sampling::{Sampler, SamplingError};
use crate::store::RowForm;
use crate::tokenizer::Tokenizer;

use self::paging::Answer;
use self::report::Attention;
use self::settling::Settling;

pub(super) struct Sequence {
    pub(super) id: LaneId,
    pub(super) cancel: Cancel,
    /// The prompt, then the answer.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    pub(super) pieces: Vec<Piece>,
    /// The ends of the pieces.
    marks: Vec<u32>,
    pub(super) nodes: Vec<HeldNode>,
    /// Number of nodes whose first pages hold the rows before theirs.
    pub(super) n_complete: usize,
    /// The node that is computed or waited for. All nodes are ready if it is past the last.
    pub(super) at: usize,
    pub(super) repairs: Repairs,
    answer: Answer,
    pub(super) drafting: Drafting,
    /// The lane's part of the current step.
    pub(super) step: Prepared,
    pub(super) output: OutputProcessor,
    attention: Attention,
    pub(super) scores: Option<Scores>,
    /// What it reads instead of answering, if it does.
    pub(super) reading: Option<Reading>,
    /// Copies that it waits for before it starts.
    pub(super) settling: Option<Settling>,
    /// Copies that its next step waits for.
    settles_in_step: Option<Settling>,
    /// Whether it is paused for a slow reader.
    pub(super) paused: bool,
    end: Option<End>,
    pub(super) started: Instant,
    first_token: Option<Duration>,
}

/// The receiver for the logits of the prompt's later tokens.
pub(super) struct Scores {
    /// The first token whose logits are sent.
    pub(super) from: usize,
    /// Columns of a row, at most.
    pub(super) width: usize,
    pub(super) to: Sender<Vec<f32>>,
}

enum End {
    Finished(FinishReason),
    Failed(SamplingError),
}

/// The kind of tokens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// None: another lane computes rows that this one needs.
    Wait,
    /// Rows of a node.
    Fill,
    /// Repaired rows.
    Repair,
    /// The prompt's last token again: its row is cached, and its logits are not.
    Again,
    /// The answer's last token, and a draft of the next ones.
    Answer,
}

/// A lane's part of a step, in the device's format.
pub(super) struct Prepared {
    work: Work,
    pub(super) tokens: Vec<u32>,
    positions: Vec<u32>,
    key_positions: Vec<u32>,
    store_at: Vec<Slot>,
    pub(super) spans: Vec<Span>,
    /// Rows of the answer in the last span.
    n_covered: usize,
    pub(super) outputs: Outputs,
}

impl Prepared {
    pub(super) fn clear(&mut self, work: Work) {
        self.work = work;
        self.tokens.clear();
        self.positions.clear();
        self.key_positions.clear();
        self.store_at.clear();
        self.outputs = Outputs::None;
    }

    pub(super) fn push(&mut self, token: u32, position: usize, key_position: usize, slot: Slot) {
        // `Config` bounds the positions.
        self.tokens.push(token);
        self.positions.push(position as u32);
        self.key_positions.push(key_position as u32);
        self.store_at.push(slot);
    }
}

impl Sequence {
    pub(super) fn new(
        id: LaneId,
        cancel: Cancel,
        composition: Composition,
        holding: Holding,
        output: OutputProcessor,
        is_kept: bool,
    ) -> Self {
        let tokens = composition.tokens();
        let Holding { nodes, answer: start, promised } = holding;
        let mut end = 0;
        let piece_end = |piece: &Piece| {
            end += piece.tokens.len() as u32;
            end
        };
        let marks: Vec<u32> = composition.pieces.iter().map(piece_end).collect();
        Self {
            id,
            cancel,
            prompt_len: tokens.len(),
            tokens,
            pieces: composition.pieces,
            at: 0,
            repairs: Repairs::new(&nodes, composition.repair),
            answer: Answer { pages: Vec::new(), start, promised, stored: 0, is_kept },
            step: Prepared {
                work: Work::Wait,
                tokens: Vec::new(),
                positions: Vec::new(),
                key_positions: Vec::new(),
                store_at: Vec::new(),
                spans: Vec::new(),
                n_covered: 0,
                outputs: Outputs::None,
            },
            drafting: Drafting::off(),
            attention: Attention::new(marks.len()),
            marks,
            n_complete: 0,
            settling: Some(Settling::new(&nodes)),
            settles_in_step: None,
            nodes,
            output,
            scores: None,
            reading: None,
            paused: false,
            end: None,
            started: Instant::now(),
            first_token: None,
        }
    }

    pub(super) fn id(&self) -> LaneId {
        self.id
    }

    /// The prompt's tokens.
    pub(super) fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt_len]
    }

    /// Whether every token of the prompt needs logits.
    pub(super) fn wants_all_outputs(&self) -> bool {
        let is_scored = |held: &HeldNode| {
            self.scores.as_ref().is_some_and(|scores| held.range.end > scores.from)
        };
        let reports = self.output.reports_prompt_logprobs();
        self.nodes.get(self.at).is_some_and(|held| reports || is_scored(held))
    }

    /// Sets a receiver for the logits of the prompt's tokens. Their rows must not be cached ones.
    pub(super) fn score(&mut self, scores: Scores) {
        self.scores = Some(scores);
    }

    /// Takes promised pages.
    pub(super) fn take_pages(
        &mut self,
        n: usize,
        cache: &mut Cache,
        device: &mut dyn Device,
    ) -> Vec<PageId> {
        self.answer.promised -= n;
        cache.take_pages(n, device)
    }

    /// Whether the rows to repair have to be chosen now.
    pub(super) fn has_to_choose_repairs(&mut self, cache: &Cache) -> bool {
        self.pass_ready_nodes(cache);
        self.settling.is_none() && self.repairs.is_to_choose(self.at)
    }

    /// Number of tokens that can run now; 0 while another lane computes rows that this one needs,
    /// or while its pages are not settled.
    pub(super) fn pending(&mut self, cache: &mut Cache) -> usize {
        self.pass_ready_nodes(cache);
        if self.paused || self.settling.is_some() {
            return 0;
        }
        if self.repairs.is_due(self.at) {
            return self.repairs.pending();
        }
        if self.at < self.nodes.len() { self.fillable(cache) } else { 1 }
    }

    fn pass_ready_nodes(&mut self, cache: &Cache) {
        let is_ready = |held: &HeldNode| cache.node(held.node).filled >= held.range.len();
        while !self.repairs.is_due(self.at)
            && let Some(held) = self.nodes.get_mut(self.at).filter(|held| is_ready(held))
        {
            // If another lane has computed it meanwhile, this lane found it in the device's pages.
            held.source = held.source.or((held.computed == 0).then_some(Tier::Device));
            self.at += 1;
        }
    }

    /// Puts the next `n` pending tokens into the step.
    pub(super) fn prepare(&mut self, n: usize, cache: &mut Cache, device: &mut dyn Device) {
        if n == 0 {
            self.step.clear(Work::Wait);
        } else if self.repairs.is_due(self.at) {
            self.prepare_repair(n);
        } else if self.at < self.nodes.len() {
            self.prepare_fill(n, cache, device);
        } else {
            self.prepare_answer(cache, device);
        }
    }

    fn prepare_repair(&mut self, n: usize) {
        self.step.clear(Work::Repair);
        self.add_spans(self.at);
        for (index, row) in self.repairs.next(n) {
            let held = &self.nodes[index];
            let position = held.range.start + row;
            self.step.push(self.tokens[position], position, held.home + row, held.slot(row));
        }
    }

    /// Makes the step attend to the first `n` nodes at their positions.
    fn add_spans(&mut self, n: usize) {
        self.step.spans.clear();
        self.nodes[..n].iter().for_each(|held| held.add_to(&mut self.step.spans));
    }

    /// This lane's part of the step, if it has one.
    pub(super) fn lane(&self) -> Option<Lane<'_>> {
        let Prepared { work, tokens, positions, key_positions, store_at, spans, outputs, .. } =
            &self.step;
        let outputs = if self.reads_state() { Outputs::None } else { *outputs };
        // Attention is only reported for tokens with logits.
        let marks = if outputs == Outputs::None { &[] } else { &self.marks[..] };
        (*work != Work::Wait).then_some(Lane {
            tokens,
            positions,
            key_positions,
            store_at,
            spans,
            marks,
            outputs,
        })
    }

    /// The sampler for the token of this step, if it gives one.
    pub(super) fn sampler(&self) -> Option<&Sampler> {
        let chooses = self.step.outputs == Outputs::Last || self.step.work == Work::Answer;
        chooses.then(|| self.output.sampler()).flatten()
    }

    /// Number of further steps that need nothing new: each adds a row to the answer's last page and
    /// a token to the answer.
    pub(super) fn steps_ahead(&self) -> usize {
        match self.step.work {
            Work::Answer if self.step.tokens.len() == 1 => {
                let rows = PAGE_ROWS - 1 - self.answer.next_row() % PAGE_ROWS;
                rows.min(self.output.left().saturating_sub(1))
            }
            _ => 0,
        }
    }

    /// Takes the step's results. `time` is the lane's share of the step's time.
    pub(super) fn advance(
        &mut self,
        cache: &mut Cache,
        results: &Results<'_>,
        time: Duration,
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) {
        let done = match self.step.work {
            Work::Wait => return,
            Work::Fill => self.fill(cache, results, time, tokenizer, events),
            Work::Repair => {
                self.repairs.advance(self.step.tokens.len(), &mut self.nodes, time);
                Ok(())
            }
            Work::Again => Ok(()),
            Work::Answer => self.verify(results, tokenizer, events),
        };
        let ends_prompt = self.step.work != Work::Answer
            && self.step.outputs != Outputs::None
            && self.is_prompt_done(cache);
        let reading = self.reading.clone();
        let done = done.and_then(|()| match (ends_prompt, &reading) {
            (true, Some(reading)) => self.read(reading, results, events),
            (true, None) => self.choose(self.n_outputs() - 1, None, results, tokenizer, events),
            (false, _) => Ok(()),
        });
        if let Err(error) = done {
            self.end = Some(End::Failed(error));
        }
    }

    fn n_outputs(&self) -> usize {
        self.lane().map_or(0, |lane| lane.n_outputs())
    }

    fn is_prompt_done(&self, cache: &Cache) -> bool {
        let rest = self.nodes.get(self.at..).unwrap_or_default();
        rest.iter().all(|held| cache.node(held.node).filled >= held.range.len())
    }

    /// Pages that it references.
    #[cfg(test)]
    pub(super) fn pages(&self) -> Vec<PageId> {
        let nodes = self.nodes.iter().flat_map(|held| &held.pages);
        nodes.chain(&self.answer.pages).copied().collect()
    }

    /// The positions of a node's rows that lie in a range of the prompt.
    pub(super) fn overlap(held: &HeldNode, range: &Range<usize>) -> usize {
        let end = held.range.end.min(range.end);
        end.saturating_sub(held.range.start.max(range.start))
    }

    /// Whether the lane has finished.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some() || self.cancel.is_cancelled()
    }

    /// Ends the lane: caches its rows or frees them, and reports how it ended.
    pub(super) fn finish(mut self, cache: &mut Cache) -> Event {
        let report = self.report();
        let stats = Stats {
            prompt_tokens: self.prompt_len,
            cached_tokens: report.cached_tokens(),
            generated_tokens: self.tokens.len() - self.prompt_len,
            first_token: self.first_token.unwrap_or_default(),
            total: self.started.elapsed(),
            speculation: self.drafting.counts(),
        };
        cache.count_prompt(stats.cached_tokens, self.prompt_len - stats.cached_tokens);
        self.give_back(cache);
        let (lane, stop) = (self.id, self.output.stopped());
        let done = |reason| Event::Done {
            lane,
            finished: Finished { reason, stats, report: report.clone(), stop },
        };
        match self.end {
            Some(End::Failed(error)) => Event::Failed { lane, error },
            Some(End::Finished(reason)) => done(reason),
            None => done(FinishReason::Cancelled),
        }
    }

    /// Releases the lane's memory, and caches the rows of its answer for the next turn.
    fn give_back(&mut self, cache: &mut Cache) {
        let mut pages = std::mem::take(&mut self.answer.pages);
        let rows = if self.answer.is_kept { self.answer.stored } else { 0 };
        let AnswerStart { parent, begin } = self.answer.start;
        let n_kept = if rows > 0 { pages_for(begin.lead + rows) } else { 0 };
        cache.give_back_pages(pages.split_off(n_kept));
        if rows > 0 {
            let tokens = self.tokens[self.prompt_len..self.prompt_len + rows].to_vec();
            let cost = cache.mean_cost() * rows as u32;
            let (home, lead) = (self.prompt_len, begin.lead);
            let (is_public, group) = (true, None);
            let (chunk, form) = (None, RowForm::Full);
            let new = NewNode { parent, home, tokens, lead, chunk, form, is_public, group };
            cache.adopt(new, pages, cost);
        }
        self.leave_nodes(cache);
        for held in &mut self.nodes {
            cache.give_back_pages(held.pages.drain(..));
            cache.let_go(held.node);
        }
        cache.release_promise(self.answer.promised);
    }
}
