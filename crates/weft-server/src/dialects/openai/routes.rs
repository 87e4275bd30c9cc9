//! `POST /v1/chat/completions`: a conversation answered. `POST /v1/completions`: texts continued.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use weft_core::chunk::Composition;
use weft_core::engine::Request;

use super::chat_request::OpenAiChat;
use super::chat_writer::{ChatOptions, ChatWriter};
use super::completion_request::CompletionRequest;
use super::completion_writer::{CompletionOptions, CompletionWriter};
use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::dialects::answer::{answer, answer_jobs, compile_rule};
use crate::http::Body;
use crate::registry::Lease;
use crate::responses::{Recorder, ResponseWriter, complete, stream, when_loaded};

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    body: Body<OpenAiChat>,
) -> Result<Response, ApiError> {
    let body = body.map(|OpenAiChat(chat)| chat);
    let settings = &body.value.settings;
    let options = ChatOptions {
        includes_usage: settings.includes_usage(),
        sends_accepted: settings.sends_accepted(),
    };
    answer(&app, body, move |answering| ChatWriter::new(answering, options)).await
}

pub(super) async fn complete_texts(
    State(app): State<Arc<App>>,
    body: Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    let settings = &body.value.settings;
    let found = app.models.find(settings.model.as_deref()).await?;
    let streams = settings.streams();
    let later = Arc::clone(&app);
    let answer = async move |lease| complete_by(&later, lease, body).await;
    when_loaded::<CompletionWriter, _>(&app, found, streams, answer).await
}

/// Continues texts by a model.
async fn complete_by(
    app: &Arc<App>,
    lease: Lease,
    body: Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    let model = Arc::clone(lease.info());
    let Body { value: request, bytes, share } = body;
    let sampling = request.sampling(&model)?;
    let compose = {
        let model = Arc::clone(&model);
        move || {
            let prediction = request.settings.prediction(&model)?;
            Ok((request.compose(&model)?, prediction, request))
        }
    };
    let (prompts, prediction, request) = off_thread(bytes, compose).await?;
    drop(share);
    let constraint = compile_rule(&model, request.rule(), request.rule_param()).await?;
    let settings = &request.settings;
    let per_prompt = settings.choices();
    let n_tokens = prompts.iter().map(Composition::len).sum();
    settings.check_entries(n_tokens, sampling.logprobs.filter(|_| request.echoes()))?;
    let options = CompletionOptions {
        choices: prompts.len() * per_prompt,
        choices_per_prompt: per_prompt,
        has_logprobs: sampling.logprobs.is_some(),
        has_prompt_logprobs: sampling.prompt_logprobs.is_some(),
        echoes: request.echoes(),
        streams: settings.streams(),
        includes_usage: settings.includes_usage(),
        sends_accepted: settings.sends_accepted(),
    };
    let prompt_ids =
        settings.returns_ids().then(|| prompts.iter().map(Composition::tokens).collect());
    let writer = CompletionWriter::new(model, options, prompt_ids);
    let recorder = Recorder::new(app, &lease, writer.id(), prompts[0].clone());
    let jobs = prompts
        .iter()
        .flat_map(|prompt| {
            let request = Request {
                use_cache: settings.uses_cache(),
                constraint: constraint.clone(),
                speculate: settings.speculate(),
                prediction: prediction.clone(),
                ..Request::new(prompt.clone(), sampling.clone())
            };
            answer_jobs(request, per_prompt, settings.sends_progress())
        })
        .collect();
    let handle = lease.submit(jobs).await?;
    Ok(lease.mark(match settings.streams() {
        true => stream(handle, writer, recorder).await?,
        false => Json(complete(handle, writer, recorder).await?).into_response(),
    }))
}
