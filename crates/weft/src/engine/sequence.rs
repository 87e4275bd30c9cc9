//! One lane's state: its tokens, where their KV rows are, and how its answer is going.

use std::time::{Duration, Instant};

use super::{Cancel, Event, FinishReason, Finished, LaneId, Request, Stats, Token};
use crate::device::{Lane, Outputs, Span};
use crate::kv::{PageId, Slot};
use crate::sampling::{Logprobs, Sampler, Sampling, SamplingError, TextStream};
use crate::tokenizer::Tokenizer;

pub(super) struct Sequence {
    id: LaneId,
    sampling: Sampling,
    cancel: Cancel,
    /// The prompt, then the answer.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Tokens whose KV rows are stored.
    stored: usize,
    /// Tokens of the step in hand.
    taken: usize,
    /// Position and slot of each token that the lane may hold.
    positions: Vec<u32>,
    slots: Vec<Slot>,
    spans: Vec<Span>,
    sampler: Sampler,
    text: TextStream,
    echo: TextStream,
    end: Option<End>,
    started: Instant,
    first_token: Option<Duration>,
}

enum End {
    Finished(FinishReason),
    Failed(SamplingError),
}

impl Sequence {
    pub(super) fn new(
        id: LaneId,
        request: Request,
        sampler: Sampler,
        length: usize,
        pages: Vec<PageId>,
    ) -> Self {
        let Request { prompt, sampling, cancel } = request;
        let span = Span { pages, len: length, home_position: 0, position: 0 };
        let positions = 0..u32::try_from(length).expect("Config bounds the positions");
        Self {
            id,
            sampler,
            text: TextStream::new(&sampling.stop),
            echo: TextStream::new(&[]),
            cancel,
            prompt_len: prompt.len(),
            stored: 0,
            taken: 0,
            positions: positions.collect(),
            slots: (0..length).map(|row| span.slot(row)).collect(),
            spans: vec![span],
            tokens: prompt,
            sampling,
            end: None,
            started: Instant::now(),
            first_token: None,
        }
    }

    pub(super) fn id(&self) -> LaneId {
        self.id
    }

