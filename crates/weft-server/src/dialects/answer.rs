//! From a chat of any dialect to its answer: what all of them share between their reader and their
//! writer.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use weft_core::chunk::{Chunk, ChunkId, Composition, Reuse};
use weft_core::engine::{Cancel, Request, RowGroup};
use weft_core::reasoning::ReasoningStream;
use weft_core::sampling::{Constraint, Sampling};

use crate::api_error::ApiError;
use crate::app::{App, off_thread};
use crate::grammars::{self, Both, Rule, StrictTools};
use crate::http::{Body, MAX_BODY_BYTES};
use crate::model_info::ModelInfo;
use crate::registry::Lease;
use crate::requests::{ChatRequest, ChunksById};
use crate::responses::{
    Choice, Recorder, ResponseWriter, ToolForm, ToolMode, complete, stream, when_loaded,
};
use crate::worker::Job;

/// The most bytes of the texts of chunks in a request, over all references to them: as many as a
/// body may have.
const MAX_CHUNK_BYTES: usize = MAX_BODY_BYTES;

/// What a writer needs to know about the answer that it writes.
pub(crate) struct Answering {
    pub(crate) model: Arc<ModelInfo>,
    pub(crate) sampling: Sampling,
    pub(crate) choices: usize,
    pub(crate) streams: bool,
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: usize,
    /// The same as ids, if the client wants them.
    pub(crate) prompt_ids: Option<Vec<u32>>,
    prompt_end: String,
    tools: ToolMode,
    calls_once: bool,
}

impl Answering {
    /// Splits the text of a choice into thinking, answer and calls.
    pub(crate) fn choice(&self) -> Choice {
        Choice::new(&self.prompt_end, &self.tools).ending_with_a_call(self.calls_once)
    }

    /// One answer to a prompt of three tokens.
    #[cfg(test)]
    pub(super) fn of_test(model: Arc<ModelInfo>, tools: ToolMode, streams: bool) -> Self {
        let (prompt_end, sampling) = (String::new(), Sampling::default());
        let (choices, prompt_tokens, calls_once) = (1, 3, false);
        let prompt_ids = None;
        Self {
            model,
            sampling,
            choices,
            streams,
            prompt_tokens,
            prompt_ids,
            prompt_end,
            tools,
            calls_once,
        }
    }
}

/// Answers a chat, whole or streamed, with the writer that is made for it, when its model is
/// loaded.
pub(crate) async fn answer<W: ResponseWriter>(
    app: &Arc<App>,
    body: Body<ChatRequest>,
    writer: impl FnOnce(Answering) -> W + Send + 'static,
) -> Result<Response, ApiError> {
    answer_if(app, body, |_| Ok(()), writer).await
}

/// The same, if the model passes a check.
pub(crate) async fn answer_if<W: ResponseWriter>(
    app: &Arc<App>,
    body: Body<ChatRequest>,
    check: impl FnOnce(&ModelInfo) -> Result<(), ApiError> + Send + 'static,
    writer: impl FnOnce(Answering) -> W + Send + 'static,
) -> Result<Response, ApiError> {
    let settings = &body.value.settings;
    let found = app.models.find(settings.model.as_deref()).await?;
    let streams = settings.streams();
    let later = Arc::clone(app);
    let answer = async move |lease: Lease| {
        check(lease.info())?;
        answer_by(&later, lease, body, writer).await
    };
    when_loaded::<W, _>(app, found, streams, answer).await
}

/// Answers a chat by a model.
async fn answer_by<W: ResponseWriter>(
    app: &Arc<App>,
    lease: Lease,
    body: Body<ChatRequest>,
    writer: impl FnOnce(Answering) -> W,
) -> Result<Response, ApiError> {
    let model = Arc::clone(lease.info());
    let chat = &body.value;
    let settings = &chat.settings;
    let sampling = chat.sampling(&model)?;
    let (choices, streams) = (settings.choices(), settings.streams());
    let (use_cache, speculate) = (settings.uses_cache(), settings.speculate());
    let (sends_progress, returns_ids) = (settings.sends_progress(), settings.returns_ids());
    let style = model.call_style;
    let (rule, rule_param) = (chat.rule(style), chat.rule_param());
    let strict = chat.strict_tools(style);
    let (calls_once, thinking_tokens) = (chat.calls_once, chat.thinking_tokens);
    let form = || Arc::new(ToolForm::new(style, &chat.tools().0));
    let tools = match &rule {
        Some(Rule::Call(..)) => ToolMode::Required(form(), chat.only_tool()),
        _ if chat.tools().0.is_empty() => ToolMode::None,
        _ => ToolMode::Auto(form()),
    };
    let (prompt, prediction) = compose(app, &lease, body).await?;
    let prompt_end = prompt.end_text(&model.tokenizer);
    let constraint = match (rule, strict) {
        (rule @ Some(_), _) => compile_rule(&model, rule, rule_param).await?,
        (None, strict) => {
            let in_thought = ReasoningStream::after(&prompt_end).is_open();
            let strict = strict.map(|tools| Rule::Strict(StrictTools { in_thought, ..tools }));
            let strict = compile_rule(&model, strict, "tools").await?;
            let limit = thinking_tokens.and_then(|n| model.thinking_limit(n, &prompt_end));
            match (limit, strict) {
                (Some(limit), Some(strict)) => Some(Box::new(Both(limit, strict)) as _),
                (limit, strict) => limit.or(strict),
            }
        }
    };
    let prompt_tokens = prompt.len();
    let writer = writer(Answering {
        model,
        sampling: sampling.clone(),
        choices,
        streams,
        prompt_tokens,
        prompt_ids: returns_ids.then(|| prompt.tokens()),
        prompt_end,
        tools,
        calls_once,
    });
    let recorder = Recorder::new(app, &lease, writer.id(), prompt.clone());
    let request =
        Request { use_cache, constraint, speculate, prediction, ..Request::new(prompt, sampling) };
    let handle = lease.submit(answer_jobs(request, choices, sends_progress)).await?;
    Ok(lease.mark(match streams {
        true => stream(handle, writer, recorder).await?,
        false => Json(complete(handle, writer, recorder).await?).into_response(),
    }))
}

