//! The one model that is served.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::app::App;
use crate::http::PathParam;
use crate::model_info::ModelInfo;

pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let model = app.worker.model()?;
    Ok(Json(json!({"object": "list", "data": [describe(&model)]})))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    PathParam(id): PathParam<String>,
) -> Result<Json<Value>, ApiError> {
    let model = app.worker.model()?;
    model.check_name(Some(&id))?;
    Ok(Json(describe(&model)))
}

fn describe(model: &ModelInfo) -> Value {
    let sampling = model.sampling(None);
    // As decimal fractions: 0.6, not the f32 that is nearest to it.
    let number = |value: f32| (f64::from(value) * 1e6).round() / 1e6;
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "weft",
        "max_model_len": model.context,
        "meta": {
            "n_vocab": model.vocab(),
            "n_ctx": model.context,
            "n_params": model.parameters,
            "device": model.device,
            "sampling": {
                "temperature": number(sampling.temperature),
                "top_p": number(sampling.top_p),
                "top_k": sampling.top_k,
                "min_p": number(sampling.min_p),
            },
        },
    })
}
