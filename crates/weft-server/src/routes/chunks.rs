//! `/v1/chunks`: texts that are computed once and composed into prompts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use weft_core::chunk::{
    Chunk, ChunkError, ChunkId, Composition, Kind, Library, Prompt, Reuse, Tier, Which,
    compose_prompt,
};
use weft_core::engine::{Engine, Preview, RemoteStats, TierStats, Verification};
use weft_core::store::StoreStats;

use super::chunk_limits::{check_notes, register_in};
use crate::api_error::ApiError;
use crate::app::{App, SLOW, off_thread};
use crate::chunk_update::{FileChange, update_chunks};
use crate::dialects::OpenAiChat;
use crate::dialects::answer::compose;
use crate::http::{Body, PathParam};
use crate::registry::Lease;
use crate::requests::{FromJson, Parsed, fields};
use crate::worker::{Job, JobError, JobEvent, JobHandle};

/// The most tokens of an answer that are verified: each needs two rows of logits.
const MAX_VERIFIED: usize = 256;
/// A query, because a prompt needs one; its rows are not computed.
const ANY_QUERY: &str = "?";

/// A text to register.
#[derive(Deserialize)]
pub(super) struct NewChunk {
    #[serde(default = "context")]
    kind: Kind,
    text: String,
    name: Option<String>,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    model: Option<String>,
}

const fn context() -> Kind {
    Kind::Context
}

impl FromJson for NewChunk {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        let mut new: Self = fields(json)?;
        if new.kind == Kind::Query {
            let message = "a query is not cached: register system, context or output chunks";
            return Err(ApiError::invalid(message).param("kind"));
        }
        new.metadata.extend(new.name.take().map(|name| ("name".to_owned(), name)));
        check_notes(&new.metadata)?;
        Ok(new)
    }
}

pub(super) async fn register(
    State(app): State<Arc<App>>,
    body: Body<NewChunk>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let lease = app.models.open(body.value.model.as_deref()).await?;
    let chunk = {
        let model = Arc::clone(lease.info());
        off_thread(body.bytes, move || {
            let NewChunk { kind, text, metadata, .. } = body.value;
            let chunk = Chunk::new(&model.tokenizer, kind, &text, metadata)?;
            model.check_length(chunk.tokens.len())?;
            Ok(chunk)
        })
        .await?
    };
    let put = move |engine: &mut Engine| {
        let (id, before) = register_in(engine, chunk)?;
        let chunk = engine.library().get(&id)?;
        Ok((describe(chunk, engine.tier_of(chunk)), FileChange::keep(chunk, before)))
    };
    Ok((StatusCode::CREATED, Json(update_chunks(&lease, put).await?)))
}

/// The chunks to list or to delete.
#[derive(Deserialize)]
pub(super) struct Filter {
    kind: Option<Kind>,
    model: Option<String>,
}

impl Filter {
    fn which(&self) -> Which {
        Which { kind: self.kind, ..Which::default() }
    }
}

type FilterQuery = Result<Query<Filter>, axum::extract::rejection::QueryRejection>;

/// The model that is asked for, and its chunks.
async fn opened(app: &Arc<App>, filter: FilterQuery) -> Result<(Lease, Which), ApiError> {
    let refused = |_| {
        let message = "kind must be system, context, query or output";
        ApiError::invalid(message).param("kind")
    };
    let Query(filter) = filter.map_err(refused)?;
    Ok((app.models.open(filter.model.as_deref()).await?, filter.which()))
}

/// The model that an address names, if it does: `?model=NAME`.
#[derive(Deserialize)]
pub(super) struct OfModel {
    model: Option<String>,
}

type ModelQuery = Result<Query<OfModel>, axum::extract::rejection::QueryRejection>;

async fn open(app: &Arc<App>, query: ModelQuery) -> Result<Lease, ApiError> {
    let name = query.ok().and_then(|Query(of)| of.model);
    app.models.open(name.as_deref()).await
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    filter: FilterQuery,
) -> Result<Response, ApiError> {
    let (lease, which) = opened(&app, filter).await?;
    let all = move |engine: &mut Engine| -> Result<_, ApiError> {
        let library = engine.library();
        let chunks = library.list(&which).into_iter().map(|chunk| library.share(&chunk.id));
        Ok((chunks.collect::<Result<Vec<_>, _>>()?, engine.chunk_tiers()))
    };
    // All lanes wait for the call, so what takes time comes after it.
    let (chunks, tiers_of) = lease.call(all).await??;
    let tiers = tiers(&lease);
    let write = move || {
        let tier_of = tiers_of.of(&chunks);
        let describe = |chunk: &Arc<Chunk>| describe(chunk, tier_of.get(&chunk.id).copied());
        let data: Vec<Value> = chunks.iter().map(describe).collect();
        Ok(Json(json!({"object": "list", "data": data, "tiers": tiers})).into_response())
    };
    off_thread(SLOW, write).await
}

