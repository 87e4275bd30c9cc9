//! From logits to a reported token: its text, its log-probabilities, and whether it ends the
//! answer.

use std::ops::Range;

use super::{Event, FinishReason, LaneId, PromptPrediction, PromptToken, Token};
use crate::sampling::{Choice, Logprobs, Sampler, Sampling, SamplingError, TextStream};
use crate::tokenizer::Tokenizer;

pub(super) struct OutputProcessor {
    sampling: Sampling,
    sampler: Sampler,
    text: TextStream,
    echo: TextStream,
    generated: usize,
    /// Number of tokens that still fit the context.
    room: usize,
}

impl OutputProcessor {
    pub(super) fn new(sampling: Sampling, sampler: Sampler, room: usize) -> Self {
        Self {
            text: TextStream::new(&sampling.stop),
            echo: TextStream::new(&[]),
            sampling,
            sampler,
            generated: 0,
            room,
        }
    }

    /// Whether the prompt's tokens are reported too.
    pub(super) fn reports_prompt(&self) -> bool {
        self.sampling.reports_prompt()
    }

    /// Whether the prompt's log-probabilities are reported too.
    pub(super) fn reports_prompt_logprobs(&self) -> bool {
        let echoes_logprobs = self.sampling.echo && self.sampling.logprobs.is_some();
        echoes_logprobs || self.sampling.prompt_logprobs.is_some()
    }

    /// Which stop string ended the answer, if one did.
    pub(super) fn stopped(&self) -> Option<usize> {
        self.text.stopped()
    }

    /// The sampler of the next token, if there is one.
    pub(super) fn sampler(&self) -> Option<&Sampler> {
        (self.left() > 0).then_some(&self.sampler)
    }

    /// Maximum number of further tokens.
    pub(super) fn left(&self) -> usize {
        self.room.min(self.sampling.max_tokens.unwrap_or(usize::MAX)) - self.generated
    }

    /// The next token, if there is one, and why it ends the answer, if it does. The device has
    /// chosen it, or it is sampled here from the logits.
    pub(super) fn next<'l>(
        &mut self,
        chosen: Option<Choice>,
        logits: impl FnOnce() -> &'l [f32],
        tokenizer: &Tokenizer,
    ) -> Result<(Option<Token>, Option<FinishReason>), SamplingError> {
        if self.left() == 0 {
            return Ok((None, Some(FinishReason::Length)));
        }
        let Choice { token: id, logprobs } = match chosen {
            Some(choice) => {
                self.sampler.accept(choice.token)?;
                choice
            }
            None => self.sampler.sample(logits())?,
        };
        self.generated += 1;
        let (text, reason) = self.read_out(id, tokenizer);
        Ok((Some(Token { id, text, logprobs }), reason))
    }

    /// The text that a token completes, and why it ends the answer, if it does.
    fn read_out(&mut self, id: u32, tokenizer: &Tokenizer) -> (String, Option<FinishReason>) {
        if self.sampler.is_end(id) {
            return (self.text.finish(), Some(FinishReason::Stop));
        }
        let bytes = if tokenizer.is_special(id) { None } else { tokenizer.token_bytes(id) };
        let piece = self.text.push(bytes.unwrap_or_default());
        if piece.stopped.is_some() {
            return (piece.text, Some(FinishReason::Stop));
        }
        if self.left() == 0 {
            return (piece.text + &self.text.finish(), Some(FinishReason::Length));
        }
        (piece.text, None)
    }

    /// Reports the prompt's tokens `range`, which a step has run, as events. A row of logits
    /// predicts the token after it. This therefore reports the tokens from the second of the range
    /// to the one after it, and the very first token has no log-probability.
    pub(super) fn report_prompt<'l>(
        &mut self,
        prompt: &[u32],
        range: Range<usize>,
        logits: &impl Fn(usize) -> &'l [f32],
        tokenizer: &Tokenizer,
        lane: LaneId,
        events: &mut Vec<Event>,
    ) -> Result<(), SamplingError> {
        let first = if range.start == 0 { 0 } else { range.start + 1 };
        let last = range.end.min(prompt.len() - 1);
        let mut tokens = Vec::new();
        for index in first..=last {
            let row = (index > 0).then(|| logits(index - 1 - range.start));
            let logprobs = |top| {
                let of_row = |row| Logprobs::of(row, prompt[index], top, index);
                row.map(of_row).transpose()
            };
            if self.sampling.echo {
                let logprobs = self.sampling.logprobs.map(logprobs).transpose()?.flatten();
                events.push(self.echo_token(prompt, index, logprobs, tokenizer, lane));
            }
            if let Some(top) = self.sampling.prompt_logprobs {
                let id = prompt[index];
                let rank = row.map_or(0, |row| Logprobs::rank(row, id));
                let predicted = |logprobs| PromptPrediction { logprobs, rank };
                tokens.push(PromptToken { id, prediction: logprobs(top)?.map(predicted) });
            }
        }
        if !tokens.is_empty() {
            events.push(Event::Prompt { lane, tokens });
        }
        Ok(())
    }

    fn echo_token(
        &mut self,
        prompt: &[u32],
        index: usize,
        logprobs: Option<Logprobs>,
        tokenizer: &Tokenizer,
        lane: LaneId,
    ) -> Event {
        let id = prompt[index];
        let mut text = self.echo.push(tokenizer.token_bytes(id).unwrap_or_default()).text;
        if index + 1 == prompt.len() {
            text.push_str(&self.echo.finish());
        }
        Event::Token { lane, token: Token { id, text, logprobs }, drafted: None }
    }
}
