//! The logits from which given tokens are drawn, and the comparison of an answer over chunks with
//! one over the plain prompt.
//!
//! To compare, the answer's tokens are run twice: after the composition as it was used, and after
//! the same tokens computed from scratch, each attending to everything before it. The distributions
//! of each next token are compared.

use std::sync::mpsc;

use serde::{Deserialize, Serialize};

use super::held::Policy;
use super::sequence::Scores;
use super::{Cancel, Engine, Event, GenerateError, LaneId, Request, RequestError};
use crate::chunk::{Composition, Kind, Piece};
use crate::compare::{argmax, log_softmax};
use crate::sampling::Sampling;

/// The comparison of an answer with the plain prompt's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// Tokens of the answer.
    pub tokens: usize,
    /// Tokens for which the most likely token differs.
    pub differing: usize,
    /// Mean |Δ log-probability| of the answer's tokens.
    pub mean_difference: f64,
    /// The largest of these differences.
    pub max_difference: f64,
    /// Tokens for which any bit of any logit differs.
    pub changed: usize,
    /// Mean Kullback-Leibler divergence of the composition from the plain prompt, in nats.
    pub divergence: f64,
}

impl Verification {
    /// Whether all logits are equal bit for bit.
    pub fn is_exact(&self) -> bool {
        self.changed == 0
    }

    /// Compares the logits from which each token of the answer was drawn.
    pub fn of(answer: &[u32], ours: &[Vec<f32>], cold: &[Vec<f32>]) -> Self {
        assert!(ours.len() == answer.len() && cold.len() == answer.len(), "a row for each token");
        let mut total = Self { tokens: answer.len(), ..Self::default() };
        for ((token, ours), cold) in answer.iter().zip(ours).zip(cold) {
            if ours == cold {
                continue;
            }
            total.changed += 1;
            total.differing += usize::from(argmax(ours) != argmax(cold));
            let (ours, cold) = (log_softmax(ours), log_softmax(cold));
            let difference = (ours[*token as usize] - cold[*token as usize]).abs();
            total.mean_difference += difference;
            total.max_difference = total.max_difference.max(difference);
            let terms = cold.iter().zip(&ours).map(|(cold, ours)| cold.exp() * (cold - ours));
            total.divergence += terms.sum::<f64>().max(0.0);
        }
        let n = answer.len().max(1) as f64;
        total.mean_difference /= n;
        total.divergence /= n;
        total
    }
}

impl Engine {
    /// Runs an answer again without the cache, and compares. Neither run adds to the cache.
    pub fn verify(
        &mut self,
        prompt: &Composition,
        answer: &[u32],
    ) -> Result<Verification, GenerateError> {
        let ours = self.score(prompt, answer, true)?;
        let cold = self.score(&prompt.exact(), answer, false)?;
        Ok(Verification::of(answer, &ours, &cold))
    }

    /// The logits from which each token of an answer was drawn. The query and everything after it
    /// is always computed; the rows before it may be cached.
    pub fn score(
        &mut self,
        prompt: &Composition,
        answer: &[u32],
        use_cache: bool,
    ) -> Result<Vec<Vec<f32>>, GenerateError> {
        if answer.is_empty() {
            return Ok(Vec::new());
        }
        let (lane, rows) = self.add_score(prompt, answer, use_cache, &Cancel::default())?;
        ScoredRows { engine: self, lane, rows }.collect()
    }

    /// Admits a lane that sends the logits from which each token of an answer was drawn, in order.
    pub fn add_score(
        &mut self,
        prompt: &Composition,
        answer: &[u32],
        use_cache: bool,
        cancel: &Cancel,
    ) -> Result<(LaneId, mpsc::Receiver<Vec<f32>>), RequestError> {
        self.admit_scored(prompt, answer, use_cache, cancel, self.vocab)
    }

