//! The models that are served: their names, their states, and loading and unloading them by hand.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::app::App;
use crate::http::{Body, PathParam};
use crate::registry::{Listed, Status};
use crate::requests::{FromJson, fields};
use crate::responses::time;

pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.models.check_ready()?;
    let all = app.models.list_all().await;
    let data: Vec<Value> = all
        .iter()
        .flat_map(|listed| listed.entry.names().map(|name| describe(listed, name)))
        .collect();
    let id_of = |model: Option<&Value>| model.map(|model| model["id"].clone());
    // The last three are of Anthropic's lists, and its clients ignore what is OpenAI's.
    Ok(Json(json!({
        "object": "list",
        "data": data,
        "has_more": false,
        "first_id": id_of(data.first()),
        "last_id": id_of(data.last()),
    })))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    PathParam(id): PathParam<String>,
) -> Result<Json<Value>, ApiError> {
    app.models.check_ready()?;
    let entry = match app.models.known(&id) {
        Some(entry) => entry,
        // One that is served alone answers to any name, but is not called so.
        None if app.models.is_single() => {
            return Err(ApiError::unknown_model(&id, &app.models.first().name.id));
        }
        None => app.models.find(Some(&id)).await?.entry,
    };
    Ok(Json(describe(&app.models.show(&entry).await, &id)))
}

/// The model to load or to unload.
#[derive(Deserialize)]
pub(super) struct Which {
    model: String,
}

impl FromJson for Which {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        fields(json)
    }
}

/// Loads a model, and answers when it is loaded.
pub(super) async fn load(
    State(app): State<Arc<App>>,
    body: Body<Which>,
) -> Result<Json<Value>, ApiError> {
    let lease = app.models.open(Some(&body.value.model)).await?;
    let id = lease.id().to_owned();
    Ok(Json(json!({"success": true, "model": id, "status": {"value": Status::Loaded.name()}})))
}

/// Unloads a model when nobody uses it, and answers when its memory is free.
pub(super) async fn unload(
    State(app): State<Arc<App>>,
    body: Body<Which>,
) -> Result<Json<Value>, ApiError> {
    let entry = app.models.find(Some(&body.value.model)).await?.entry;
    app.models.unload(&entry).await?;
    let status = Status::Unloaded.name();
    Ok(Json(json!({"success": true, "model": entry.name.id, "status": {"value": status}})))
}

/// The status as llama.cpp writes it, with the share of a load that is done.
fn status(status: Status) -> Value {
    match status {
        Status::Loading(_, done) => json!({"value": status.name(), "progress": done}),
        _ => json!({"value": status.name()}),
    }
}

fn describe(listed: &Listed, name: &str) -> Value {
    let about = listed.about();
    let context = listed.context();
    let mut meta = json!({
        "n_ctx": context,
        "n_params": Some(listed.parameters()).filter(|n| *n > 0),
        "forms": about.map(|about| &about.forms),
        "size": Some(listed.bytes()).filter(|bytes| *bytes > 0),
    });
    if let Some(model) = &listed.info {
        let sampling = model.sampling(None);
        // As decimal fractions: 0.6, not the f32 that is nearest to it.
        let number = |value: f32| (f64::from(value) * 1e6).round() / 1e6;
        meta["n_vocab"] = model.vocab().into();
        meta["device"] = model.device.clone().into();
        meta["sampling"] = json!({
            "temperature": number(sampling.temperature),
            "top_p": number(sampling.top_p),
            "top_k": sampling.top_k,
            "min_p": number(sampling.min_p),
        });
    }
    let created = listed.info.as_ref().map_or(0, |info| info.created);
    json!({
        "id": name,
        "object": "model",
        "created": created,
        // As Anthropic's clients read it.
        "type": "model",
        "display_name": name,
        "created_at": time::at(created),
        "lifecycle": "active",
        "max_input_tokens": context,
        "owned_by": "weft",
        "root": listed.entry.name.id,
        "max_model_len": context,
        "status": status(listed.status),
        "meta": meta,
    })
}
