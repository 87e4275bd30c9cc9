//! The one model that is served.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::app::App;
use crate::http::Named;
use crate::served::Served;

pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let served = app.served()?;
    Ok(Json(json!({"object": "list", "data": [describe(&served)]})))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Named(id): Named<String>,
) -> Result<Json<Value>, ApiError> {
    let served = app.served()?;
    served.check_model(Some(&id))?;
    Ok(Json(describe(&served)))
}

fn describe(served: &Served) -> Value {
    json!({
        "id": served.id,
        "object": "model",
        "created": served.created,
        "owned_by": "weft",
        "max_model_len": served.context,
        "meta": {
            "n_vocab": served.vocab(),
            "n_ctx": served.context,
            "n_params": served.parameters,
            "device": served.device,
        },
    })
}
