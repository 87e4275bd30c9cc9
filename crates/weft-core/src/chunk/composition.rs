//! A composition: the pieces of a prompt in their order, as the engine runs them.
//!
//! A piece is the tokens of a chunk with the template's own tokens around it. Pieces decide where KV
//! rows are cut and what is told about them, never what an exact prompt computes.

use super::{ChunkId, Kind, Repair, Reuse};
use crate::device::{MAX_MARKS, MAX_SPANS};
use crate::tokenizer::Tokenizer;

const _: () = assert!(Composition::MAX_PIECES <= MAX_SPANS, "a piece is one span at most");

/// A part of a prompt that is kept, and told about, by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// What it is.
    pub kind: Kind,
    /// The chunk it came from, where it is of the library.
    pub chunk: Option<ChunkId>,
    /// Its tokens, those of the template around it included.
    pub tokens: Vec<u32>,
    /// What it attends to. Only contexts and outputs may be other than exact.
    pub reuse: Reuse,
}

impl Piece {
    /// A piece that attends to all that stands before it.
    pub fn exact(kind: Kind, tokens: Vec<u32>) -> Self {
        Self { kind, chunk: None, tokens, reuse: Reuse::Exact }
    }
}

/// All pieces of a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Composition {
    /// The pieces. Empty ones are passed over.
    pub pieces: Vec<Piece>,
    /// What is recomputed of approximate pieces.
    pub repair: Repair,
}

impl Composition {
    /// Pieces of a prompt at most. A piece begins one span at most, and there is a mark at its end.
    pub const MAX_PIECES: usize = MAX_MARKS;

    /// Joins the oldest pieces after the first, all of them exact, until there are few enough.
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

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All tokens in their order.
    pub fn tokens(&self) -> Vec<u32> {
        self.pieces.iter().flat_map(|piece| &piece.tokens).copied().collect()
    }

    /// The text of the last few tokens. It shows whether the prompt ends inside a thought.
    pub fn end_text(&self, tokenizer: &Tokenizer) -> String {
        const TOKENS: usize = 16;
        let last = self.pieces.last().map_or(&[][..], |piece| &piece.tokens);
        tokenizer.decode(&last[last.len().saturating_sub(TOKENS)..], false)
    }

    /// The same tokens, each piece attending to all before it.
    pub fn exact(&self) -> Self {
        let exact = |piece: &Piece| Piece { reuse: Reuse::Exact, ..piece.clone() };
        let pieces = self.pieces.iter().filter(|piece| !piece.tokens.is_empty());
        Self { pieces: pieces.map(exact).collect(), repair: Repair::None }
    }

    /// The same, to be answered: the logits of its last token are where the answer begins, so its last
    /// piece attends to all before it.
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
