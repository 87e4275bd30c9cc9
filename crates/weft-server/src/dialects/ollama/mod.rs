//! Ollama's API, the part that clients need: chats, texts and vectors, and the model that is
//! served.

mod embed;
mod request;
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
use super::answer::answer_if;
use crate::api_error::ApiError;
use crate::app::App;
use crate::http::Body;
use crate::model_info::ModelInfo;
use crate::registry::Listed;
use crate::requests::{FromJson, fields};
use crate::responses::time;

pub(crate) use self::request::{OllamaChat, OllamaGenerate};

/// The version of Ollama whose API this is. Clients look at it to see what they can ask for.
const API_VERSION: &str = "0.12.0";

/// Ollama.
pub(super) const OLLAMA: Dialect = Dialect {
    prefixes: &["/api/"],
    header: None,
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
    match error.missing_model() {
        Some(name) => json!({"error": format!("model {name:?} not found")}),
        None => json!({"error": error.message()}),
    }
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
    let OllamaRequest { needs_thinking, is_empty, unloads, .. } = body.value;
    let check = move |model: &ModelInfo| {
        if !needs_thinking || model.can_think() {
            return Ok(());
        }
        let message = format!("{:?} does not support thinking; leave out think", model.id);
        Err(ApiError::invalid(message).param("think"))
    };
    if is_empty {
        let found = app.models.find(body.value.chat.settings.model.as_deref()).await?;
        if unloads {
            app.models.unload(&found.entry).await?;
            let done = ended(&found.entry.name.id, "unload", form);
            return Ok(Json(done).into_response());
        }
        let lease = app.models.lease(&found).await?;
        check(lease.info())?;
        return Ok(lease.mark(Json(ended(lease.id(), "load", form)).into_response()));
    }
    let body = body.map(|request| request.chat);
    answer_if(&app, body, check, move |answering| OllamaWriter::new(answering, form)).await
}

/// The answer to a request without a question: the model was loaded or unloaded.
fn ended(model: &str, reason: &str, form: Form) -> Value {
    let mut answer = json!({"model": model, "created_at": time::now(), "done": true,
        "done_reason": reason});
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
    app.models.check_ready()?;
    let all = app.models.list_all().await;
    let models: Vec<Value> =
        all.iter().flat_map(|model| model.entry.names().map(|name| listed(model, name))).collect();
    Ok(Json(json!({"models": models})))
}

/// The models that are in memory.
async fn ps(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.models.check_ready()?;
    let running = app.models.list().into_iter().filter_map(|model| {
        let info = model.info.as_ref()?;
        let mut listed = listed(&model, &model.entry.name.id);
        listed["size"] = model.bytes().into();
        listed["expires_at"] =
            model.stays.map_or_else(|| time::NEVER.to_owned(), time::after).into();
        let on_gpu = model.need.is_some_and(|need| need.on_gpu);
        listed["size_vram"] = if on_gpu { model.bytes() } else { 0 }.into();
        listed["context_length"] = info.context.into();
        Some(listed)
    });
    let models: Vec<Value> = running.collect();
    Ok(Json(json!({"models": models})))
}

/// The model as lists show it. Its size is that of its parameters in 16 bits.
fn listed(model: &Listed, name: &str) -> Value {
    let parameters = model.parameters();
    let mut hasher = DefaultHasher::new();
    (name, parameters).hash(&mut hasher);
    json!({
        "name": name,
        "model": name,
        "modified_at": time::at(model.info.as_ref().map_or(0, |info| info.created)),
        "size": parameters.saturating_mul(2),
        "digest": format!("{:016x}", hasher.finish()),
        "details": details(model),
    })
}

fn details(model: &Listed) -> Value {
    let about = model.about();
    let family = match (&model.info, about) {
        (Some(info), _) => info.shape.family.to_string().to_lowercase(),
        (None, Some(about)) => about.family.to_lowercase(),
        (None, None) => String::new(),
    };
    json!({
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": parameter_size(model.parameters()),
        "quantization_level": about.and_then(|about| about.forms.first()).map_or("", |form| form),
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
    let asked = untagged(&body.value.model);
    let lease = app.models.open(Some(asked)).await?;
    let listed = app.models.show(lease.entry()).await;
    Ok(lease.mark(Json(described(lease.info(), &listed)).into_response()))
}

fn described(model: &ModelInfo, listed: &Listed) -> Value {
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
        "details": details(listed),
        "model_info": facts,
        "capabilities": capabilities,
        "modified_at": time::at(model.created),
    })
}
