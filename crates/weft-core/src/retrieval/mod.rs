//! What search needs of a model: embeddings of texts, and the relevance of documents to a query.
//!
//! Both read the last token of a prompt ([`Reading`](crate::engine::Reading)) and write no answer.
//! A [`Passage`] is such a prompt as tokens. [`compose`] cuts passages where others are likely to
//! share their beginning, because rows are cached by piece. Cuts never change a result.

mod embedding;
mod rerank;

use crate::chunk::{Composition, Kind, Piece};
use crate::tokenizer::{Tokenizer, TokenizerError};

pub use self::embedding::embedding;
pub use self::rerank::{RerankError, Reranker};

/// Passages that share fewer tokens at their beginning are not cut there: others would wait for
/// the shared rows, which costs a step.
const LEAST_SHARED: usize = 16;

/// How a text begins that asks an embedding model for something, and how the text itself begins.
const INSTRUCTION: (&str, &str) = ("Instruct: ", "\nQuery:");

/// A prompt whose last token is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Its tokens.
    tokens: Vec<u32>,
    /// Number of first tokens that later passages are likely to begin with.
    shared: usize,
}

impl Passage {
    /// A text to embed, with the tokens that the tokenizer puts around it. The text is data: no
    /// part of it is read as a special token. If it begins with an instruction as Qwen3-Embedding's
    /// queries do (`Instruct: …\nQuery:`), later texts are likely to share that.
    pub fn of_text(tokenizer: &Tokenizer, text: &str) -> Result<Self, TokenizerError> {
        let tokens = tokenizer.encode_whole(text)?;
        let (start, end) = INSTRUCTION;
        let instruction = text.starts_with(start).then(|| text.find(end)).flatten();
        let shared = match instruction {
            Some(at) => {
                let first = tokenizer.encode_with_bos(&text[..at + end.len()])?;
                if tokens.starts_with(&first) { first.len() } else { 0 }
            }
            None => 0,
        };
        Ok(Self { tokens, shared })
    }

    /// A passage that is given as tokens, which are taken as they are.
    pub fn of_tokens(tokens: Vec<u32>) -> Self {
        Self { tokens, shared: 0 }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    fn compose(self, common: usize) -> Composition {
        let mut rest = self.tokens;
        let mut pieces = Vec::new();
        // The last token is read, so it is never shared.
        let last = rest.len().saturating_sub(1);
        let mut cuts = [self.shared, common];
        cuts.sort_unstable();
        let mut start = 0;
        for cut in cuts {
            if cut >= start + LEAST_SHARED && cut <= last {
                let after = rest.split_off(cut - start);
                pieces.push(Piece::exact(Kind::Context, std::mem::replace(&mut rest, after)));
                start = cut;
            }
        }
        if !rest.is_empty() {
            pieces.push(Piece::exact(Kind::Query, rest));
        }
        Composition { pieces, ..Composition::default() }
    }
}

/// The prompts of passages, in the same order. A beginning that all of them share is a piece.
pub fn compose(passages: Vec<Passage>) -> Vec<Composition> {
    let common = match &passages[..] {
        [] | [_] => 0,
        [first, others @ ..] => {
            let with_first = |other: &Passage| {
                first.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count()
            };
            others.iter().map(with_first).min().unwrap_or_default()
        }
    };
    // The whole of the shortest passage may be common to all; its last token is not shared.
    let shortest = passages.iter().map(Passage::len).min().unwrap_or_default();
    let common = common.min(shortest.saturating_sub(1));
    passages.into_iter().map(|passage| passage.compose(common)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(passages: &[(&[u32], usize)]) -> Vec<Vec<usize>> {
        let passage = |(tokens, shared): &(&[u32], usize)| Passage {
            tokens: tokens.to_vec(),
            shared: *shared,
        };
        let all: Vec<Passage> = passages.iter().map(passage).collect();
        let composed = compose(all.clone());
        for (composition, passage) in composed.iter().zip(&all) {
            assert_eq!(composition.tokens(), passage.tokens);
            // Its rows are not kept, so it is never a shared piece.
            let last = composition.pieces.last();
            assert!(last.is_none_or(|piece| piece.kind == Kind::Query), "{composition:?}");
        }
        let lengths = |composition: &Composition| {
            composition.pieces.iter().map(|piece| piece.tokens.len()).collect()
        };
        composed.iter().map(lengths).collect()
    }

    #[test]
    fn passages_are_cut_where_others_share_enough() {
        let text: Vec<u32> = (0..40).collect();
        let other: Vec<u32> = (0..20).chain(70..75).collect();
        // Too little is shared, or all of it: the last token is read.
        assert_eq!(lengths(&[(&text[..9], 0), (&text[..7], 3)]), [vec![9], vec![7]]);
        assert_eq!(lengths(&[(&text, 0)]), [vec![40]]);
        assert_eq!(lengths(&[(&text, 0), (&text, 0)]), [vec![39, 1], vec![39, 1]]);
        assert_eq!(lengths(&[(&text, 0), (&other, 0)]), [vec![20, 20], vec![20, 5]]);
        // The instruction, and then what all share, if that is enough more.
        assert_eq!(lengths(&[(&text, 30), (&text[..38], 0)]), [vec![30, 10], vec![37, 1]]);
        assert_eq!(lengths(&[(&text, 17), (&text[..36], 17)]), [vec![17, 18, 5], vec![17, 18, 1]]);
        assert_eq!(lengths(&[(&text, 16)]), [vec![16, 24]]);
        assert_eq!(lengths(&[(&text, 40)]), [vec![40]]);
        assert_eq!(lengths(&[(&[], 0)]), [Vec::<usize>::new()]);
        assert!(compose(Vec::new()).is_empty());
    }
}