    /// Tokens that are known and not yet run.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.stored
    }

    /// Whether each token of the prompt needs its logits.
    pub(super) fn wants_all_outputs(&self) -> bool {
        self.sampling.echo && self.sampling.logprobs.is_some() && self.stored < self.prompt_len
    }

    /// Puts the next `n` tokens into the step.
    pub(super) fn take(&mut self, n: usize) {
        self.taken = n;
        self.spans[0].len = self.stored + n;
    }

    /// This lane's part of the step.
    pub(super) fn lane(&self) -> Lane<'_> {
        let range = self.stored..self.stored + self.taken;
        let outputs = match self.taken {
            _ if self.wants_all_outputs() => Outputs::All,
            taken if taken == self.pending() => Outputs::Last,
            _ => Outputs::None,
        };
        Lane {
            tokens: &self.tokens[range.clone()],
            positions: &self.positions[range.clone()],
            key_positions: &self.positions[range.clone()],
            store_at: &self.slots[range],
            spans: &self.spans,
            outputs,
        }
    }

    /// Takes in the step's result; `logits(i)` is row i of this lane's outputs.
    pub(super) fn advance<'l>(
        &mut self,
        logits: &impl Fn(usize) -> &'l [f32],
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) {
        if let Err(error) = self.try_advance(logits, tokenizer, events) {
            self.end = Some(End::Failed(error));
        }
    }

    fn try_advance<'l>(
        &mut self,
        logits: &impl Fn(usize) -> &'l [f32],
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) -> Result<(), SamplingError> {
        let n_outputs = self.lane().n_outputs();
        if self.sampling.echo && self.stored < self.prompt_len {
            self.echo_prompt(logits, tokenizer, events)?;
        }
        self.stored += self.taken;
        if self.stored <= self.prompt_len {
            let (done, total) = (self.stored, self.prompt_len);
            events.push(Event::Prefill { lane: self.id, done, total });
        }
        if self.pending() > 0 {
            return Ok(());
        }
        if self.sampling.max_tokens == Some(0) {
            self.end = Some(End::Finished(FinishReason::Length));
            return Ok(());
        }
        let choice = self.sampler.sample(logits(n_outputs - 1))?;
        let token = self.accept(choice.token, choice.logprobs, tokenizer);
        events.push(Event::Token { lane: self.id, token });
        Ok(())
    }

    /// Takes one generated token: its text, and whether the answer ends with it.
    fn accept(&mut self, id: u32, logprobs: Option<Logprobs>, tokenizer: &Tokenizer) -> Token {
        self.first_token.get_or_insert_with(|| self.started.elapsed());
        self.tokens.push(id);
        let (text, end) = self.read_out(id, tokenizer);
        self.end = end.map(End::Finished);
        Token { id, text, logprobs }
    }

    /// The text that a token makes certain, and why the answer ends with it, if it does.
    fn read_out(&mut self, id: u32, tokenizer: &Tokenizer) -> (String, Option<FinishReason>) {
        if self.sampler.is_end(id) {
            return (self.text.finish(), Some(FinishReason::Stop));
        }
        let bytes = if tokenizer.is_special(id) { None } else { tokenizer.token_bytes(id) };
        let piece = self.text.push(bytes.unwrap_or_default());
        if piece.stopped.is_some() {
            return (piece.text, Some(FinishReason::Stop));
        }
        let is_full = Some(self.generated()) == self.sampling.max_tokens
            || self.tokens.len() == self.slots.len();
        if is_full {
            return (piece.text + &self.text.finish(), Some(FinishReason::Length));
        }
        (piece.text, None)
    }

    /// The prompt's tokens as events. A row of logits tells of the token after it, so a step with
    /// tokens i..j echoes tokens i+1..=j, and the very first token has no log-probability.
    fn echo_prompt<'l>(
        &mut self,
        logits: &impl Fn(usize) -> &'l [f32],
        tokenizer: &Tokenizer,
        events: &mut Vec<Event>,
    ) -> Result<(), SamplingError> {
        if self.stored == 0 {
            events.push(self.echo_token(0, None, tokenizer));
        }
        let last = (self.stored + self.taken).min(self.prompt_len - 1);
        for index in self.stored + 1..=last {
            let of_row =
                |top| Logprobs::of(logits(index - 1 - self.stored), self.tokens[index], top, index);
            let logprobs = self.sampling.logprobs.map(of_row).transpose()?;
            events.push(self.echo_token(index, logprobs, tokenizer));
        }
        Ok(())
    }

    fn echo_token(
        &mut self,
        index: usize,
        logprobs: Option<Logprobs>,
        tokenizer: &Tokenizer,
    ) -> Event {
        let id = self.tokens[index];
        let mut text = self.echo.push(tokenizer.token_bytes(id).unwrap_or_default()).text;
        if index + 1 == self.prompt_len {
            text.push_str(&self.echo.finish());
        }
        Event::Token { lane: self.id, token: Token { id, text, logprobs } }
    }

    fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Whether the lane has nothing more to run.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some() || self.cancel.is_cancelled()
    }

    /// The event that tells how the lane ended, and the pages to give back.
    pub(super) fn finish(self) -> (Event, impl Iterator<Item = PageId>) {
        let stats = Stats {
            prompt_tokens: self.prompt_len,
            generated_tokens: self.generated(),
            first_token: self.first_token.unwrap_or_default(),
            total: self.started.elapsed(),
        };
        let lane = self.id;
        let done = |reason| Event::Done { lane, finished: Finished { reason, stats } };
        let event = match self.end {
            Some(End::Failed(error)) => Event::Failed { lane, error },
            Some(End::Finished(reason)) => done(reason),
            None => done(FinishReason::Cancelled),
        };
        (event, self.spans.into_iter().flat_map(|span| span.pages))
    }
}