/// What the tiers of a model's rows hold.
fn tiers(lease: &Lease) -> Value {
    let cache = lease.metrics().cache();
    let mut tiers = json!({
        "device": tier(&cache.device),
        "ram": tier(&cache.ram),
        "disk": tier(&cache.disk),
    });
    tiers["disk"]["coarse_tokens"] = cache.coarse.tokens.into();
    if let Some(remote) = &cache.remote {
        tiers["remote"] = remote_tier(remote);
    }
    tiers
}

pub(super) async fn clear(
    State(app): State<Arc<App>>,
    filter: FilterQuery,
) -> Result<Json<Value>, ApiError> {
    let (lease, which) = opened(&app, filter).await?;
    let clear = move |engine: &mut Engine| {
        let ids = engine.library().list(&which).iter().map(|chunk| chunk.id).collect();
        Ok((engine.clear(&which), FileChange::Remove(ids)))
    };
    let n = update_chunks(&lease, clear).await?;
    Ok(Json(json!({"object": "list", "deleted": n})))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    PathParam(id): PathParam<ChunkId>,
    of: ModelQuery,
) -> Result<Json<Value>, ApiError> {
    let lease = open(&app, of).await?;
    let find = move |engine: &mut Engine| -> Result<_, ApiError> {
        let chunk = engine.library().get(&id)?;
        let mut json = describe(chunk, engine.tier_of(chunk));
        json["text"] = chunk.text.clone().into();
        Ok(json)
    };
    Ok(Json(lease.call(find).await??))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    PathParam(id): PathParam<ChunkId>,
    of: ModelQuery,
) -> Result<Json<Value>, ApiError> {
    let lease = open(&app, of).await?;
    let delete = move |engine: &mut Engine| Ok((engine.delete(&id)?, FileChange::Remove(vec![id])));
    update_chunks(&lease, delete).await?;
    Ok(Json(json!({"id": id.to_string(), "object": "chunk", "deleted": true})))
}

/// How a chunk is pinned.
#[derive(Deserialize)]
pub(super) struct Pin {
    pinned: Option<bool>,
}

impl FromJson for Pin {
    const EMPTY_IS_FINE: bool = true;

    fn from_json(json: &Value) -> Result<Self, ApiError> {
        fields(json)
    }
}

pub(super) async fn pin(
    State(app): State<Arc<App>>,
    PathParam(id): PathParam<ChunkId>,
    of: ModelQuery,
    body: Body<Pin>,
) -> Result<Json<Value>, ApiError> {
    let lease = open(&app, of).await?;
    let pinned = body.value.pinned.unwrap_or(true);
    let pin = move |engine: &mut Engine| {
        let before = engine.library().get(&id).ok().cloned();
        engine.pin(&id, pinned)?;
        let chunk = engine.library().get(&id)?;
        Ok((describe(chunk, engine.tier_of(chunk)), FileChange::keep(chunk, before)))
    };
    Ok(Json(update_chunks(&lease, pin).await?))
}

/// The prompt that a chunk is computed ahead for.
#[derive(Deserialize)]
pub(super) struct Warm {
    system: Option<Parsed<ChunkId>>,
    reuse: Option<Parsed<Reuse>>,
}

impl FromJson for Warm {
    const EMPTY_IS_FINE: bool = true;

    fn from_json(json: &Value) -> Result<Self, ApiError> {
        fields(json)
    }
}

