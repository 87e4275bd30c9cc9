//! The health check and the metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::app::App;
use crate::metrics::labelled;
use crate::registry::Status;

/// 200 if requests are answered; 503 during a shutdown. If one model is served alone, also 503
/// while it loads and after a fault.
pub(super) async fn health(State(app): State<Arc<App>>) -> Response {
    let status = app.models.list()[0].status;
    let error = match app.models.check_status(status) {
        Ok(()) => return Json(json!({"status": "ok"})).into_response(),
        Err(error) => error,
    };
    let mut body = error.json();
    body["status"] = match status {
        _ if app.models.is_closing() => "draining",
        Status::Loading(_, done) => {
            body["progress"] = done.into();
            status.name()
        }
        status => status.name(),
    }
    .into();
    error.with_body(body)
}

/// The metrics, for Prometheus.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let models = app.models.list();
    let mut text = app.requests.text();
    text += &match &models[..] {
        [only] => only.entry.metrics.text(),
        models => {
            labelled(models.iter().map(|model| (&model.entry.name.id[..], &*model.entry.metrics)))
        }
    };
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
