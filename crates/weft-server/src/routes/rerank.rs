//! `POST /v1/rerank`: documents by their relevance to a query.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use weft_core::retrieval::Reranker;

use super::readings::read_all;
use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::http::Body;
use crate::requests::{RankingForm, RerankRequest};
use crate::responses::response_id;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body<RerankRequest>,
) -> Result<Response, ApiError> {
    let lease = app.models.open(body.value.model.as_deref()).await?;
    let model = Arc::clone(lease.info());
    let Body { value: request, share, .. } = body;
    let prompt_bytes = request.prompt_bytes();
    let compose = {
        let model = Arc::clone(&model);
        move || Ok((request.compose(&model)?, request))
    };
    let (prompts, request) = off_thread(prompt_bytes, compose).await?;
    let (n_results, form) = (request.n_results(), request.form);
    let documents = request.into_returned();
    // The documents are held until they are returned.
    let share = documents.is_some().then_some(share);
    let reading = model.reranker()?.reading();
    let (values, usage) = read_all(&lease, prompts, &reading).await?;
    drop(share);
    let scores: Vec<f32> = values.iter().map(|values| Reranker::score(values)).collect();
    let text = |index: usize| documents.as_ref().map(|documents| &documents[index]);
    let result = |index: usize| {
        let mut result = match form {
            RankingForm::Results => json!({"index": index, "relevance_score": scores[index]}),
            RankingForm::List => json!({"index": index, "score": scores[index]}),
        };
        match (form, text(index)) {
            (_, None) => {}
            (RankingForm::Results, Some(text)) => result["document"] = json!({"text": text}),
            (RankingForm::List, Some(text)) => result["text"] = json!(text),
        }
        result
    };
    let results: Vec<Value> = ranked(&scores).into_iter().take(n_results).map(result).collect();
    let response = match form {
        RankingForm::List => results.into(),
        RankingForm::Results => json!({
            "id": response_id("rerank"),
            "object": "list",
            "model": model.id,
            "results": results,
            "usage": usage,
        }),
    };
    Ok(lease.mark(Json(response).into_response()))
}

/// The documents from the most relevant to the least; of equal ones, the first comes first.
fn ranked(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_relevant_comes_first() {
        assert_eq!(ranked(&[0.2, 0.9, 0.2, 1.0, 0.0]), [3, 1, 0, 2, 4]);
        assert!(ranked(&[]).is_empty());
    }
}
