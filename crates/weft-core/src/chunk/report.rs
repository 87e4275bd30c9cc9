//! What an answer tells about its context: where each piece came from, what it cost, how much of the
//! attention it had.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::{ChunkId, Kind, Reuse};

/// Where KV rows were kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The device's pages.
    Device,
    /// Main memory.
    Ram,
    /// A file.
    Disk,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Ram => "ram",
            Self::Disk => "disk",
        })
    }
}

/// One piece of the context.
#[derive(Clone, Debug, PartialEq)]
pub struct PieceReport {
    /// The library's chunk, where it is one.
    pub chunk: Option<ChunkId>,
    /// What it is.
    pub kind: Kind,
    /// Its tokens.
    pub tokens: usize,
    /// Those of them whose rows were there already.
    pub cached_tokens: usize,
    /// Where they were, the slowest place if several; none where a token had to be computed.
    pub source: Option<Tier>,
    /// How it was used.
    pub reuse: Reuse,
    /// How far it stands from where it was computed.
    pub shift: i64,
    /// Its tokens that were recomputed to repair it.
    pub repaired_tokens: usize,
    /// Its share of the answer's attention.
    pub attention: f64,
    /// What computing, bringing and repairing it took.
    pub time: Duration,
    /// What computing its cached tokens took when it was done.
    pub saved: Duration,
}

impl PieceReport {
    /// Where it came from, in one word.
    pub fn source_name(&self) -> String {
        self.source.map_or_else(|| "computed".to_owned(), |tier| tier.to_string())
    }

    fn json(&self) -> Value {
        json!({
            "id": self.chunk.map(|id| id.to_string()),
            "kind": self.kind.name(),
            "level": self.kind.level(),
            "tokens": self.tokens,
            "cached_tokens": self.cached_tokens,
            "source": self.source_name(),
            "reuse": self.reuse.name(),
            "shift": self.shift,
            "repaired_tokens": self.repaired_tokens,
            "attention": self.attention,
            "ms": milliseconds(self.time),
        })
    }
}

/// The context of one answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Its pieces in their order.
    pub pieces: Vec<PieceReport>,
    /// What the answer gave to its own tokens. With the pieces' it sums to 1.
    pub answer_attention: f64,
}

impl Report {
    /// Tokens whose rows were there already.
    pub fn cached_tokens(&self) -> usize {
        self.pieces.iter().map(|piece| piece.cached_tokens).sum()
    }

    /// The time that cached rows saved: what computing them took, less what bringing them took.
    pub fn saved(&self) -> Duration {
        let cached = self.pieces.iter().filter(|piece| piece.source.is_some());
        let brought: Duration = cached.map(|piece| piece.time).sum();
        self.pieces.iter().map(|piece| piece.saved).sum::<Duration>().saturating_sub(brought)
    }

    /// What the context would have taken with nothing cached.
    pub fn cold_estimate(&self) -> Duration {
        let computed = self.pieces.iter().filter(|piece| piece.source.is_none());
        self.pieces.iter().map(|piece| piece.saved).sum::<Duration>()
            + computed.map(|piece| piece.time).sum::<Duration>()
    }

    /// The report as answers carry it.
    pub fn json(&self) -> Value {
        json!({
            "chunks": self.pieces.iter().map(PieceReport::json).collect::<Vec<_>>(),
            "answer_attention": self.answer_attention,
            "saved_ms": milliseconds(self.saved()),
            "cold_ms_estimate": milliseconds(self.cold_estimate()),
        })
    }
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(source: Option<Tier>, time_ms: u64, saved_ms: u64) -> PieceReport {
        PieceReport {
            chunk: None,
            kind: Kind::Context,
            tokens: 8,
            cached_tokens: source.map_or(0, |_| 8),
            source,
            reuse: Reuse::Exact,
            shift: 0,
            repaired_tokens: 0,
            attention: 0.25,
            time: Duration::from_millis(time_ms),
            saved: Duration::from_millis(saved_ms),
        }
    }

    #[test]
    fn what_bringing_took_is_not_saved_and_what_computing_took_is_spent_anyway() {
        let pieces = vec![piece(Some(Tier::Disk), 5, 80), piece(None, 30, 0)];
        let report = Report { pieces, answer_attention: 0.5 };
        assert_eq!(report.saved(), Duration::from_millis(75));
        assert_eq!(report.cold_estimate(), Duration::from_millis(110));
        assert_eq!(report.cached_tokens(), 8);
        let json = report.json();
        assert_eq!((&json["saved_ms"], &json["cold_ms_estimate"]), (&json!(75.0), &json!(110.0)));
        let sources = json["chunks"].as_array().unwrap().iter().map(|chunk| &chunk["source"]);
        assert_eq!(sources.collect::<Vec<_>>(), ["disk", "computed"]);
    }
}
