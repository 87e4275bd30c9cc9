//! Complete answers and streamed answers.

use std::fmt;

use weft_core::chunk::Report;
use weft_core::engine::{FinishReason, Finished, Generation, Stats};
use weft_core::reasoning::{Parts, ReasoningStream};

use crate::error::Error;

/// A complete answer. `Display` prints its text.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The text, without the reasoning.
    pub text: String,
    /// The model's reasoning before the answer; empty if there was none.
    pub reasoning: String,
    /// Why generation ended.
    pub reason: FinishReason,
    /// Token counts and times.
    pub stats: Stats,
    /// Where the KV rows of each document came from, and how much attention each document got.
    pub report: Report,
}

impl Answer {
    pub(crate) fn new(parts: Parts, finished: Finished) -> Self {
        let Finished { reason, stats, report, .. } = finished;
        Self { text: parts.answer, reasoning: parts.reasoning, reason, stats, report }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A streamed answer: an iterator over pieces of its text. Dropping it cancels the generation.
pub struct Stream<'l> {
    generation: Generation<'l>,
    reasoning: ReasoningStream,
    parts: Parts,
    is_over: bool,
}

impl<'l> Stream<'l> {
    pub(crate) fn new(generation: Generation<'l>, reasoning: ReasoningStream) -> Self {
        Self { generation, reasoning, parts: Parts::default(), is_over: false }
    }

    /// Generates the rest, and returns the complete answer.
    ///
    /// # Errors
    /// [`Error::Generate`] if generation fails. [`Error::BrokenOff`] if the iterator has already
    /// returned that error.
    pub fn finish(mut self) -> Result<Answer, Error> {
        for piece in self.by_ref() {
            piece?;
        }
        let finished = self.generation.finished().ok_or(Error::BrokenOff)?;
        Ok(Answer::new(self.parts, finished))
    }

    /// The reasoning generated up to now.
    pub fn reasoning(&self) -> &str {
        &self.parts.reasoning
    }

    fn take(&mut self, more: Parts) -> String {
        self.parts.reasoning.push_str(&more.reasoning);
        self.parts.answer.push_str(&more.answer);
        more.answer
    }
}

impl Iterator for Stream<'_> {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over {
            let more = match self.generation.next() {
                Some(Ok(token)) => self.reasoning.push(&token.text),
                Some(Err(error)) => {
                    self.is_over = true;
                    return Some(Err(error.into()));
                }
                None => {
                    self.is_over = true;
                    self.reasoning.finish()
                }
            };
            let text = self.take(more);
            if !text.is_empty() {
                return Some(Ok(text));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use weft_core::engine::Request;
    use weft_core::sampling::Sampling;
    use weft_testing::stub::{self, Control};

    use super::*;

    #[test]
    fn a_stream_that_broke_off_gives_no_answer() {
        let (model, control) = (stub::model(), Arc::<Control>::default());
        let mut engine = stub::engine(&model, "a", &control);
        let request = Request::new(vec![1, 2, 3], Sampling::default());
        let generation = engine.generate(request).unwrap();
        let mut stream = Stream::new(generation, ReasoningStream::after(""));
        stream.next().unwrap().unwrap();
        control.fails.store(true, Ordering::Relaxed);
        let error = stream.by_ref().find_map(Result::err).expect("the device fails");
        assert!(matches!(error, Error::Generate(_)), "{error}");
        assert!(stream.next().is_none());
        assert!(matches!(stream.finish(), Err(Error::BrokenOff)));
    }
}