    /// The logits from which the tokens from `from` on were drawn, each after all tokens before it.
    /// Rows come as they are computed, so few are in memory. They are as wide as the model's head,
    /// padding included. Nothing is taken from the cache, and nothing is added.
    ///
    /// # Panics
    /// If `from` is 0 or not before the last token.
    pub fn score_text(
        &mut self,
        tokens: &[u32],
        from: usize,
    ) -> Result<ScoredRows<'_>, RequestError> {
        assert!((1..tokens.len()).contains(&from), "tokens to draw after tokens");
        // Only the last piece of a prompt computes logits: one token of it is enough.
        let (before, last) = tokens[..from].split_at(from - 1);
        let pieces = [(Kind::Context, before), (Kind::Query, last)];
        let piece = |(kind, tokens): (Kind, &[u32])| Piece::exact(kind, tokens.to_vec());
        let pieces = pieces.map(piece).into();
        let prompt = Composition { pieces, ..Composition::default() };
        let cancel = Cancel::default();
        let (lane, rows) =
            self.admit_scored(&prompt, &tokens[from..], false, &cancel, usize::MAX)?;
        Ok(ScoredRows { engine: self, lane, rows })
    }

    fn admit_scored(
        &mut self,
        prompt: &Composition,
        answer: &[u32],
        use_cache: bool,
        cancel: &Cancel,
        width: usize,
    ) -> Result<(LaneId, mpsc::Receiver<Vec<f32>>), RequestError> {
        let mut whole = prompt.clone().answered();
        let n_prompt = whole.len();
        let n_query = whole.pieces.last().map_or(0, |piece| piece.tokens.len());
        // The last token is drawn but never run: an answer may end at the end of the context.
        let run = answer.split_last().map_or(answer, |(_, run)| run);
        if !run.is_empty() {
            whole.pieces.push(Piece::exact(Kind::Output, run.to_vec()));
        }
        let sampling = Sampling { max_tokens: Some(1), ..Sampling::default() };
        let limit = if use_cache { n_prompt - n_query } else { 0 };
        let policy = Policy { limit, answers: false, ..Policy::COLD };
        let request = Request { cancel: cancel.clone(), ..Request::new(whole, sampling) };
        let id = self.admit_lane(request, policy)?;
        let (to, rows) = mpsc::channel();
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id() == id) {
            lane.score(Scores { from: n_prompt.saturating_sub(1), width, to });
        }
        Ok((id, rows))
    }
}

/// The logits of a text's tokens, while they are computed. Dropping it ends the lane.
pub struct ScoredRows<'e> {
    engine: &'e mut Engine,
    lane: LaneId,
    rows: mpsc::Receiver<Vec<f32>>,
}

impl ScoredRows<'_> {
    /// Runs a step, if the lane has not ended.
    fn step(&mut self) -> Option<Result<(), GenerateError>> {
        self.engine.lanes.iter().find(|lane| lane.id() == self.lane)?;
        let events = match self.engine.step_for(|lane| lane == self.lane) {
            Ok(events) => events,
            Err(error) => return Some(Err(error.into())),
        };
        let error = events.into_iter().find_map(|event| match event {
            Event::Failed { error, .. } => Some(error),
            _ => None,
        });
        Some(error.map_or(Ok(()), |error| Err(error.into())))
    }
}

impl Iterator for ScoredRows<'_> {
    type Item = Result<Vec<f32>, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Ok(row) = self.rows.try_recv() {
                return Some(Ok(row));
            }
            if let Err(error) = self.step()? {
                return Some(Err(error));
            }
        }
    }
}

impl Drop for ScoredRows<'_> {
    fn drop(&mut self) {
        self.engine.discard(|lane| lane == self.lane);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_means_over_all_tokens_of_the_answer() {
        // Two tokens: the first has the same logits, the second's odds went from 1:1 to 3:1.
        let (same, even, odds) = (vec![1.0, 2.0], vec![0.0, 0.0], vec![3.0_f32.ln(), 0.0]);
        let found = Verification::of(&[0, 0], &[same.clone(), odds], &[same, even]);
        assert_eq!((found.tokens, found.changed, found.differing), (2, 1, 0));
        assert!(!found.is_exact());
        let difference = 1.5_f64.ln();
        assert!((found.max_difference - difference).abs() < 1e-6, "{found:?}");
        assert!((found.mean_difference - difference / 2.0).abs() < 1e-6, "{found:?}");
        let divergence = 0.5 * (0.5_f64 / 0.75).ln() + 0.5 * (0.5_f64 / 0.25).ln();
        assert!((found.divergence - divergence / 2.0).abs() < 1e-6, "{found:?}");
    }
}
