//! The relevance of documents to a query, as Qwen3-Reranker judges it: a prompt that is answered by
//! yes or no, and the probability of yes among the two.
//!
//! The prompt is that of the model's card, token for token. Other models with the same turn tokens
//! can be asked in the same way.

use thiserror::Error;

use super::Passage;
use crate::engine::Reading;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// The instruction that the model gets if the caller gives none.
const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

const BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based \
    on the Query and the Instruct provided. Note that the answer can only be \"yes\" or \
    \"no\".<|im_end|>\n<|im_start|>user\n";
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// The tokens that the template is made of.
const TURNS: [&str; 2] = ["<|im_start|>", "<|im_end|>"];

/// A model's prompt for judging documents.
#[derive(Clone, Debug)]
pub struct Reranker {
    before: Vec<u32>,
    after: Vec<u32>,
    no: u32,
    yes: u32,
}

/// Why a model cannot judge documents.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RerankError {
    /// A token of the template is missing.
    #[error("this model cannot rank documents: its tokenizer has no {0}; use Qwen3-Reranker")]
    NoToken(&'static str),
    /// Yes and no begin with the same token.
    #[error(
        "this model cannot rank documents: its words yes and no begin with the same token; use \
         Qwen3-Reranker"
    )]
    SameToken,
    /// A text cannot be encoded.
    #[error("{0}")]
    Text(String),
}

impl From<TokenizerError> for RerankError {
    fn from(error: TokenizerError) -> Self {
        Self::Text(error.to_string())
    }
}

impl Reranker {
    /// The prompt for a model with this tokenizer.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, RerankError> {
        if let Some(missing) = TURNS.into_iter().find(|token| tokenizer.id_of(token).is_none()) {
            return Err(RerankError::NoToken(missing));
        }
        // One token each in the vocabularies of Qwen3; of other models, the first one decides.
        let first = |word| Ok::<_, RerankError>(tokenizer.encode_text(word)?[0]);
        let (no, yes) = (first("no")?, first("yes")?);
        if no == yes {
            return Err(RerankError::SameToken);
        }
        let (before, after) = (tokenizer.encode_markup(BEFORE)?, tokenizer.encode_markup(AFTER)?);
        Ok(Self { before, after, no, yes })
    }

    /// The prompt that asks about a document. All three texts are data: no part of them is read as
    /// a special token.
    pub fn passage(
        &self,
        tokenizer: &Tokenizer,
        instruction: Option<&str>,
        query: &str,
        document: &str,
    ) -> Result<Passage, TokenizerError> {
        let instruction = instruction.unwrap_or(INSTRUCTION);
        let text = format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}");
        let text = tokenizer.encode_text(&text)?;
        let tokens = [&self.before, &text, &self.after].into_iter().flatten().copied().collect();
        Ok(Passage { tokens, shared: self.before.len() })
    }

    /// What is read of a prompt.
    pub fn reading(&self) -> Reading {
        Reading::Logits(vec![self.no, self.yes])
    }

    /// The relevance of a document, from 0 to 1, by what was read of its prompt.
    ///
    /// # Panics
    /// If the values are not those of [`Reranker::reading`].
    pub fn score(values: &[f32]) -> f32 {
        let [no, yes] = values else { panic!("{} values are not no and yes", values.len()) };
        (1.0 / (1.0 + (f64::from(*no) - f64::from(*yes)).exp())) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_softmax_of_yes_and_no() {
        assert_eq!(Reranker::score(&[2.5, 2.5]), 0.5);
        let score = Reranker::score(&[1.0, 3.0]);
        assert!((f64::from(score) - 3f64.exp() / (1f64.exp() + 3f64.exp())).abs() < 1e-7);
        assert_eq!(Reranker::score(&[-3e38, 3e38]), 1.0);
        assert_eq!(Reranker::score(&[3e38, -3e38]), 0.0);
    }
}