pub(super) async fn warm(
    State(app): State<Arc<App>>,
    PathParam(id): PathParam<ChunkId>,
    of: ModelQuery,
    body: Body<Warm>,
) -> Result<Json<Value>, ApiError> {
    let lease = open(&app, of).await?;
    let composition = compose_warm(&lease, id, body.value).await?;
    let look = move |engine: &mut Engine| {
        let preview = engine.preview(&composition);
        (composition, preview)
    };
    let (composition, before) = lease.call(look).await?;
    let mut handle = lease.submit(vec![Job::Warm(composition.clone())]).await?;
    wait_until_done(&mut handle).await?;
    let is_saved = lease.call(move |engine| engine.is_saved(&composition)).await?;
    let pieces = || before.pieces.iter().filter(|piece| piece.kind != Kind::Query);
    let tokens: usize = pieces().map(|piece| piece.tokens).sum();
    let cached: usize = pieces().map(|piece| piece.cached_tokens).sum();
    let mut warmed = json!({
        "id": id.to_string(),
        "object": "chunk",
        "tokens": tokens,
        "computed_tokens": tokens - cached,
        "saved": is_saved,
    });
    if !is_saved {
        warmed["warning"] = unsaved(lease.metrics().cache().store.as_ref()).into();
    }
    Ok(Json(warmed))
}

/// The prompt whose rows are computed. The engine only hands out the chunks: to compose it may take
/// long, and all lanes would wait.
async fn compose_warm(lease: &Lease, id: ChunkId, warm: Warm) -> Result<Composition, ApiError> {
    let ids: Vec<ChunkId> = warm.system.map(|system| system.0).into_iter().chain([id]).collect();
    let find = move |engine: &mut Engine| -> Result<Vec<Arc<Chunk>>, ApiError> {
        Ok(ids.iter().map(|id| engine.library().share(id)).collect::<Result<_, _>>()?)
    };
    let chunks = lease.call(find).await??;
    let chunks_bytes = chunks.iter().map(|chunk| chunk.text.len()).sum();
    let model = Arc::clone(lease.info());
    let compose = move || {
        let mut prompt = Prompt::new().query(ANY_QUERY).reuse(warm.reuse.unwrap_or_default().0);
        let mut library = Library::default();
        let template = model.template.as_deref().ok_or(ChunkError::NoTemplate)?;
        for chunk in chunks {
            prompt = match chunk.kind {
                Kind::System => prompt.system(&chunk.id),
                _ => prompt.context(&chunk.id),
            };
            library.restore(Arc::unwrap_or_clone(chunk));
        }
        Ok(compose_prompt(template, &model.tokenizer, &library, &prompt)?)
    };
    off_thread(chunks_bytes, compose).await
}

/// Why rows are in memory only. It names no folder.
fn unsaved(store: Option<&StoreStats>) -> &'static str {
    match store {
        None => "there is no disk tier, so the rows are lost when the server ends",
        Some(store) if store.disk_is_full => {
            "the disk is full, so the rows are lost when the server ends; free space"
        }
        Some(store) if store.off.is_some() => {
            "the folder of rows cannot be written, so they are lost when the server ends"
        }
        Some(_) => "the rows do not fit the disk budget, so they are lost when the server ends",
    }
}

/// Reports which rows of a chat are cached.
pub(super) async fn preview(
    State(app): State<Arc<App>>,
    body: Body<OpenAiChat>,
) -> Result<Json<Value>, ApiError> {
    let body = body.map(|OpenAiChat(chat)| chat);
    let lease = app.models.open(body.value.settings.model.as_deref()).await?;
    let (prompt, _) = compose(&app, &lease, body).await?;
    let preview = lease.call(move |engine| engine.preview(&prompt)).await?;
    Ok(Json(preview_json(&preview)))
}

fn preview_json(preview: &Preview) -> Value {
    let pieces = preview.pieces.iter().map(|piece| {
        json!({
            "id": piece.chunk.map(|id| id.to_string()),
            "kind": piece.kind.name(),
            "level": piece.kind.level(),
            "tokens": piece.tokens,
            "cached_tokens": piece.cached_tokens,
            "source": piece.source.map(|tier| tier.to_string()),
            "reuse": piece.reuse.name(),
        })
    });
    json!({
        "chunks": pieces.collect::<Vec<_>>(),
        "tokens": preview.tokens(),
        "cached_tokens": preview.cached_tokens(),
        "bytes": preview.bytes,
        "estimate_ms": preview.estimate.map(|time| time.as_secs_f64() * 1e3),
    })
}

/// The answer that is compared with one computed without the cache.
#[derive(Deserialize)]
pub(super) struct Verify {
    completion: String,
}

impl FromJson for Verify {
    fn from_json(json: &Value) -> Result<Self, ApiError> {
        fields(json)
    }
}

