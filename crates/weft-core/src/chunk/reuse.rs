//! How a chunk's KV rows may be reused, and how an approximate reuse is repaired.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Which tokens a context chunk attends to, and therefore where its rows can be reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reuse {
    /// Everything before it. Its rows are reused only after the same context. A warm answer equals
    /// a cold one, bit for bit.
    #[default]
    Exact,
    /// Only the system chunk. Its rows are reused after the same system chunk, in any order.
    /// Approximate.
    Anchored,
    /// Only itself. Its rows are reused anywhere. Approximate.
    Isolated,
}

impl Reuse {
    /// All variants, the exact one first.
    pub const ALL: [Self; 3] = [Self::Exact, Self::Anchored, Self::Isolated];

    /// Its name in flags and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Anchored => "anchored",
            Self::Isolated => "isolated",
        }
    }
}

impl fmt::Display for Reuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Reuse {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let found = Self::ALL.into_iter().find(|reuse| reuse.name() == text);
        found.ok_or_else(|| ParseError {
            what: "kind of reuse",
            value: text.to_owned(),
            expected: "exact, anchored or isolated",
        })
    }
}

/// Which rows of an approximate chunk are recomputed if it was moved from the position it was
/// computed at. The recomputed rows belong to one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Repair {
    /// Nothing.
    #[default]
    None,
    /// The first tokens of each moved chunk, which then attend to everything before the chunk. The
    /// first tokens of a chunk that was computed alone draw too much attention; this corrects it.
    Link(usize),
    /// The given share of tokens, from 0 to 1: those whose rows deviate most at the given layer.
    /// Layers count from 0; a higher number than the model has means its last layer.
    Blend(f64, u16),
}

impl Repair {
    /// Maximum tokens that `Link` recomputes per chunk.
    pub const MAX_LINK: usize = 64;

    /// The layer at which `Blend` compares rows unless another is given: the first that depends on
    /// other tokens.
    pub const BLEND_LAYER: u16 = 1;
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Link(tokens) => write!(f, "link:{tokens}"),
            Self::Blend(share, Self::BLEND_LAYER) => write!(f, "blend:{share}"),
            Self::Blend(share, layer) => write!(f, "blend:{share}@{layer}"),
        }
    }
}

impl FromStr for Repair {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let repair = match text.split_once(':') {
            None if text == "none" => Some(Self::None),
            Some(("link", tokens)) => tokens
                .parse()
                .ok()
                .filter(|tokens| (1..=Self::MAX_LINK).contains(tokens))
                .map(Self::Link),
            Some(("blend", text)) => {
                let (share, layer) = match text.split_once('@') {
                    Some((share, layer)) => (share, layer.parse().ok().filter(|at| *at > 0)),
                    None => (text, Some(Self::BLEND_LAYER)),
                };
                let share = share.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
                share.zip(layer).map(|(share, layer)| Self::Blend(share, layer))
            }
            _ => None,
        };
        repair.ok_or_else(|| ParseError {
            what: "kind of repair",
            value: text.to_owned(),
            expected: "none, link:K with K from 1 to 64, or blend:R or blend:R@L with R above 0 \
                       and up to 1 and L a layer above 0",
        })
    }
}

/// A text that does not name a kind of reuse or repair.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{value:?} is not a {what}; give {expected}")]
pub struct ParseError {
    what: &'static str,
    value: String,
    expected: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for reuse in Reuse::ALL {
            assert_eq!(reuse.to_string().parse(), Ok(reuse));
        }
        for repair in
            [Repair::None, Repair::Link(16), Repair::Blend(0.15, 1), Repair::Blend(0.1, 14)]
        {
            assert_eq!(repair.to_string().parse(), Ok(repair));
        }
    }

    #[test]
    fn other_words_are_refused_with_what_would_do() {
        let refused = [
            "link",
            "link:0",
            "link:65",
            "link:x",
            "blend:0",
            "blend:1.1",
            "blend:nan",
            "blend:0.1@",
            "blend:0.1@0",
            "blend:@3",
            "blend:0.1@70000",
        ];
        for word in refused {
            let error = word.parse::<Repair>().unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("link:K"), "{error}");
        }
        assert!("Exact".parse::<Reuse>().unwrap_err().to_string().contains("anchored"));
    }
}
