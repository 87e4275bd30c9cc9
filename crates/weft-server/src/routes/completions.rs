//! `POST /v1/completions`: texts continued.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use weft_core::engine::Request;

use super::chat::{answers, follow};
use crate::answers::{CompletionScript, CompletionShape, Recorder, stream, whole};
use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::http::Body;
use crate::requests::CompletionRequest;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    let served = app.served()?;
    let Body { value: request, bytes } = body;
    served.check_model(request.settings.model.as_deref())?;
    let sampling = request.sampling(&served)?;
    let compose = {
        let served = Arc::clone(&served);
        move || Ok((request.compose(&served)?, request))
    };
    let (prompts, request) = off_thread(bytes, compose).await?;
    let constraint = follow(&served, request.rule()).await?;
    let settings = &request.settings;
    let per_prompt = settings.choices();
    let shape = CompletionShape {
        choices: prompts.len() * per_prompt,
        choices_per_prompt: per_prompt,
        has_logprobs: sampling.logprobs.is_some(),
        echoes: request.echoes(),
        streams: settings.streams(),
        includes_usage: settings.includes_usage(),
    };
    let script = CompletionScript::new(served, shape);
    let recorder = Recorder::new(&app, script.id(), prompts[0].clone());
    let works = prompts
        .iter()
        .flat_map(|prompt| {
            let request = Request {
                use_cache: settings.uses_cache(),
                constraint: constraint.clone(),
                ..Request::new(prompt.clone(), sampling.clone())
            };
            answers(&request, per_prompt)
        })
        .collect();
    let ticket = app.worker.submit(works).await?;
    if settings.streams() {
        let usage = settings.includes_usage();
        return stream(ticket, script, shape.choices, usage, recorder).await;
    }
    Ok(Json(whole(ticket, script, shape.choices, recorder).await?).into_response())
}
