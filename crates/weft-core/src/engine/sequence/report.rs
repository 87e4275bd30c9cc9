//! The report of a sequence: where its context came from, and how its answer attended to it.

use std::time::Duration;

use super::Sequence;
use crate::chunk::{ExpectedTimes, PieceReport, Report, Tier};

/// The choice of no rows.
const NOTHING: ExpectedTimes = ExpectedTimes { fetch: Duration::ZERO, compute: Duration::ZERO };

/// The attention of an answer's tokens to each piece of the prompt, and to the answer itself.
pub(super) struct Attention {
    sums: Vec<f64>,
    to_answer: f64,
}

impl Attention {
    pub(super) fn new(n_pieces: usize) -> Self {
        Self { sums: vec![0.0; n_pieces], to_answer: 0.0 }
    }

    /// Adds one token's shares: those of the pieces, then the answer's.
    pub(super) fn add(&mut self, shares: &[f32]) {
        let (to_pieces, to_answer) = shares.split_at(self.sums.len());
        self.sums.iter_mut().zip(to_pieces).for_each(|(sum, share)| *sum += f64::from(*share));
        self.to_answer += to_answer.iter().copied().map(f64::from).sum::<f64>();
    }

    /// The share of a piece.
    fn of(&self, piece: usize) -> f64 {
        self.share(self.sums[piece])
    }

    fn of_answer(&self) -> f64 {
        self.share(self.to_answer)
    }

    fn share(&self, sum: f64) -> f64 {
        let total = self.sums.iter().sum::<f64>() + self.to_answer;
        if total > 0.0 { sum / total } else { 0.0 }
    }
}

impl Sequence {
    /// The report on all pieces. If a node spans several pieces, because its prompt was cut
    /// elsewhere, its time is split in proportion to their tokens.
    pub(in crate::engine) fn report(&self) -> Report {
        let mut start = 0;
        let mut pieces = Vec::new();
        for (index, piece) in self.pieces.iter().enumerate() {
            let range = start..start + piece.tokens.len();
            start = range.end;
            let mut report = PieceReport {
                chunk: piece.chunk,
                kind: piece.kind,
                tokens: range.len(),
                cached_tokens: 0,
                source: Some(Tier::Device),
                reuse: piece.reuse,
                shift: 0,
                repaired_tokens: 0,
                coarse_tokens: 0,
                attention: self.attention.of(index),
                time: Duration::ZERO,
                saved: Duration::ZERO,
                choice: None,
            };
            for held in &self.nodes {
                let common = Self::overlap(held, &range);
                if common == 0 {
                    continue;
                }
                let share = common as f64 / held.range.len() as f64;
                let source = held.source.or(held.awaits);
                report.cached_tokens += if source.is_some() { common } else { 0 };
                // The slowest of several; computing is the slowest.
                report.source = report.source.zip(source).map(|(a, b)| a.max(b));
                report.shift = held.range.start as i64 - held.home as i64;
                report.repaired_tokens += held.repaired;
                report.coarse_tokens += if held.is_rounded { common } else { 0 };
                report.time += held.time.mul_f64(share);
                report.saved += held.saved.mul_f64(share);
                if let Some(choice) = held.choice {
                    let sum = report.choice.get_or_insert(NOTHING);
                    sum.fetch += choice.fetch.mul_f64(share);
                    sum.compute += choice.compute.mul_f64(share);
                }
            }
            pieces.push(report);
        }
        Report { pieces, answer_attention: self.attention.of_answer() }
    }
}
