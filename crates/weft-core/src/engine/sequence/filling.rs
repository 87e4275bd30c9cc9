//! Computes the nodes of a lane's prompt that are not cached.
//!
//! A step takes rows of the current node, and of the nodes that continue where it ends. A prompt of
//! many pieces thus takes no more steps than one piece of the same length.

use std::time::Duration;

use super::{Scores, Sequence, Work};
use crate::cache::Cache;
use crate::device::{Device, Outputs};
use crate::engine::held::HeldNode;
use crate::engine::{Event, Results};
use crate::sampling::SamplingError;
use crate::tokenizer::Tokenizer;

impl Sequence {
    /// Number of tokens that this lane can compute now; 0 if another lane computes the current
    /// node, or its rows are on their way.
    pub(super) fn fillable(&self, cache: &mut Cache) -> usize {
        let first = cache.node_mut(self.nodes[self.at].node);
        if first.awaits().is_some() || *first.filler.get_or_insert(self.id) != self.id {
            return 0;
        }
        let left = |index: usize| {
            self.nodes[index].range.len() - cache.node(self.nodes[index].node).filled
        };
        left(self.at) + self.nodes_after(cache).map(left).sum::<usize>()
    }

    /// Leaves the nodes that it was computing to any lane that needs them, itself included.
    pub(in crate::engine) fn leave_nodes(&self, cache: &mut Cache) {
        for held in &self.nodes {
            cache.node_mut(held.node).filler.take_if(|filler| *filler == self.id);
        }
    }

    /// The nodes after the current one that continue where it ends, in the same page. Which rows
    /// each of their tokens sees then depends only on its position.
    fn nodes_after(&self, cache: &Cache) -> impl Iterator<Item = usize> {
        let sees_all = |index: usize| {
            let held: &HeldNode = &self.nodes[index];
            !held.is_moved() && held.sees.are_all_before(index)
        };
        let goes_on = move |index: usize| {
            let node = cache.node(self.nodes[index].node);
            let is_own = node.filler.is_none_or(|filler| filler == self.id);
            let held = &self.nodes[index];
            let needs_copy = held.lead > 0 && held.pages[0] != self.nodes[index - 1].last_page();
            let is_empty = node.filled == 0 && node.awaits().is_none();
            let can_follow = is_own && is_empty && !needs_copy;
            sees_all(index) && can_follow && !self.repairs.is_due(index)
        };
        // If logits of the prompt are requested, nodes run one by one, because they are assigned by
        // node.
        let is_plain = !self.output.reports_prompt() && self.scores.is_none() && sees_all(self.at);
        let after = if is_plain { self.at + 1..self.nodes.len() } else { 0..0 };
        after.take_while(move |index| goes_on(*index))
    }

    pub(super) fn prepare_fill(&mut self, n: usize, cache: &mut Cache, device: &mut dyn Device) {
        self.step.clear(Work::Fill);
        self.step.spans.clear();
        let current = &self.nodes[self.at];
        for seen in current.sees.places().map(|place| &self.nodes[place]) {
            let position = if current.sees.are_first() { seen.range.start } else { seen.home };
            seen.add_rows_to(&mut self.step.spans, position, seen.range.len());
        }
        let after: Vec<usize> = self.nodes_after(cache).collect();
        let mut ends_prompt = false;
        for index in std::iter::once(self.at).chain(after) {
            let left = n - self.step.tokens.len();
            if left == 0 {
                break;
            }
            self.complete_pages(index + 1, cache, device);
            let held = &self.nodes[index];
            let node = cache.node_mut(held.node);
            node.filler = Some(self.id);
            let rows = node.filled..held.range.len().min(node.filled + left);
            for row in rows.clone() {
                let position = held.home + row;
                self.step.push(node.tokens[row], position, position, held.slot(row));
            }
            // A node is computed at its home position, after the context that it attends to.
            held.add_rows_to(&mut self.step.spans, held.home, rows.end);
            ends_prompt =
                index + 1 == self.nodes.len() && rows.end == held.range.len() && !held.is_moved();
        }
        self.step.outputs = match () {
            () if self.wants_all_outputs() => Outputs::All,
            () if ends_prompt => Outputs::Last,
            () => Outputs::None,
        };
    }

    /// Takes the results of a step that filled nodes.
    pub(super) fn fill(
        &mut self,
        cache: &mut Cache,
        results: &Results<'_>,
        time: Duration,
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) -> Result<(), SamplingError> {
        let n_tokens = self.step.tokens.len();
        let time = self.computing_time(cache, time);
        let (mut left, mut done) = (n_tokens, 0);
        for held in &mut self.nodes[self.at..] {
            if left == 0 {
                break;
            }
            let node = cache.node_mut(held.node);
            let rows = node.filled..held.range.len().min(node.filled + left);
            let share = time.mul_f64(rows.len() as f64 / n_tokens as f64);
            held.time += share;
            held.computed += rows.len();
            node.filled = rows.end;
            node.cost += share;
            if node.filled >= held.range.len() {
                // A lane that needs more of the node continues it.
                node.filler = None;
            }
            left -= rows.len();
            done = held.range.start + rows.end;
        }
        self.send_logits(done - n_tokens..done, results, tokenizer, events)?;
        events.push(Event::Prefill { lane: self.id, done, total: self.prompt_len });
        Ok(())
    }

    /// Sends the logits of a range of the prompt to the receiver, if there is one.
    fn send_logits(
        &mut self,
        range: std::ops::Range<usize>,
        results: &Results<'_>,
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) -> Result<(), SamplingError> {
        if self.output.reports_prompt() {
            let prompt = &self.tokens[..self.prompt_len];
            let logits = |row| results.logits(row);
            let range = range.clone();
            self.output.report_prompt(prompt, range, &logits, tokenizer, self.id, events)?;
        }
        if let Some(Scores { from, width, to }) = &self.scores
            && self.nodes[self.at].range.end > *from
        {
            for position in range.start.max(*from)..range.end {
                // The receiver may be gone.
                let row = results.logits_of(position - range.start, *width);
                let _ = to.send(row.to_vec());
            }
        }
        Ok(())
    }
}
