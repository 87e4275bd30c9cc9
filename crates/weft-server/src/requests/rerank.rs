//! The body of a request that ranks documents, in the shape of Cohere's API and of Jina's.

use serde::Deserialize;
use serde_json::Value;
use weft_core::chunk::Composition;
use weft_core::retrieval::compose;

use super::json::{FromJson, fields};
use super::numbers::Count;
use crate::api_error::ApiError;
use crate::model_info::ModelInfo;

/// The most documents of one request.
const MAX_DOCUMENTS: usize = 1024;
/// The most tokens of one request, over all its prompts.
const MAX_TOKENS: usize = 1 << 20;

/// Bytes of a prompt beside its texts, about.
const TEMPLATE_BYTES: usize = 400;

/// Documents to rank.
#[derive(Debug, Deserialize)]
pub(crate) struct RerankRequest {
    pub(crate) model: Option<String>,
    query: Text,
    /// `texts` in the requests of text-embeddings-inference.
    #[serde(alias = "texts")]
    documents: Vec<Text>,
    top_n: Option<Count>,
    #[serde(alias = "return_text")]
    return_documents: Option<bool>,
    /// What makes a document relevant, in a sentence for the model.
    instruction: Option<String>,
    /// How the results are written.
    #[serde(skip)]
    pub(crate) form: RankingForm,
}

/// How the results of a ranking are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RankingForm {
    /// An object with the results, as Cohere and Jina write it.
    #[default]
    Results,
    /// The list of results alone, as text-embeddings-inference writes it.
    List,
}

/// A text, by itself or as the field of an object.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a string, or an object with a string `text`")]
enum Text {
    Plain(String),
    Field { text: String },
}

impl Text {
    fn as_str(&self) -> &str {
        match self {
            Self::Plain(text) | Self::Field { text } => text,
        }
    }
}

/// Fields that would change the result.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("truncate", "documents are never cut"),
    ("raw_scores", "scores are probabilities"),
    ("rank_fields", "give each document as one text"),
    ("max_chunks_per_doc", "documents are never cut"),
    ("max_tokens_per_doc", "documents are never cut"),
    ("truncate_prompt_tokens", "documents are never cut"),
];

impl FromJson for RerankRequest {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        for (field, instead) in UNSUPPORTED {
            if json.get(field).is_some_and(|value| !value.is_null() && *value != false) {
                let message = format!("{field} is not supported: {instead}");
                return Err(ApiError::invalid(message).param(field));
            }
        }
        let listed = |field: &str| json.get(field).and_then(Value::as_array).map_or(0, Vec::len);
        let n = listed("documents").max(listed("texts"));
        if n > MAX_DOCUMENTS {
            let message = format!(
                "documents has {n} entries, and the limit is {MAX_DOCUMENTS}; rank them in parts"
            );
            return Err(ApiError::invalid(message).param("documents"));
        }
        let mut request: Self = fields(json)?;
        if json.get("documents").is_none() {
            request.form = RankingForm::List;
        }
        if request.query.as_str().is_empty() {
            return Err(ApiError::invalid("query is empty; give some text").param("query"));
        }
        if request.documents.is_empty() {
            let message = "documents is empty; give at least one";
            return Err(ApiError::invalid(message).param("documents"));
        }
        Ok(request)
    }
}

impl RerankRequest {
    /// Bytes of all prompts: each document is read after the instruction and the query.
    pub(crate) fn prompt_bytes(&self) -> usize {
        let instruction = self.instruction.as_ref().map_or(0, String::len);
        let documents: usize = self.documents.iter().map(|text| text.as_str().len()).sum();
        let before = instruction + self.query.as_str().len() + TEMPLATE_BYTES;
        before.saturating_mul(self.documents.len()).saturating_add(documents)
    }

    /// The number of results.
    pub(crate) fn n_results(&self) -> usize {
        let n = self.documents.len();
        self.top_n.map_or(n, |top| top.count().min(n))
    }

    /// The documents' texts, if the client wants them back.
    pub(crate) fn into_returned(self) -> Option<Vec<String>> {
        let text = |text| match text {
            Text::Plain(text) | Text::Field { text } => text,
        };
        let is_wanted = self.return_documents.unwrap_or(false);
        is_wanted.then(|| self.documents.into_iter().map(text).collect())
    }

    /// A prompt for each document.
    pub(crate) fn compose(&self, model: &ModelInfo) -> Result<Vec<Composition>, ApiError> {
        let (reranker, tokenizer) = (model.reranker()?, &model.tokenizer);
        let (instruction, query) = (self.instruction.as_deref(), self.query.as_str());
        let mut n_tokens = 0;
        let mut passages = Vec::with_capacity(self.documents.len());
        for document in &self.documents {
            let passage = reranker.passage(tokenizer, instruction, query, document.as_str())?;
            model.check_length(passage.len())?;
            n_tokens += passage.len();
            if n_tokens > MAX_TOKENS {
                let message = format!(
                    "query and documents have more than {MAX_TOKENS} tokens; rank them in parts"
                );
                return Err(ApiError::invalid(message).param("documents"));
            }
            passages.push(passage);
        }
        Ok(compose(passages))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bodies_that_rank_nothing_are_refused_by_their_field() {
        let base = json!({"query": "q", "documents": ["a", {"text": "b"}], "top_n": 5});
        let request = RerankRequest::from_json(&base).unwrap();
        assert_eq!(request.n_results(), 2);
        assert_eq!(request.prompt_bytes(), 2 * (400 + 1) + 2);
        assert!(request.into_returned().is_none());
        let param = |field: &str, value: Value| {
            let mut body = base.clone();
            body[field] = value;
            RerankRequest::from_json(&body).unwrap_err().json()["error"]["param"].clone()
        };
        assert_eq!(param("query", json!("")), "query");
        assert_eq!(param("query", json!(1)), "query");
        assert_eq!(param("documents", json!([])), "documents");
        assert_eq!(param("documents", json!("a")), "documents");
        assert_eq!(param("documents", json!(["a", {"title": "b"}])), "documents[1]");
        assert_eq!(param("documents", json!(vec!["a"; 1025])), "documents");
        assert_eq!(param("top_n", json!(-1)), "top_n");
        assert_eq!(param("return_documents", json!("yes")), "return_documents");
        assert_eq!(param("instruction", json!(1)), "instruction");
        for (field, _) in UNSUPPORTED {
            assert_eq!(param(field, json!(4)), field);
        }
    }
}
