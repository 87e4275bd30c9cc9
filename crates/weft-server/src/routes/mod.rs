//! One file per family of routes; each handler combines a few steps of the other modules.

mod chunk_limits;
mod chunks;
mod embeddings;
mod health;
mod models;
mod openapi;
mod page;
mod props;
mod readings;
mod rerank;
#[cfg(unix)]
mod resident;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};

use crate::api_error::ApiError;
use crate::app::App;
use crate::dialects;
use crate::http::guard;

pub(crate) use self::embeddings::embed;
#[cfg(unix)]
pub(crate) use self::resident::router as resident_router;

pub(crate) type Routes = Vec<(&'static str, MethodRouter<Arc<App>>)>;

/// All routes of the API. The document that describes them is tested against this list.
fn api() -> Routes {
    let mut routes = vec![
        ("/health", get(health::health)),
        ("/metrics", get(health::metrics)),
        ("/openapi.json", get(openapi::document)),
        ("/v1/models", get(models::list)),
        ("/v1/models/{*id}", get(models::show)),
        ("/models/load", post(models::load)),
        ("/models/unload", post(models::unload)),
        ("/v1/embeddings", post(embeddings::create)),
        ("/v1/rerank", post(rerank::create)),
        ("/v2/rerank", post(rerank::create)),
        ("/props", get(props::props)),
        ("/slots", get(props::slots)),
        ("/tokenize", post(tokens::tokenize)),
        ("/detokenize", post(tokens::detokenize)),
        ("/apply-template", post(tokens::apply_template)),
        ("/v1/chunks", get(chunks::list).post(chunks::register).delete(chunks::clear)),
        ("/v1/chunks/preview", post(chunks::preview)),
        ("/v1/chunks/verify", post(chunks::verify)),
        ("/v1/chunks/{id}", get(chunks::show).delete(chunks::delete)),
        ("/v1/chunks/{id}/warm", post(chunks::warm)),
        ("/v1/chunks/{id}/pin", post(chunks::pin)),
    ];
    routes.extend(dialects::routes());
    routes
}

/// Routes that also work without `/v1`: many clients are given an address without it.
const WITHOUT_VERSION: [&str; 8] = [
    "/v1/models",
    "/v1/models/{*id}",
    "/v1/chat/completions",
    "/v1/chat/completions/input_tokens",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
];

/// The whole server.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for file in &page::FILES {
        router = router.route(file.path, get(async move || file));
    }
    for (path, methods) in api() {
        if WITHOUT_VERSION.contains(&path) {
            router = router.route(&path["/v1".len()..], methods.clone());
        }
        router = router.route(path, methods);
    }
    router
        .fallback(async || ApiError::not_found("there is no such route; /openapi.json lists them"))
        .method_not_allowed_fallback(async || {
            let message = "this route does not support that method; /openapi.json lists them";
            ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, message)
        })
        .layer(from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}

/// Whether a path needs no key: the health check, and the page that asks for the key.
pub(crate) fn is_open(path: &str) -> bool {
    path == "/health" || page::FILES.iter().any(|file| file.path == path)
}