/// The number of tokens of a chat's prompt, which may be longer than the context.
pub(crate) async fn count_tokens(
    app: &Arc<App>,
    body: Body<ChatRequest>,
) -> Result<usize, ApiError> {
    let lease = app.models.open(body.value.settings.model.as_deref()).await?;
    let Body { value: request, bytes, share: _share } = body;
    let named = find_chunks(&lease, &request).await?;
    let bytes = bytes + named.bytes;
    let count = move || Ok(request.prompt(lease.info(), &named.chunks, Reuse::Exact)?.len());
    off_thread(bytes, count).await
}

/// One job per choice: the same request with different seeds. Without the cache, the choices still
/// share the rows of their prompt.
pub(crate) fn answer_jobs(request: Request, choices: usize, sends_progress: bool) -> Vec<Job> {
    let request = Request { group: (choices > 1).then(RowGroup::default), ..request };
    let answer = |sampling| {
        let cancel = Cancel::default();
        let request = Box::new(Request { sampling, cancel, ..request.clone() });
        Job::Answer { request, sends_progress }
    };
    request.sampling.samples(choices).map(answer).collect()
}

/// Compiles a rule for the answer, if there is one. `param` is the field that it comes from.
pub(crate) async fn compile_rule(
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
pub(crate) async fn compose(
    app: &App,
    lease: &Lease,
    body: Body<ChatRequest>,
) -> Result<(Composition, Option<Vec<u32>>), ApiError> {
    let Body { value: request, bytes, share: _share } = body;
    let model = Arc::clone(lease.info());
    let named = find_chunks(lease, &request).await?;
    // The prompt is at least as long, and to compose it could take long.
    model.check_length(named.tokens)?;
    let bytes = bytes + named.bytes;
    let reuse = app.options.reuse;
    let compose = move || {
        let prompt = request.compose(&model, &named.chunks, reuse)?;
        request.settings.check_entries(prompt.len(), None)?;
        Ok((prompt, request.settings.prediction(&model)?))
    };
    off_thread(bytes, compose).await
}

/// The registered chunks that a request names, and what all its references to them add up to: a
/// chunk is part of the prompt as often as it is named.
#[derive(Default)]
pub(crate) struct NamedChunks {
    pub(crate) chunks: ChunksById,
    pub(crate) tokens: usize,
    pub(crate) bytes: usize,
}

/// Looks up the registered chunks that a request names, each once.
pub(crate) async fn find_chunks(
    lease: &Lease,
    request: &ChatRequest,
) -> Result<NamedChunks, ApiError> {
    let mut references: BTreeMap<ChunkId, usize> = BTreeMap::new();
    request.chunk_ids().for_each(|id| *references.entry(id).or_default() += 1);
    if references.is_empty() {
        return Ok(NamedChunks::default());
    }
    let ids: Vec<ChunkId> = references.keys().copied().collect();
    let find = move |engine: &mut weft_core::engine::Engine| {
        let chunk = |id: ChunkId| Ok((id, engine.library().share(&id)?));
        ids.into_iter().map(chunk).collect::<Result<ChunksById, ApiError>>()
    };
    let chunks = lease.call(find).await??;
    let sum = |size: fn(&Chunk) -> usize| {
        references.iter().map(|(id, n)| size(&chunks[id]).saturating_mul(*n)).sum()
    };
    let (tokens, bytes) = (sum(|chunk| chunk.tokens.len()), sum(|chunk| chunk.text.len()));
    check_bytes(bytes)?;
    Ok(NamedChunks { chunks, tokens, bytes })
}

/// Refuses messages whose chunks have more text than a body may have.
fn check_bytes(bytes: usize) -> Result<(), ApiError> {
    if bytes <= MAX_CHUNK_BYTES {
        return Ok(());
    }
    let message = format!(
        "the chunks that the messages name have {bytes} bytes of text in all, and the limit is \
         {MAX_CHUNK_BYTES}; name fewer, or each less often"
    );
    Err(ApiError::invalid(message).param("messages"))
}
