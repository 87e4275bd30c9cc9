//! How a lane computes the parts of its prompt that nobody has.
//!
//! A step takes rows of the part that the lane is at, and of those after it as far as they go on where it ends: so a
//! prompt of many pieces takes no more steps than one of the same length in one piece.

use std::time::Duration;

use super::parts::Part;
use super::sequence::{Scores, Sequence, Work};
use super::{Event, Results};
use crate::cache::Cache;
use crate::device::{Device, Outputs};
use crate::sampling::SamplingError;
use crate::tokenizer::Tokenizer;

impl Sequence {
    /// Tokens of parts that this lane can fill now; none where another lane fills the one it is at.
    pub(super) fn fillable(&self, cache: &mut Cache) -> usize {
        let first = cache.node_mut(self.parts[self.at].node);
        if *first.filler.get_or_insert(self.id) != self.id {
            return 0;
        }
        let left = |index: usize| {
            self.parts[index].range.len() - cache.node(self.parts[index].node).filled
        };
        left(self.at) + self.parts_after(cache).map(left).sum::<usize>()
    }

    /// The parts after the one at hand that go on where it ends, in the same page. What each row of
    /// them sees is then told by its position alone.
    fn parts_after(&self, cache: &Cache) -> impl Iterator<Item = usize> {
        let sees_all = |index: usize| {
            let part: &Part = &self.parts[index];
            !part.is_moved() && part.sees == index
        };
        let goes_on = move |index: usize| {
            let node = cache.node(self.parts[index].node);
            let is_own = node.filler.is_none_or(|filler| filler == self.id);
            let part = &self.parts[index];
            let needs_copy = part.lead > 0 && part.pages[0] != self.parts[index - 1].last_page();
            let can_follow = is_own && node.filled == 0 && !needs_copy;
            sees_all(index) && can_follow && !self.repairs.is_due(index)
        };
        // Rows whose logits are wanted are told apart by their part.
        let is_plain = !self.speaker.echoes() && self.scores.is_none() && sees_all(self.at);
        let after = if is_plain { self.at + 1..self.parts.len() } else { 0..0 };
        after.take_while(move |index| goes_on(*index))
    }

    pub(super) fn prepare_fill(&mut self, n: usize, cache: &mut Cache, device: &mut dyn Device) {
        self.step.clear(Work::Fill);
        let sees = self.parts[self.at].sees;
        self.step.spans.clear();
        self.parts[..sees].iter().for_each(|part| part.add_to(&mut self.step.spans));
        let after: Vec<usize> = self.parts_after(cache).collect();
        let mut ends_prompt = false;
        for index in std::iter::once(self.at).chain(after) {
            let left = n - self.step.tokens.len();
            if left == 0 {
                break;
            }
            self.complete_pages(index + 1, cache, device);
            let part = &self.parts[index];
            let node = cache.node_mut(part.node);
            node.filler = Some(self.id);
            let rows = node.filled..part.range.len().min(node.filled + left);
            for row in rows.clone() {
                let position = part.home + row;
                self.step.push(node.tokens[row], position, position, part.slot(row));
            }
            // While it is computed a part stands at home, after what it may see.
            part.add_rows_to(&mut self.step.spans, part.home, rows.end);
            ends_prompt =
                index + 1 == self.parts.len() && rows.end == part.range.len() && !part.is_moved();
        }
        self.step.outputs = match () {
            () if self.wants_all_outputs() => Outputs::All,
            () if ends_prompt => Outputs::Last,
            () => Outputs::None,
        };
    }

    /// Takes in the rows of a step that filled parts.
    pub(super) fn fill(
        &mut self,
        cache: &mut Cache,
        results: &Results<'_>,
        time: Duration,
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) -> Result<(), SamplingError> {
        let n_tokens = self.step.tokens.len();
        let (mut left, mut done) = (n_tokens, 0);
        for part in &mut self.parts[self.at..] {
            if left == 0 {
                break;
            }
            let node = cache.node_mut(part.node);
            let rows = node.filled..part.range.len().min(node.filled + left);
            let share = time.mul_f64(rows.len() as f64 / n_tokens as f64);
            part.time += share;
            part.computed += rows.len();
            node.filled = rows.end;
            node.cost += share;
            if node.filled >= part.range.len() {
                // A lane that needs more of the node goes on with it.
                node.filler = None;
            }
            left -= rows.len();
            done = part.range.start + rows.end;
        }
        self.tell_logits(done - n_tokens..done, results, tokenizer, events)?;
        events.push(Event::Prefill { lane: self.id, done, total: self.prompt_len });
        Ok(())
    }

    /// Hands the logits of a range of the prompt to whoever wants them.
    fn tell_logits(
        &mut self,
        range: std::ops::Range<usize>,
        results: &Results<'_>,
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) -> Result<(), SamplingError> {
        if self.speaker.echoes() {
            let prompt = &self.tokens[..self.prompt_len];
            let logits = |row| results.logits(row);
            self.speaker.echo(prompt, range.clone(), &logits, tokenizer, self.id, events)?;
        }
        if let Some(Scores { from, to }) = &self.scores
            && self.parts[self.at].range.end > *from
        {
            for position in range.start.max(*from)..range.end {
                // Whoever asked may have lost interest.
                let _ = to.send(results.logits(position - range.start).to_vec());
            }
        }
        Ok(())
    }
}