pub(super) async fn verify(
    State(app): State<Arc<App>>,
    body: Body<Verify>,
) -> Result<Json<Value>, ApiError> {
    let completion = body.value.completion;
    let found = compare(&app, &completion).await?;
    Ok(Json(json!({
        "object": "verification",
        "completion": completion,
        "exact": found.is_exact(),
        "tokens": found.tokens,
        "differing_tokens": found.differing,
        "mean_abs_logprob_difference": found.mean_difference,
        "max_abs_logprob_difference": found.max_difference,
        "kl": found.divergence,
    })))
}

/// Compares one of the latest answers with one computed without the cache.
pub(super) async fn compare(app: &Arc<App>, completion: &str) -> Result<Verification, ApiError> {
    let answered = app.recent.find(completion).ok_or_else(|| {
        ApiError::not_found("that answer is not among the latest ones; ask again, then verify")
            .param("completion")
    })?;
    let lease = app.models.open(Some(&answered.model)).await?;
    let prompt = answered.prompt;
    let mut answer = answered.tokens;
    // An answer may end where the context ends; its last token is never run and needs no room.
    answer.truncate(MAX_VERIFIED.min(lease.info().context.saturating_sub(prompt.len() + 1)));
    // Rows of logits are large, so only one verification runs at a time.
    let _alone = lease.verifying.lock().await;
    let ours = score(&lease, &prompt, &answer, true).await?;
    let cold = score(&lease, &prompt.exact(), &answer, false).await?;
    off_thread(SLOW, move || Ok(Verification::of(&answer, &ours, &cold))).await
}

async fn score(
    lease: &Lease,
    prompt: &Composition,
    answer: &[u32],
    use_cache: bool,
) -> Result<Vec<Vec<f32>>, ApiError> {
    if answer.is_empty() {
        return Ok(Vec::new());
    }
    let (prompt, tokens) = (prompt.clone(), answer.to_vec());
    let mut handle = lease.submit(vec![Job::Score { prompt, answer: tokens, use_cache }]).await?;
    let rows = wait_until_done(&mut handle).await?.ok_or(JobError::Fault)?;
    Ok(rows.into_iter().take(answer.len()).collect())
}

/// Waits for a job without text; returns the channel of its rows, if it has any.
pub(super) async fn wait_until_done(
    handle: &mut JobHandle,
) -> Result<Option<std::sync::mpsc::Receiver<Vec<f32>>>, ApiError> {
    let mut rows = None;
    loop {
        match handle.events.recv().await.ok_or(JobError::Fault)?.event {
            JobEvent::Rows(found) => rows = Some(found),
            JobEvent::Done(_) => return Ok(rows),
            JobEvent::Cancelled(_) => return Err(JobError::Ended.into()),
            JobEvent::Failed(error) => return Err(error.into()),
            JobEvent::Admitted
            | JobEvent::Progress(_)
            | JobEvent::Token { .. }
            | JobEvent::Prompt(_)
            | JobEvent::Read(_) => {}
        }
    }
}

fn describe(chunk: &Chunk, tier: Option<Tier>) -> Value {
    let seconds =
        |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    json!({
        "id": chunk.id.to_string(),
        "object": "chunk",
        "kind": chunk.kind.name(),
        "level": chunk.kind.level(),
        "name": chunk.name(),
        "tokens": chunk.tokens.len(),
        "bytes": chunk.text.len(),
        "head": head(&chunk.text),
        "metadata": chunk.metadata,
        "created": seconds(chunk.created),
        "last_used": chunk.last_used.map(seconds),
        "uses": chunk.uses,
        "pinned": chunk.pinned,
        "source": tier.map(|tier| tier.to_string()),
    })
}

/// The first words of a text.
fn head(text: &str) -> String {
    const CHARS: usize = 120;
    text.chars().take(CHARS).collect()
}

/// The store that several machines share.
fn remote_tier(stats: &RemoteStats) -> Value {
    json!({
        "hits": stats.hits,
        "misses": stats.misses,
        "stored": stats.stored,
        "present": stats.present,
        "dropped": stats.dropped,
        "queued": stats.queued.0,
        "reading": stats.read_breaker.name(),
        "writing": stats.write_breaker.name(),
    })
}

fn tier(stats: &TierStats) -> Value {
    json!({
        "used_bytes": stats.used_bytes,
        "budget_bytes": stats.budget_bytes,
        "tokens": stats.tokens,
    })
}
