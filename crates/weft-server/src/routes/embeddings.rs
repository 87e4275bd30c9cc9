//! `POST /v1/embeddings`: vectors of texts.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use weft_core::engine::Reading;
use weft_core::retrieval::embedding;

use super::models::Substitute;
use super::readings::{ReadUsage, read_all};
use crate::api_error::ApiError;
use crate::app::{App, SLOW, off_thread};
use crate::http::Body;
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

/// Responses with more values than this are written on a blocking thread.
const MANY_VALUES: usize = 1 << 16;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body<EmbeddingsRequest>,
) -> Result<Response, ApiError> {
    let model = app.worker.model()?;
    let Body { value: request, bytes, share } = body;
    let substitute = Substitute::check(&app, &model, request.model.as_deref()).await?;
    let dimensions = request.dimensions(&model)?;
    let format = request.encoding_format();
    let compose = {
        let model = Arc::clone(&model);
        move || request.compose(&model)
    };
    let prompts = off_thread(bytes, compose).await?;
    drop(share);
    let (states, usage) = read_all(&app.worker, prompts, &Reading::State).await?;
    let work = if states.len() * model.hidden > MANY_VALUES { SLOW } else { 0 };
    let write = move || {
        let vector = |state: &Vec<f32>| {
            let values = embedding(state, dimensions);
            match format {
                EncodingFormat::Float => Vector::Float(values),
                EncodingFormat::Base64 => Vector::Base64(base64(&values)),
            }
        };
        let data = states.iter().enumerate().map(|(index, state)| Embedding {
            object: "embedding",
            index,
            embedding: vector(state),
        });
        let (data, model) = (data.collect(), model.id.clone());
        Ok(Json(Embeddings { object: "list", data, model, usage }).into_response())
    };
    Ok(substitute.mark(off_thread(work, write).await?))
}

/// The values' bytes, little endian, in base64 with padding.
fn base64(values: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - group.len()));
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            let is_padding = digit > group.len();
            text.push(if is_padding { '=' } else { char::from(DIGITS[index as usize]) });
        }
    }
    text
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
