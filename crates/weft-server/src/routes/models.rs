//! The one model that is served, and its names.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::response::Response;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::app::App;
use crate::http::PathParam;
use crate::model_info::ModelInfo;

/// The most names of other models that are logged, and the most characters of one.
const MAX_LOGGED: usize = 32;
const MAX_NAME_CHARS: usize = 80;

pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let model = app.worker.model()?;
    let names = std::iter::once(&model.id).chain(&app.options.aliases);
    let data: Vec<Value> = names.map(|name| describe(&model, name)).collect();
    Ok(Json(json!({"object": "list", "data": data})))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    PathParam(id): PathParam<String>,
) -> Result<Json<Value>, ApiError> {
    let model = app.worker.model()?;
    match is_its_name(&app, &model, &id) {
        true => Ok(Json(describe(&model, &id))),
        false => Err(ApiError::unknown_model(&id, &model.id)),
    }
}

fn is_its_name(app: &App, model: &ModelInfo, name: &str) -> bool {
    name == model.id || app.options.aliases.iter().any(|alias| alias == name)
}

/// Marks a response whose request named another model than the one that answers.
pub(crate) struct Substitute(Option<HeaderValue>);

impl Substitute {
    /// Checks the model that a request names. The one model answers to any name, unless names are
    /// strict.
    pub(crate) async fn check(
        app: &App,
        model: &ModelInfo,
        asked: Option<&str>,
    ) -> Result<Self, ApiError> {
        let Some(asked) = asked.filter(|name| !is_its_name(app, model, name)) else {
            return Ok(Self(None));
        };
        if app.options.strict_model {
            return Err(ApiError::unknown_model(asked, &model.id));
        }
        log_once(app, model, asked).await;
        Ok(Self(HeaderValue::from_bytes(model.id.as_bytes()).ok()))
    }

    pub(crate) fn mark(self, mut response: Response) -> Response {
        self.0.map(|id| response.headers_mut().insert("x-weft-model", id));
        response
    }
}

/// Logs each name once, and not more names than an operator reads.
async fn log_once(app: &App, model: &ModelInfo, asked: &str) {
    let asked: String = asked.chars().take(MAX_NAME_CHARS).collect();
    let mut names = app.other_names.lock().await;
    if names.len() < MAX_LOGGED && names.insert(asked.clone()) {
        (app.log)(&format!(
            "a client asks for the model {asked:?}; {} answers (--strict-model refuses)",
            model.id
        ));
    }
}

fn describe(model: &ModelInfo, name: &str) -> Value {
    let sampling = model.sampling(None);
    // As decimal fractions: 0.6, not the f32 that is nearest to it.
    let number = |value: f32| (f64::from(value) * 1e6).round() / 1e6;
    json!({
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "weft",
        "root": model.id,
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
