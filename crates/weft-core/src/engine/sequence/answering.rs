//! Adds tokens to a lane's answer: one by one, or a draft of several that one step verifies.
//!
//! A step runs the answer's last token and the draft after it, each in its own row. Rows of drafted
//! tokens that are not chosen lie after the answer's rows, where nobody sees them, and are
//! overwritten by the next step.

use super::{End, Sequence, Work};
use crate::cache::Cache;
use crate::device::{Device, Outputs};
use crate::engine::held;
use crate::engine::speculation::Speculating;
use crate::engine::{Event, Results};
use crate::kv::{pages_for, slot};
use crate::sampling::SamplingError;
use crate::tokenizer::Tokenizer;

impl Sequence {
    pub(super) fn prepare_answer(&mut self, cache: &mut Cache, device: &mut dyn Device) {
        self.complete_pages(self.nodes.len(), cache, device);
        if self.answer.pages.is_empty() {
            self.begin_answer(cache, device);
        }
        let is_again = self.tokens.len() == self.prompt_len;
        if self.step.work != Work::Answer {
            self.add_spans(self.nodes.len());
            self.step.n_covered = 0;
        }
        let position = self.tokens.len() - 1;
        self.step.clear(if is_again { Work::Again } else { Work::Answer });
        let n_tokens = 1 + self.drafting.tokens().len();
        let rows = self.answer.next_row()..self.answer.next_row() + n_tokens;
        let missing = pages_for(rows.end) - self.answer.pages.len().min(pages_for(rows.end));
        let pages = self.take_pages(missing, cache, device);
        self.answer.pages.extend(pages);
        let tokens = [self.tokens[position]].into_iter().chain(self.drafting.tokens().to_vec());
        for ((position, row), token) in (position..).zip(rows).zip(tokens) {
            self.step.push(token, position, position, slot(&self.answer.pages, row));
        }
        self.step.outputs = if n_tokens > 1 { Outputs::All } else { Outputs::Last };
        if !is_again {
            self.cover_answer(self.answer.stored + n_tokens);
        }
        // The row of a token that runs again is cached. The new one has the same bits, and is
        // overwritten by the row of the answer's first token.
    }

    /// Makes the last span end with the first `rows` rows of the answer.
    fn cover_answer(&mut self, rows: usize) {
        let pages = &self.answer.pages[..pages_for(self.answer.start.begin.lead + rows)];
        let span = self.step.spans.last_mut().expect("a prompt has rows");
        debug_assert_eq!(span.home_position, span.position, "an answer goes on at home");
        span.len -= self.step.n_covered;
        held::extend(span, pages, rows);
        self.step.n_covered = rows;
    }

    /// Whether its prompt is done: what it runs next is its answer.
    pub(in crate::engine) fn is_answering(&self) -> bool {
        self.at >= self.nodes.len() && !self.repairs.is_due(self.at)
    }

    /// Whether this step runs its answer, or the prompt's last token for the answer's first one.
    pub(in crate::engine) fn has_answered(&self) -> bool {
        matches!(self.step.work, Work::Answer | Work::Again)
    }

    /// Makes a draft of at most `max` tokens, beside `n_lanes - 1` other lanes. It never leads past
    /// the answer's last token, so the promised pages suffice.
    pub(in crate::engine) fn propose(&mut self, max: usize, n_lanes: usize, shared: &Speculating) {
        let max = max.min(self.output.left().saturating_sub(1));
        let has_begun = self.tokens.len() > self.prompt_len;
        if let Some(sampler) = self.output.sampler().filter(|_| has_begun) {
            let (tokens, prompt_len) = (&self.tokens[..], self.prompt_len);
            self.drafting.propose(tokens, prompt_len, sampler, (max, n_lanes), shared);
        }
    }

    /// Chooses a token for each output, as long as the tokens are the drafted ones. The row of a
    /// token counts as stored once the token is part of the answer.
    pub(super) fn verify(
        &mut self,
        results: &Results<'_>,
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) -> Result<(), SamplingError> {
        for output in 0..self.step.tokens.len() {
            self.answer.stored += 1;
            let drafted = self.step.tokens.get(output + 1).copied();
            self.choose(output, drafted, results, tokenizer, events)?;
            if self.end.is_some() || drafted.is_none() || self.tokens.last() != drafted.as_ref() {
                break;
            }
        }
        Ok(())
    }

    /// Chooses the answer's next token. `drafted` is the token that was expected, if any.
    pub(super) fn choose(
        &mut self,
        output: usize,
        drafted: Option<u32>,
        results: &Results<'_>,
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) -> Result<(), SamplingError> {
        self.attention.add(&results.attention(output));
        let (token, reason) =
            self.output.next(results.chosen(output), || results.logits(output), tokenizer)?;
        if let Some(token) = token {
            self.first_token.get_or_insert_with(|| self.started.elapsed());
            self.tokens.push(token.id);
            let is_accepted = drafted == Some(token.id);
            let drafted = is_accepted.then(|| self.drafting.source());
            if is_accepted {
                self.drafting.accept();
            }
            events.push(Event::Token { lane: self.id, token, drafted });
        }
        self.end = reason.map(End::Finished);
        Ok(())
    }
}
