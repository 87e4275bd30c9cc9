//! `GET /props` and `/slots`, as the clients of llama.cpp's server read them: the settings of a
//! model, and what its lanes do.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde_json::{Value, json};
use weft_core::device::MAX_LANES;

use crate::api_error::ApiError;
use crate::app::App;
use crate::model_info::ModelInfo;
use crate::responses::FINGERPRINT;

/// The model that is meant: the first one by default.
#[derive(Deserialize)]
pub(super) struct Which {
    model: Option<String>,
}

type WhichQuery = Result<Query<Which>, QueryRejection>;

fn named(query: WhichQuery) -> Option<String> {
    query.ok().and_then(|Query(which)| which.model)
}

/// The settings of a model, which is loaded for that.
pub(super) async fn props(
    State(app): State<Arc<App>>,
    which: WhichQuery,
) -> Result<Json<Value>, ApiError> {
    let lease = app.models.open(named(which).as_deref()).await?;
    let model = lease.info();
    let text = |id: Option<u32>| id.map(|id| model.tokenizer.decode(&[id], false));
    let template = model.template.as_ref().map(|template| template.source());
    let mut settings = slot(0, false, model.context);
    settings["params"] = params(model);
    Ok(Json(json!({
        "default_generation_settings": settings,
        "total_slots": MAX_LANES,
        "model_alias": model.id,
        // Clients must not see paths of the machine.
        "model_path": model.id,
        "chat_template": template.unwrap_or_default(),
        "bos_token": text(model.tokenizer.bos().first().copied()).unwrap_or_default(),
        "eos_token": text(model.end()).unwrap_or_default(),
        "modalities": {"vision": false, "audio": false},
        "is_sleeping": false,
        "build_info": FINGERPRINT,
    })))
}

/// The lanes of a model; all are idle if it is not loaded.
pub(super) async fn slots(
    State(app): State<Arc<App>>,
    which: WhichQuery,
) -> Result<Json<Value>, ApiError> {
    let entry = app.models.find(named(which).as_deref()).await?.entry;
    let listed = app.models.show(&entry).await;
    let running = entry.metrics.running();
    let slots = (0..MAX_LANES).map(|id| slot(id, id < running, listed.context().unwrap_or(0)));
    Ok(Json(slots.collect()))
}

fn slot(id: usize, is_processing: bool, context: usize) -> Value {
    json!({"id": id, "n_ctx": context, "speculative": true, "is_processing": is_processing})
}

/// The values that hold if a request gives none.
fn params(model: &ModelInfo) -> Value {
    let sampling = model.sampling(None);
    // As decimal fractions: 0.6, not the f32 that is nearest to it.
    let number = |value: f32| (f64::from(value) * 1e6).round() / 1e6;
    json!({
        "n_predict": -1,
        "temperature": number(sampling.temperature),
        "top_k": sampling.top_k,
        "top_p": number(sampling.top_p),
        "min_p": number(sampling.min_p),
    })
}
