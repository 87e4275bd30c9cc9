//! Ollama's API, the part that clients need: chats, texts and vectors, and the model that is served.

mod embed;
mod request;
mod time;
mod writer;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};

use self::request::OllamaRequest;
use self::writer::{Form, OllamaWriter};
use super::Dialect;
use super::answer::answer;
use crate::api_error::ApiError;
use crate::app::App;
use crate::http::Body;
use crate::model_info::ModelInfo;
use crate::requests::{FromJson, fields};
use crate::routes::Substitute;

pub(crate) use self::request::{OllamaChat, OllamaGenerate};

/// The version of Ollama whose API this is. Clients look at it to see what they can ask for.
const API_VERSION: &str = "0.12.0";

/// Ollama.
pub(super) const OLLAMA: Dialect = Dialect {
    prefixes: &["/api/"],
    routes: || {
        vec![
            ("/api/chat", post(chat)),
            ("/api/generate", post(generate)),
            ("/api/embed", post(embed::embed)),
            ("/api/embeddings", post(embed::embed_one)),
            ("/api/tags", get(tags)),
            ("/api/show", post(show)),
            ("/api/ps", get(ps)),
            ("/api/version", get(version)),
        ]
    },
    error: error_json,
};

fn error_json(error: &ApiError) -> Value {
    json!({"error": error.message()})
}

/// A model's name without the tag that clients add if the user names none.
fn untagged(name: &str) -> &str {
    name.trim_end_matches(":latest")
}

async fn chat(State(app): State<Arc<App>>, body: Body<OllamaChat>) -> Result<Response, ApiError> {
    respond(app, body.map(|OllamaChat(request)| request), Form::Message).await
}

async fn generate(
    State(app): State<Arc<App>>,
    body: Body<OllamaGenerate>,
) -> Result<Response, ApiError> {
    respond(app, body.map(|OllamaGenerate(request)| request), Form::Text).await
}

async fn respond(
    app: Arc<App>,
    body: Body<OllamaRequest>,
    form: Form,
) -> Result<Response, ApiError> {
    let model = app.worker.model()?;
    let OllamaRequest { needs_thinking, is_empty, .. } = body.value;
    if needs_thinking && !model.can_think() {
        let message = format!("{:?} does not support thinking; leave out think", model.id);
        return Err(ApiError::invalid(message).param("think"));
    }
    if is_empty {
        let asked = body.value.chat.settings.model.as_deref();
        let substitute = Substitute::check(&app, &model, asked).await?;
        return Ok(substitute.mark(Json(loaded(&model, form)).into_response()));
    }
    let body = body.map(|request| request.chat);
    answer(&app, body, |answering| OllamaWriter::new(answering, form)).await
}

/// The answer to a request without a question: the model is loaded.
fn loaded(model: &ModelInfo, form: Form) -> Value {
    let mut answer = json!({"model": model.id, "created_at": time::now(), "done": true,
        "done_reason": "load"});
    match form {
        Form::Message => answer["message"] = json!({"role": "assistant", "content": ""}),
        Form::Text => answer["response"] = "".into(),
    }
    answer
}

async fn version() -> Json<Value> {
    Json(json!({"version": API_VERSION, "weft": env!("CARGO_PKG_VERSION")}))
}

async fn tags(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let model = app.worker.model()?;
    let names = std::iter::once(&model.id).chain(&app.options.aliases);
    let models: Vec<Value> = names.map(|name| listed(&model, name)).collect();
    Ok(Json(json!({"models": models})))
}

async fn ps(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let model = app.worker.model()?;
    let mut listed = listed(&model, &model.id);
    listed["expires_at"] = time::NEVER.into();
    listed["size_vram"] = 0.into();
    listed["context_length"] = model.context.into();
    Ok(Json(json!({"models": [listed]})))
}

/// The model as lists show it. Its size is that of its parameters in 16 bits.
fn listed(model: &ModelInfo, name: &str) -> Value {
    let mut hasher = DefaultHasher::new();
    (name, model.parameters).hash(&mut hasher);
    json!({
        "name": name,
        "model": name,
        "modified_at": time::at(model.created),
        "size": model.parameters.saturating_mul(2),
        "digest": format!("{:016x}", hasher.finish()),
        "details": details(model),
    })
}

fn details(model: &ModelInfo) -> Value {
    let family = model.shape.family.to_string().to_lowercase();
    json!({
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": parameter_size(model.parameters),
        "quantization_level": "",
    })
}

/// A number of parameters as names of models have it: 12.3M, 0.6B.
fn parameter_size(n: u64) -> String {
    match n as f64 {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n => format!("{:.1}M", n / 1e6),
    }
}

/// The model that a client asks about; earlier clients say `name`.
#[derive(Deserialize)]
pub(super) struct Show {
    #[serde(alias = "name")]
    model: String,
}

impl FromJson for Show {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        fields(json)
    }
}

async fn show(State(app): State<Arc<App>>, body: Body<Show>) -> Result<Response, ApiError> {
    let model = app.worker.model()?;
    let asked = untagged(&body.value.model);
    let substitute = Substitute::check(&app, &model, Some(asked)).await?;
    Ok(substitute.mark(Json(described(&model)).into_response()))
}

fn described(model: &ModelInfo) -> Value {
    let template = model.template.as_ref().map(|template| template.source()).unwrap_or_default();
    let sampling = model.sampling(None);
    let mut capabilities = vec!["completion"];
    capabilities.extend(template.contains("tools").then_some("tools"));
    capabilities.extend(model.can_think().then_some("thinking"));
    let family = model.shape.family.to_string().to_lowercase();
    let key = |name: &str| format!("{family}.{name}");
    let facts = serde_json::Map::from_iter([
        ("general.architecture".to_owned(), json!(family)),
        ("general.basename".to_owned(), json!(model.id)),
        ("general.parameter_count".to_owned(), json!(model.parameters)),
        (key("context_length"), json!(model.context)),
        (key("embedding_length"), json!(model.shape.hidden)),
        (key("block_count"), json!(model.shape.layers)),
        (key("attention.head_count"), json!(model.shape.heads)),
        (key("attention.head_count_kv"), json!(model.shape.kv_heads)),
    ]);
    json!({
        "modelfile": format!("FROM {}", model.id),
        "parameters": format!(
            "temperature {}\ntop_k {}\ntop_p {}",
            sampling.temperature, sampling.top_k, sampling.top_p
        ),
        "template": template,
        "details": details(model),
        "model_info": facts,
        "capabilities": capabilities,
        "modified_at": time::at(model.created),
    })
}
