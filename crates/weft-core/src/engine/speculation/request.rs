//! How a request speculates, and what came of it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::device::MAX_DRAFT;

/// How much an answer is drafted. Drafts change its speed and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Speculate {
    /// As much as pays, by measured costs and the drafts that were accepted.
    #[default]
    Auto,
    /// Not at all.
    Off,
    /// Up to this many tokens in each step, whenever there is something to draft. At most
    /// [`Speculate::MAX`] are used.
    Fixed(usize),
}

impl Speculate {
    /// The longest draft.
    pub const MAX: usize = MAX_DRAFT - 1;
}

impl fmt::Display for Speculate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Fixed(n) => write!(f, "{n}"),
        }
    }
}

/// A text that says nothing about drafts.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{text:?} does not say how much to draft; give auto, off, or 1 to {}", Speculate::MAX)]
pub struct WrongSpeculate {
    text: String,
}

impl FromStr for Speculate {
    type Err = WrongSpeculate;

    fn from_str(text: &str) -> Result<Self, WrongSpeculate> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            ("off", _) | (_, Ok(0)) => Ok(Self::Off),
            (_, Ok(n)) if n <= Self::MAX => Ok(Self::Fixed(n)),
            _ => Err(WrongSpeculate { text: text.to_owned() }),
        }
    }
}

/// Where a draft comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DraftSource {
    /// The prompt's chunks, the conversation and the answer so far.
    #[default]
    Context,
    /// The client's prediction.
    Prediction,
    /// A draft model.
    Model,
}

impl DraftSource {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Context, Self::Prediction, Self::Model];
}

impl fmt::Display for DraftSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Context => "context",
            Self::Prediction => "prediction",
            Self::Model => "model",
        })
    }
}

/// Tokens that one source drafted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftCounts {
    /// Tokens that a step verified.
    pub drafted: usize,
    /// Tokens of them that became part of the answer.
    pub accepted: usize,
}

/// Drafted and accepted tokens of an answer, by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speculation {
    /// From the context.
    pub context: DraftCounts,
    /// From the client's prediction.
    pub prediction: DraftCounts,
    /// From a draft model.
    pub model: DraftCounts,
}

impl Speculation {
    /// The tokens of a source.
    pub fn of(&self, source: DraftSource) -> DraftCounts {
        match source {
            DraftSource::Context => self.context,
            DraftSource::Prediction => self.prediction,
            DraftSource::Model => self.model,
        }
    }

    /// The tokens of all sources.
    pub fn total(&self) -> DraftCounts {
        let all = || DraftSource::ALL.into_iter().map(|source| self.of(source));
        DraftCounts {
            drafted: all().map(|counts| counts.drafted).sum(),
            accepted: all().map(|counts| counts.accepted).sum(),
        }
    }

    /// The sum with another answer's.
    pub fn plus(mut self, other: &Self) -> Self {
        for source in DraftSource::ALL {
            let DraftCounts { drafted, accepted } = other.of(source);
            self.add(source, drafted, accepted);
        }
        self
    }

    pub(super) fn add(&mut self, source: DraftSource, drafted: usize, accepted: usize) {
        let counts = match source {
            DraftSource::Context => &mut self.context,
            DraftSource::Prediction => &mut self.prediction,
            DraftSource::Model => &mut self.model,
        };
        counts.drafted += drafted;
        counts.accepted += accepted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_speculate_are_written_as_they_are_read() {
        for speculate in [Speculate::Auto, Speculate::Off, Speculate::Fixed(1), Speculate::Fixed(7)]
        {
            assert_eq!(speculate.to_string().parse(), Ok(speculate));
        }
        assert_eq!("0".parse(), Ok(Speculate::Off));
        for wrong in ["8", "-1", "on", "", "Auto"] {
            let error = wrong.parse::<Speculate>().unwrap_err();
            assert!(error.to_string().contains("1 to 7"), "{error}");
        }
    }

    #[test]
    fn counts_add_up() {
        let mut counts = Speculation::default();
        counts.add(DraftSource::Context, 7, 3);
        counts.add(DraftSource::Model, 4, 4);
        let twice = counts.plus(&counts);
        assert_eq!(twice.total(), DraftCounts { drafted: 22, accepted: 14 });
        assert_eq!(twice.of(DraftSource::Prediction), DraftCounts::default());
    }
}
