//! Vectors of texts: `POST /api/embed`, and `/api/embeddings` of earlier clients.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;

use super::untagged;
use crate::api_error::ApiError;
use crate::app::App;
use crate::http::Body;
use crate::requests::{EmbeddingsRequest, FromJson};
use crate::routes;

/// Texts to embed.
pub(crate) struct OllamaEmbed(EmbeddingsRequest);

/// One text to embed, as `prompt`.
pub(crate) struct OllamaEmbedOne(EmbeddingsRequest);

impl FromJson for OllamaEmbed {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        let mut request = EmbeddingsRequest::from_json(json)?;
        request.model = request.model.map(|name| untagged(&name).to_owned());
        Ok(Self(request))
    }
}

impl FromJson for OllamaEmbedOne {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        let Some(prompt) = json.get("prompt").and_then(Value::as_str) else {
            return Err(ApiError::invalid("prompt must be a string").param("prompt"));
        };
        let mut json = json.clone();
        json["input"] = prompt.into();
        OllamaEmbed::from_json(&json).map(|OllamaEmbed(request)| Self(request))
    }
}

/// Times are in nanoseconds.
#[derive(Serialize)]
struct Embeddings {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

#[derive(Serialize)]
struct Embedding {
    embedding: Vec<f32>,
}

pub(super) async fn embed(
    State(app): State<Arc<App>>,
    body: Body<OllamaEmbed>,
) -> Result<Response, ApiError> {
    let start = Instant::now();
    let embedded = routes::embed(&app, body.map(|OllamaEmbed(request)| request)).await?;
    let total_duration = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    embedded
        .respond(move |embeddings, model, usage| Embeddings {
            model: model.id.clone(),
            embeddings,
            total_duration,
            load_duration: 0,
            prompt_eval_count: usage.prompt_tokens,
        })
        .await
}

pub(super) async fn embed_one(
    State(app): State<Arc<App>>,
    body: Body<OllamaEmbedOne>,
) -> Result<Response, ApiError> {
    let embedded = routes::embed(&app, body.map(|OllamaEmbedOne(request)| request)).await?;
    let only = |mut vectors: Vec<Vec<f32>>| vectors.pop().unwrap_or_default();
    embedded.respond(move |vectors, _, _| Embedding { embedding: only(vectors) }).await
}
