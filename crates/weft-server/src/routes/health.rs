//! The health check and the metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::app::App;

/// 200 if requests are answered; 503 while the model loads, after a fault, and during a shutdown.
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.worker.model()?;
    Ok(Json(json!({"status": "ok"})))
}

/// The metrics, for Prometheus.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.text())
}
