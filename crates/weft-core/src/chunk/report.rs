//! The report on an answer's context: where each piece came from, its cost, and its attention.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ChunkId, Kind, Reuse};

/// A storage tier of KV rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// The device's pages.
    Device,
    /// Main memory.
    Ram,
    /// A file.
    Disk,
    /// A store that several machines share.
    Remote,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Ram => "ram",
            Self::Disk => "disk",
            Self::Remote => "remote",
        })
    }
}

/// The expected times of the two ways to get rows that are kept outside of memory. The shorter one
/// is chosen, except now and then to measure again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedTimes {
    /// To fetch them.
    pub fetch: Duration,
    /// To compute them.
    pub compute: Duration,
}

impl ExpectedTimes {
    fn json(self) -> Value {
        json!({"fetch_ms": milliseconds(self.fetch), "compute_ms": milliseconds(self.compute)})
    }
}

/// One piece of the context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PieceReport {
    /// The chunk, if the piece is one of the library.
    pub chunk: Option<ChunkId>,
    /// Its kind.
    pub kind: Kind,
    /// Its tokens.
    pub tokens: usize,
    /// Tokens whose rows were found in the cache.
    pub cached_tokens: usize,
    /// The tier they were found in, or the slowest if there were several. `None` if any token had
    /// to be computed.
    pub source: Option<Tier>,
    /// Which tokens it attends to.
    pub reuse: Reuse,
    /// The distance from the position that it was computed at.
    pub shift: i64,
    /// Tokens recomputed to repair it.
    pub repaired_tokens: usize,
    /// Tokens whose rows were stored in 8 bits.
    #[serde(default)]
    pub coarse_tokens: usize,
    /// Its share of the answer's attention.
    pub attention: f64,
    /// Time to compute, load and repair it.
    pub time: Duration,
    /// Time that was once spent on computing its cached tokens.
    pub saved: Duration,
    /// Why rows that are kept in files or elsewhere were fetched or computed, if both times were
    /// known.
    pub choice: Option<ExpectedTimes>,
}

impl PieceReport {
    /// Its source, in one word.
    pub fn source_name(&self) -> String {
        self.source.map_or_else(|| "computed".to_owned(), |tier| tier.to_string())
    }

    fn json(&self) -> Value {
        let mut json = json!({
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
        });
        if self.coarse_tokens > 0 {
            json["coarse_tokens"] = self.coarse_tokens.into();
        }
        if let Some(choice) = self.choice {
            json["choice"] = choice.json();
        }
        json
    }
}

/// The report on one answer's context.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its pieces in order.
    pub pieces: Vec<PieceReport>,
    /// The answer's share of attention to its own tokens. All shares sum to 1.
    pub answer_attention: f64,
}

impl Report {
    /// Tokens whose rows were found in the cache.
    pub fn cached_tokens(&self) -> usize {
        self.pieces.iter().map(|piece| piece.cached_tokens).sum()
    }

    /// Time saved by the cache: the time to compute the cached rows, minus the time to load them.
    pub fn saved(&self) -> Duration {
        let cached = self.pieces.iter().filter(|piece| piece.source.is_some());
        let brought: Duration = cached.map(|piece| piece.time).sum();
        self.pieces.iter().map(|piece| piece.saved).sum::<Duration>().saturating_sub(brought)
    }

    /// Estimated time of the same context with an empty cache.
    pub fn cold_estimate(&self) -> Duration {
        let computed = self.pieces.iter().filter(|piece| piece.source.is_none());
        self.pieces.iter().map(|piece| piece.saved).sum::<Duration>()
            + computed.map(|piece| piece.time).sum::<Duration>()
    }

    /// Tokens whose rows are approximate: those of pieces that were moved, because they did not
    /// attend to everything before them, and those that were stored in 8 bits.
    pub fn approximate_tokens(&self) -> usize {
        let approximate = |piece: &PieceReport| match piece.shift {
            0 => piece.coarse_tokens,
            _ => piece.tokens - piece.repaired_tokens.min(piece.tokens),
        };
        self.pieces.iter().map(approximate).sum()
    }

    /// Tokens whose rows were stored in 8 bits.
    pub fn coarse_tokens(&self) -> usize {
        self.pieces.iter().map(|piece| piece.coarse_tokens).sum()
    }

    /// The report as JSON, as responses contain it.
    pub fn json(&self) -> Value {
        json!({
            "chunks": self.pieces.iter().map(PieceReport::json).collect::<Vec<_>>(),
            "approximate_tokens": self.approximate_tokens(),
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
            coarse_tokens: 0,
            attention: 0.25,
            time: Duration::from_millis(time_ms),
            saved: Duration::from_millis(saved_ms),
            choice: None,
        }
    }

    #[test]
    fn a_choice_is_reported_with_both_times() {
        let times =
            ExpectedTimes { fetch: Duration::from_millis(9), compute: Duration::from_millis(3) };
        let pieces = vec![PieceReport { choice: Some(times), ..piece(None, 3, 0) }];
        let json = Report { pieces, answer_attention: 0.0 }.json();
        let chunk = &json["chunks"][0];
        assert_eq!(chunk["source"], "computed");
        assert_eq!(chunk["choice"], json!({"fetch_ms": 9.0, "compute_ms": 3.0}));
        let json = Report { pieces: vec![piece(None, 3, 0)], answer_attention: 0.0 }.json();
        assert!(json["chunks"][0].get("choice").is_none());
    }

    #[test]
    fn moved_pieces_are_approximate_except_where_they_are_repaired() {
        let moved = |shift, repaired_tokens| PieceReport {
            shift,
            repaired_tokens,
            ..piece(Some(Tier::Device), 0, 1)
        };
        let pieces = vec![moved(0, 0), moved(5, 0), moved(-5, 3)];
        let report = Report { pieces, answer_attention: 0.0 };
        assert_eq!(
            (report.approximate_tokens(), &report.json()["approximate_tokens"]),
            (13, &json!(13))
        );
    }

    #[test]
    fn what_bringing_took_is_not_saved_and_what_computing_took_is_spent_anyway() {
        let pieces = vec![piece(Some(Tier::Disk), 5, 80), piece(None, 30, 0)];
        let report = Report { pieces, answer_attention: 0.5 };
        assert_eq!(report.saved(), Duration::from_millis(75));
        assert_eq!(report.cold_estimate(), Duration::from_millis(110));
        assert_eq!(report.cached_tokens(), 8);
        let json = report.json();
        assert_eq!(json["approximate_tokens"], 0);
        assert_eq!((&json["saved_ms"], &json["cold_ms_estimate"]), (&json!(75.0), &json!(110.0)));
        let sources = json["chunks"].as_array().unwrap().iter().map(|chunk| &chunk["source"]);
        assert_eq!(sources.collect::<Vec<_>>(), ["disk", "computed"]);
    }
}
