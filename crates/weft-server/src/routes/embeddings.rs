//! `POST /v1/embeddings`: vectors of texts.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use weft_core::engine::Reading;
use weft_core::retrieval::embedding;

use super::readings::{ReadUsage, read_all};
use crate::api_error::ApiError;
use crate::app::{App, SLOW, off_thread};
use crate::http::Body;
use crate::model_info::ModelInfo;
use crate::registry::Lease;
use crate::requests::{EmbeddingsRequest, EncodingFormat};

/// The response. Its vectors are written as they are, because a tree of JSON values would take
/// several times their memory.
#[derive(Serialize)]
struct Embeddings {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: ReadUsage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

/// More values than this are written on a blocking thread.
const MANY_VALUES: usize = 1 << 16;

/// The vectors of a request's texts.
pub(crate) struct Embedded {
    pub(crate) model: Lease,
    pub(crate) usage: ReadUsage,
    states: Vec<Vec<f32>>,
    dimensions: Option<usize>,
}

/// Embeds the texts of a request.
pub(crate) async fn embed(
    app: &Arc<App>,
    body: Body<EmbeddingsRequest>,
) -> Result<Embedded, ApiError> {
    let lease = app.models.open(body.value.model.as_deref()).await?;
    let Body { value: request, bytes, share } = body;
    let dimensions = request.dimensions(lease.info())?;
    let compose = {
        let model = Arc::clone(lease.info());
        move || request.compose(&model)
    };
    let prompts = off_thread(bytes, compose).await?;
    drop(share);
    let (states, usage) = read_all(&lease, prompts, &Reading::State).await?;
    Ok(Embedded { model: lease, usage, states, dimensions })
}

impl Embedded {
    /// Writes the vectors as a response.
    pub(crate) async fn respond<T: Serialize>(
        self,
        body: impl FnOnce(Vec<Vec<f32>>, &ModelInfo, ReadUsage) -> T + Send + 'static,
    ) -> Result<Response, ApiError> {
        let Self { model: lease, usage, states, dimensions } = self;
        let model = Arc::clone(lease.info());
        let work = if states.len() * model.hidden > MANY_VALUES { SLOW } else { 0 };
        let write = move || {
            let vectors = states.iter().map(|state| embedding(state, dimensions)).collect();
            Ok(Json(body(vectors, &model, usage)).into_response())
        };
        Ok(lease.mark(off_thread(work, write).await?))
    }
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body<EmbeddingsRequest>,
) -> Result<Response, ApiError> {
    let format = body.value.encoding_format();
    let vector = move |values: Vec<f32>| match format {
        EncodingFormat::Float => Vector::Float(values),
        EncodingFormat::Base64 => Vector::Base64(base64(&values)),
    };
    let write = move |vectors: Vec<Vec<f32>>, model: &ModelInfo, usage| {
        let data = vectors.into_iter().enumerate().map(|(index, values)| Embedding {
            object: "embedding",
            index,
            embedding: vector(values),
        });
        Embeddings { object: "list", data: data.collect(), model: model.id.clone(), usage }
    };
    embed(&app, body).await?.respond(write).await
}

/// The values' bytes, little endian, in base64 with padding.
fn base64(values: &[f32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_the_bytes_of_the_numbers() {
        // As Python's base64 and struct write them.
        assert_eq!(base64(&[]), "");
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(base64(&[0.1, 0.2, 0.3]), "zczMPc3MTD6amZk+");
    }
}
