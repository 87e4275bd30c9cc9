//! `POST /v1/chat/completions`: a conversation answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use weft_core::chunk::{Chunk, ChunkId, Composition};
use weft_core::engine::{Cancel, Request};
use weft_core::sampling::Constraint;

use crate::answers::{Calls, ChatScript, ChatShape, Recorder, stream, whole};
use crate::api_error::ApiError;
use crate::app::{App, SLOW, off_thread};
use crate::grammars::Rule;
use crate::http::Body;
use crate::requests::ChatRequest;
use crate::served::Served;
use crate::worker::Work;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let served = app.served()?;
    let settings = &body.value.settings;
    served.check_model(settings.model.as_deref())?;
    let sampling = body.value.sampling(&served)?;
    let (choices, streams, usage) =
        (settings.choices(), settings.streams(), settings.includes_usage());
    let uses_cache = settings.uses_cache();
    let rule = body.value.rule();
    let calls = match &rule {
        Some(Rule::Call(_)) => Calls::Only,
        _ if body.value.tools().0.is_empty() => Calls::None,
        _ => Calls::Some,
    };
    let prompt = compose(&app, &served, body).await?;
    let constraint = follow(&served, rule).await?;
    let shape = ChatShape {
        choices,
        prompt_end: &prompt_end(&served, &prompt),
        calls,
        has_logprobs: sampling.logprobs.is_some(),
        streams,
        includes_usage: usage,
    };
    let script = ChatScript::new(Arc::clone(&served), &shape);
    let recorder = Recorder::new(&app, script.id(), prompt.clone());
    let request = Request { use_cache: uses_cache, constraint, ..Request::new(prompt, sampling) };
    let ticket = app.worker.submit(answers(&request, choices)).await?;
    if streams {
        return stream(ticket, script, choices, usage, recorder).await;
    }
    Ok(Json(whole(ticket, script, choices, recorder).await?).into_response())
}

/// The work of answering a request several times.
pub(super) fn answers(request: &Request, choices: usize) -> Vec<Work> {
    let answer = |sampling| {
        let cancel = Cancel::default();
        Work::Answer(Box::new(Request { sampling, cancel, ..request.clone() }))
    };
    request.sampling.samples(choices).map(answer).collect()
}

/// What follows a rule, ready to begin.
pub(super) async fn follow(
    served: &Arc<Served>,
    rule: Option<Rule>,
) -> Result<Option<Box<dyn Constraint>>, ApiError> {
    let Some(rule) = rule else { return Ok(None) };
    let served = Arc::clone(served);
    off_thread(SLOW, move || served.constraint(&rule).map(Some)).await
}

/// The prompt that a chat comes to, with its chunks.
pub(super) async fn compose(
    app: &Arc<App>,
    served: &Arc<Served>,
    body: Body<ChatRequest>,
) -> Result<Composition, ApiError> {
    let Body { value: request, bytes } = body;
    let chunks = find_chunks(app, request.chunk_ids()).await?;
    let bytes = bytes + chunks.values().map(|chunk| chunk.text.len()).sum::<usize>();
    let served = Arc::clone(served);
    off_thread(bytes, move || request.compose(&served, &chunks)).await
}

/// The registered chunks that a request names.
pub(super) async fn find_chunks(
    app: &Arc<App>,
    ids: Vec<ChunkId>,
) -> Result<BTreeMap<ChunkId, Chunk>, ApiError> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let find = move |engine: &mut weft_core::engine::Engine| {
        let chunk = |id: ChunkId| Ok((id, engine.library().get(&id)?.clone()));
        ids.into_iter().map(chunk).collect::<Result<_, ApiError>>()
    };
    app.worker.ask(find).await?
}

/// The prompt's last words, which show whether a thought is open.
fn prompt_end(served: &Served, prompt: &Composition) -> String {
    const TOKENS: usize = 16;
    let end = prompt.pieces.last().map_or(&[][..], |piece| &piece.tokens);
    served.tokenizer.decode(&end[end.len().saturating_sub(TOKENS)..], false)
}
