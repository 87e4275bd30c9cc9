//! Drafts from the client's prediction: a text that the answer may repeat in large parts, such as a
//! file that is to be edited.
//!
//! The answer is followed token by token. A token that differs is taken for one that replaces the
//! predicted one; if the answer has gained or lost tokens, its last ones are looked up.

use super::index::{SHORT, SuffixIndex};
use super::{DraftSource, Drafter, Text};

/// Last tokens of the answer that are compared.
const MAX_SUFFIX: usize = 64;

/// The prediction of one lane.
pub(super) struct Prediction {
    index: SuffixIndex,
    /// The predicted token that comes next.
    at: usize,
    /// Tokens of the answer before it that were predicted.
    n_matched: usize,
    /// Tokens of the answer that were read.
    n_read: usize,
}

impl Prediction {
    pub(super) fn new(tokens: &[u32]) -> Self {
        Self { index: SuffixIndex::new(tokens), at: 0, n_matched: 0, n_read: 0 }
    }

    fn read(&mut self, token: u32) {
        let is_right = self.index.tokens().get(self.at) == Some(&token);
        self.n_matched = if is_right { self.n_matched + 1 } else { 0 };
        self.at = (self.at + 1).min(self.index.tokens().len());
    }
}

impl Drafter for Prediction {
    fn source(&self) -> DraftSource {
        DraftSource::Prediction
    }

    fn draft(&mut self, text: &Text<'_>, max: usize, to: &mut Vec<u32>) -> usize {
        let answer = &text.tokens[text.prompt_len..];
        for token in &answer[self.n_read..] {
            self.read(*token);
        }
        self.n_read = answer.len();
        if self.n_matched < SHORT {
            let suffix = &answer[answer.len().saturating_sub(MAX_SUFFIX)..];
            if let Some(found) = self.index.find(suffix) {
                (self.at, self.n_matched) = (found.end, found.len);
            }
        }
        to.extend(self.index.tokens()[self.at..].iter().take(max));
        self.n_matched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{Sampler, Sampling};

    #[test]
    fn a_prediction_is_followed_through_changed_added_and_missing_tokens() {
        let sampler = Sampler::new(&Sampling::default(), &[], &[], 1000).unwrap();
        let mut prediction = Prediction::new(&[10, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
        let mut tokens = vec![1, 2, 3];
        let mut next = |new: &[u32]| {
            tokens.extend(new);
            let mut draft = Vec::new();
            let text = Text { tokens: &tokens, prompt_len: 3, sampler: &sampler };
            (prediction.draft(&text, 3, &mut draft), draft)
        };
        assert_eq!(next(&[]), (0, vec![10, 11, 12]));
        assert_eq!(next(&[10, 11]), (2, vec![12, 13, 14]));
        // One token is replaced.
        assert_eq!(next(&[99]), (0, vec![13, 14, 15]));
        assert_eq!(next(&[13, 14, 15]), (3, vec![16, 17, 18]));
        // Tokens are added, and the text goes back.
        assert_eq!(next(&[70, 71, 72, 11, 12, 13]), (3, vec![14, 15, 16]));
        // Some are left out.
        assert_eq!(next(&[16, 17, 18]), (3, vec![19]));
        assert_eq!(next(&[19]), (4, vec![]));
        assert_eq!(next(&[5]), (0, vec![]));
    }
}
