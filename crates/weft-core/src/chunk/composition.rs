//! A composition: the pieces of a prompt in order, as the engine runs them.
//!
//! A piece is the tokens of a chunk, with the template's own tokens around it. Pieces determine
//! where KV rows are cut and how they are reported. They never change the result of an exact
//! prompt.

use super::{ChunkId, Kind, Repair, Reuse};
use crate::device::{MAX_MARKS, MAX_SPANS};
use crate::tokenizer::Tokenizer;

const _: () = assert!(Composition::MAX_PIECES <= MAX_SPANS, "a piece is one span at most");

/// A part of a prompt that is cached and reported separately.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Its kind.
    pub kind: Kind,
    /// The chunk it came from, if that is registered in the library.
    pub chunk: Option<ChunkId>,
    /// Its tokens, including the template's tokens around it.
    pub tokens: Vec<u32>,
    /// Which tokens it attends to. The last piece of a prompt is always exact.
    pub reuse: Reuse,
    /// Whether anchored pieces after it attend to it, although it may have been moved itself.
    pub is_anchor: bool,
}

impl Piece {
    /// A piece that attends to everything before it.
    pub fn exact(kind: Kind, tokens: Vec<u32>) -> Self {
        Self { kind, chunk: None, tokens, reuse: Reuse::Exact, is_anchor: false }
    }
}

/// A whole prompt, as pieces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Composition {
    /// The pieces. Empty ones are skipped.
    pub pieces: Vec<Piece>,
    /// Which rows of approximate pieces are recomputed.
    pub repair: Repair,
}

impl Composition {
    /// Maximum number of pieces. A piece starts at most one span, and ends with a mark.
    pub const MAX_PIECES: usize = MAX_MARKS;

    /// Joins the oldest pieces after the first until the limit holds. All of them must be exact.
    pub(super) fn join_oldest(&mut self) {
        let len = self.pieces.len();
        if len > Self::MAX_PIECES {
            let joined: Vec<Piece> = self.pieces.drain(1..len - Self::MAX_PIECES + 2).collect();
            let tokens = joined.into_iter().flat_map(|piece| piece.tokens).collect();
            self.pieces.insert(1, Piece::exact(Kind::Context, tokens));
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.tokens.len()).sum()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All tokens in order.
    pub fn tokens(&self) -> Vec<u32> {
        self.pieces.iter().flat_map(|piece| &piece.tokens).copied().collect()
    }

    /// The text of the last few tokens. It shows whether the prompt ends inside a thought.
    pub fn end_text(&self, tokenizer: &Tokenizer) -> String {
        const TOKENS: usize = 16;
        let last = self.pieces.last().map_or(&[][..], |piece| &piece.tokens);
        tokenizer.decode(&last[last.len().saturating_sub(TOKENS)..], false)
    }

    /// The same tokens, with every piece attending to everything before it.
    pub fn exact(&self) -> Self {
        let exact = |piece: &Piece| Piece { reuse: Reuse::Exact, ..piece.clone() };
        let pieces = self.pieces.iter().filter(|piece| !piece.tokens.is_empty());
        Self { pieces: pieces.map(exact).collect(), repair: Repair::None }
    }

    /// The same composition with an exact last piece. Its last token's logits start the answer, so
    /// it must attend to everything before it.
    pub(crate) fn answered(mut self) -> Self {
        self.pieces.retain(|piece| !piece.tokens.is_empty());
        if let Some(last) = self.pieces.last_mut() {
            last.reuse = Reuse::Exact;
        }
        self
    }
}

impl From<Vec<u32>> for Composition {
    /// A prompt of one piece.
    fn from(tokens: Vec<u32>) -> Self {
        let pieces =
            if tokens.is_empty() { Vec::new() } else { vec![Piece::exact(Kind::Query, tokens)] };
        Self { pieces, repair: Repair::None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_conversation_has_few_enough_pieces_and_all_its_tokens() {
        for len in [1, 255, 256, 257, 600] {
            let pieces = (0..len).map(|n| Piece::exact(Kind::Context, vec![n, n])).collect();
            let whole = Composition { pieces, repair: Repair::None };
            let mut joined = whole.clone();
            joined.join_oldest();
            let n_pieces = (len as usize).min(Composition::MAX_PIECES);
            assert_eq!((joined.pieces.len(), joined.tokens()), (n_pieces, whole.tokens()));
            let ends = |composition: &Composition| {
                (composition.pieces[0].clone(), composition.pieces[n_pieces - 1].clone())
            };
            let (first, last) = ends(&joined);
            assert_eq!(Some(&first), whole.pieces.first());
            assert_eq!(Some(&last), whole.pieces.last());
        }
    }
}
