//! `POST /v1/chat/completions`: a conversation answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use weft_core::chunk::{Chunk, ChunkId, Composition};
use weft_core::engine::{Cancel, Request, RowGroup};
use weft_core::sampling::Constraint;

use super::models::Substitute;
use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::grammars::{self, Rule};
use crate::http::Body;
use crate::model_info::ModelInfo;
use crate::requests::ChatRequest;
use crate::responses::{ChatOptions, ChatWriter, Recorder, ToolMode, complete, stream};
use crate::worker::Job;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let model = app.worker.model()?;
    let settings = &body.value.settings;
    let substitute = Substitute::check(&app, &model, settings.model.as_deref()).await?;
    let sampling = body.value.sampling(&model)?;
    let (choices, streams) = (settings.choices(), settings.streams());
    let (use_cache, includes_usage) = (settings.uses_cache(), settings.includes_usage());
    let sends_progress = settings.sends_progress();
    let (speculate, sends_accepted) = (settings.speculate(), settings.sends_accepted());
    let (rule, rule_param) = (body.value.rule(), body.value.rule_param());
    let tools = match &rule {
        Some(Rule::Call(_)) => ToolMode::Required(body.value.only_tool()),
        _ if body.value.tools().0.is_empty() => ToolMode::None,
        _ => ToolMode::Auto,
    };
    let (prompt, prediction) = compose(&app, &model, body).await?;
    let constraint = compile_rule(&model, rule, rule_param).await?;
    let options = ChatOptions {
        choices,
        prompt_end: &prompt.end_text(&model.tokenizer),
        tools,
        has_logprobs: sampling.logprobs.is_some(),
        streams,
        includes_usage,
        sends_accepted,
    };
    let writer = ChatWriter::new(Arc::clone(&model), &options);
    let recorder = Recorder::new(&app, writer.id(), prompt.clone());
    let request =
        Request { use_cache, constraint, speculate, prediction, ..Request::new(prompt, sampling) };
    let handle = app.worker.submit(answer_jobs(request, choices, sends_progress)).await?;
    Ok(substitute.mark(match streams {
        true => stream(handle, writer, recorder).await?,
        false => Json(complete(handle, writer, recorder).await?).into_response(),
    }))
}

/// One job per choice: the same request with different seeds. Without the cache, the choices still
/// share the rows of their prompt.
pub(super) fn answer_jobs(request: Request, choices: usize, sends_progress: bool) -> Vec<Job> {
    let request = Request { group: (choices > 1).then(RowGroup::default), ..request };
    let answer = |sampling| {
        let cancel = Cancel::default();
        let request = Box::new(Request { sampling, cancel, ..request.clone() });
        Job::Answer { request, sends_progress }
    };
    request.sampling.samples(choices).map(answer).collect()
}

/// Compiles a rule for the answer, if there is one. `param` is the field that it comes from.
pub(super) async fn compile_rule(
    model: &Arc<ModelInfo>,
    rule: Option<Rule>,
    param: &'static str,
) -> Result<Option<Box<dyn Constraint>>, ApiError> {
    match rule {
        Some(rule) => grammars::compile(Arc::clone(model), rule, param).await.map(Some),
        None => Ok(None),
    }
}

/// The prompt of a chat, with its chunks, and the client's draft of the answer.
pub(super) async fn compose(
    app: &Arc<App>,
    model: &Arc<ModelInfo>,
    body: Body<ChatRequest>,
) -> Result<(Composition, Option<Vec<u32>>), ApiError> {
    let Body { value: request, bytes, share: _share } = body;
    let chunks = find_chunks(app, request.chunk_ids()).await?;
    let bytes = bytes + chunks.values().map(|chunk| chunk.text.len()).sum::<usize>();
    let model = Arc::clone(model);
    let compose =
        move || Ok((request.compose(&model, &chunks)?, request.settings.prediction(&model)?));
    off_thread(bytes, compose).await
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
    app.worker.call(find).await?
}
