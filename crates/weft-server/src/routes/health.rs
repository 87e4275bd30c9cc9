//! The health check and the metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::app::App;
use crate::http::LoadStage;

/// 200 if requests are answered; 503 while the model loads, after a fault, and during a shutdown.
pub(super) async fn health(State(app): State<Arc<App>>) -> Response {
    let error = match app.worker.model() {
        Ok(_) => return Json(json!({"status": "ok"})).into_response(),
        Err(error) => error,
    };
    let mut body = error.json();
    body["status"] = match app.worker.phase_name() {
        "loading" => {
            let (stage, done) = app.progress.get();
            body["progress"] = done.into();
            if stage == LoadStage::Downloading { "downloading" } else { "loading" }
        }
        name => name,
    }
    .into();
    error.with_body(body)
}

/// The metrics, for Prometheus.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.text())
}
