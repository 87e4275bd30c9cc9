//! Search with a model: embeddings of texts, and the relevance of documents to a query.

use weft_core::chunk::ChunkError;
use weft_core::engine::Reading;
use weft_core::retrieval::{Passage, Reranker, compose, embedding};

use crate::error::Error;
use crate::llm::Llm;

impl Llm {
    /// The embeddings of texts, in the same order: the state of each text's last token after the
    /// last layer, as a vector of length 1. Texts are read up to eight at a time. For fewer
    /// dimensions, use [`embedding`] on the vectors.
    ///
    /// Use a model that was trained for it, such as Qwen3-Embedding. Such models expect an
    /// instruction before a query, and none before a document.
    ///
    /// ```
    /// # fn main() -> Result<(), weft::Error> {
    /// let mut llm = weft::open_bundled()?; // or weft::open("Qwen/Qwen3-Embedding-0.6B")?
    /// let vectors = llm.embed(["Piranul has 49 bridges.", "A cat."])?;
    /// assert_eq!(vectors[0].len(), llm.config().hidden);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Request`] if a text is empty or does not fit the context; [`Error::Generate`] if
    /// the device fails.
    pub fn embed<T: AsRef<str>>(
        &mut self,
        texts: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let tokenizer = &self.model.tokenizer;
        let passage = |text: T| Passage::of_text(tokenizer, text.as_ref());
        let passages = texts.into_iter().map(passage).collect::<Result<_, _>>();
        let prompts = compose(passages.map_err(ChunkError::from)?);
        let states = self.engine.read_batch(prompts, &Reading::State)?;
        Ok(states.iter().map(|state| embedding(state, None)).collect())
    }

    /// The relevance of documents to a query, each from 0 to 1, in the order of the documents. Use
    /// a model that was trained for it, such as Qwen3-Reranker. `instruction` says what makes a
    /// document relevant; the model's usual one is for web search.
    ///
    /// # Errors
    /// [`Error::Rerank`] if the model's tokenizer lacks the tokens of the prompt; otherwise as
    /// [`embed`](Self::embed).
    pub fn rerank<T: AsRef<str>>(
        &mut self,
        instruction: Option<&str>,
        query: &str,
        documents: impl IntoIterator<Item = T>,
    ) -> Result<Vec<f32>, Error> {
        let tokenizer = &self.model.tokenizer;
        let reranker = Reranker::new(tokenizer)?;
        let passage =
            |document: T| reranker.passage(tokenizer, instruction, query, document.as_ref());
        let passages = documents.into_iter().map(passage).collect::<Result<_, _>>();
        let prompts = compose(passages.map_err(ChunkError::from)?);
        let values = self.engine.read_batch(prompts, &reranker.reading())?;
        Ok(values.iter().map(|values| Reranker::score(values)).collect())
    }
}
