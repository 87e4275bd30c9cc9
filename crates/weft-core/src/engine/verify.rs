//! How far an answer over chunks is from one over the plain prompt.
//!
//! The answer's tokens are given to both: to the composition as it was used, and to the same tokens
//! computed cold, each attending to all before it. What differs is the distribution of each next token.

use std::sync::mpsc;

use super::held::Policy;
use super::sequence::Scores;
use super::{Cancel, Engine, GenerateError, LaneId, Request, RequestError};
use crate::chunk::{Composition, Kind, Piece};
use crate::sampling::Sampling;

/// How an answer compares with the plain prompt's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Verification {
    /// Tokens of the answer.
    pub tokens: usize,
    /// Those that the plain prompt's most likely token differs from the composition's.
    pub differing: usize,
    /// Mean |Δ log-probability| of the answer's tokens.
    pub mean_difference: f64,
    /// The largest.
    pub max_difference: f64,
    /// Those that any bit of any logit differs for.
    pub changed: usize,
    /// Mean Kullback-Leibler divergence of the composition from the plain prompt, in nats.
    pub divergence: f64,
}

impl Verification {
    /// Whether no bit of any logit differed.
    pub fn is_exact(&self) -> bool {
        self.changed == 0
    }

    /// Compares rows of logits, each of which a token of the answer was drawn from.
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
    /// Reruns an answer cold and compares. Nothing of either run is kept.
    pub fn verify(
        &mut self,
        prompt: &Composition,
        answer: &[u32],
    ) -> Result<Verification, GenerateError> {
        let ours = self.score(prompt, answer, true)?;
        let cold = self.score(&prompt.exact(), answer, false)?;
        Ok(Verification::of(answer, &ours, &cold))
    }

    /// The logits that each token of an answer was drawn from. The query and what follows is always
    /// computed; what stands before it may be kept rows.
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
        self.finish_lane(lane)?;
        Ok(rows.into_iter().collect())
    }

    /// Admits a lane that sends the logits which each token of an answer was drawn from, in order.
    pub fn add_score(
        &mut self,
        prompt: &Composition,
        answer: &[u32],
        use_cache: bool,
        cancel: &Cancel,
    ) -> Result<(LaneId, mpsc::Receiver<Vec<f32>>), RequestError> {
        let mut whole = prompt.clone().answered();
        let n_prompt = whole.len();
        let n_query = whole.pieces.last().map_or(0, |piece| piece.tokens.len());
        // The last token is drawn and never run: an answer may end where the context does.
        let run = answer.split_last().map_or(answer, |(_, run)| run);
        if !run.is_empty() {
            whole.pieces.push(Piece::exact(Kind::Output, run.to_vec()));
        }
        let sampling = Sampling { max_tokens: Some(1), ..Sampling::default() };
        let limit = if use_cache { n_prompt - n_query } else { 0 };
        let policy = Policy { limit, keeps: false, answers: false };
        let request = Request { cancel: cancel.clone(), ..Request::new(whole, sampling) };
        let id = self.admit_lane(request, policy)?;
        let (to, rows) = mpsc::channel();
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id() == id) {
            lane.score(Scores { from: n_prompt.saturating_sub(1), to });
        }
        Ok((id, rows))
    }
}

fn argmax(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)))
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - max) - sum.ln()).collect()
}
