//! The routes of the resident socket: what other commands of the same user ask of this server.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream::unfold;
use serde::{Deserialize, Serialize};
use weft_core::chunk::{AskError, Chunk, ChunkError, Composed, Library, Source, Which};
use weft_core::device::MAX_LANES;
use weft_core::engine::{
    Engine, FinishReason, Finished, Request, RequestError, Stats, Verification,
};

use super::chunks::{compare, wait_until_done};
use crate::api_error::ApiError;
use crate::app::App;
use crate::registry::{Lease, Listed, Status};
use crate::resident::protocol::{
    self, Event, Facts, Fault, Find, Found, Question, Refusal, Warm, Warmed,
};
use crate::responses::{Recorder, response_id};
use crate::worker::{Job, JobError, JobEvent, JobHandle};

/// The largest body: documents of several files.
const MAX_BYTES: usize = 256 << 20;
/// How long a stream may be silent.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

type Answered<T> = Result<Json<T>, Refused>;

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route(protocol::FACTS, get(facts))
        .route(protocol::ANSWER, post(answer))
        .route(protocol::CANCEL, post(cancel))
        .route(protocol::FIND, post(find))
        .route(protocol::WARM, post(warm))
        .route(protocol::VERIFY, post(verify))
        .route(protocol::REFRESH, post(refresh))
        .route(protocol::STOP, post(async |State(app): State<Arc<App>>| app.resident.stop()))
        .layer(DefaultBodyLimit::max(MAX_BYTES))
        .with_state(app)
}

/// A refusal as a response.
struct Refused(Refusal);

impl Refused {
    fn new(fault: Fault, message: &(impl Display + ?Sized)) -> Self {
        Self(Refusal { fault, message: message.to_string() })
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (StatusCode::CONFLICT, Json(self.0)).into_response()
    }
}

/// Not ready, or too busy.
impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        let json = error.json();
        Self::new(Fault::Busy, json["error"]["message"].as_str().unwrap_or_default())
    }
}

impl From<ChunkError> for Refused {
    fn from(error: ChunkError) -> Self {
        Self::new(Fault::Request, &error)
    }
}

impl From<AskError> for Refused {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Document { .. } | AskError::NoSource { .. } => {
                Self::new(Fault::Usage, &error)
            }
            error => Self::new(Fault::Request, &error),
        }
    }
}

impl From<JobError> for Refused {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Fault => Self::new(Fault::Engine, &error),
            // Nothing here is `Busy`: part of the answer may have been printed.
            error => Self::new(Fault::Request, &error),
        }
    }
}

/// The model that a command asks.
#[derive(Deserialize)]
struct OfModel {
    model: Option<String>,
}

async fn open(app: &Arc<App>, Query(of): Query<OfModel>) -> Result<Lease, Refused> {
    Ok(app.models.open(of.model.as_deref()).await?)
}

async fn facts(State(app): State<Arc<App>>) -> Json<Vec<Facts>> {
    Json(app.models.list().iter().map(|listed| facts_of(&app, listed)).collect())
}

fn facts_of(app: &App, listed: &Listed) -> Facts {
    let Listed { entry, info, status, .. } = listed;
    let (model, metrics) = (info.as_ref(), &entry.metrics);
    let cache = metrics.cache();
    Facts {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: entry.name.id.clone(),
        is_ready: model.is_some() && !app.models.is_closing(),
        state: status.name().to_owned(),
        progress: match status {
            Status::Loading(_, done) => Some(*done),
            _ => None,
        },
        bytes: listed.bytes(),
        stays_s: listed.stays.map(|time| time.as_secs()),
        device: model.map(|model| model.device.clone()).unwrap_or_default(),
        context: model.map_or(0, |model| model.context),
        lanes: MAX_LANES,
        running: metrics.running(),
        address: app.resident.address.to_string(),
        resident_bytes: resident_bytes(),
        kv_bytes: (cache.device.used_bytes, cache.device.budget_bytes),
        started: app.resident.started,
        has_template: model.is_some_and(|model| model.template.is_some()),
        shelf: model.and_then(|m| Some(m.shelf.as_ref()?.folder().to_owned())),
        identity: model.map(|model| model.identity.clone()).unwrap_or_default(),
    }
}

/// The bytes of this process in main memory.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes = status.split_once("VmRSS:")?.1.split_whitespace().next()?;
    Some(kilobytes.parse::<u64>().ok()? * 1024)
}

async fn answer(
    State(app): State<Arc<App>>,
    which: Query<OfModel>,
    Json(question): Json<Question>,
) -> Result<Response, Refused> {
    let lease = open(&app, which).await?;
    let model = Arc::clone(lease.info());
    let library = named(&lease, question.asked.chunk_words()).await?;
    let Question { asked, thinking, sampling, use_cache, speculate } = question;
    let is_text = matches!(asked, weft_core::chunk::Asked::Text(_));
    let sampling = sampling.over(model.sampling(if is_text { Some(false) } else { thinking }));
    let Composed { prompt, end, names, .. } = blocking(move || {
        Ok(asked.compose(model.template.as_deref(), &model.tokenizer, &library, thinking)?)
    })
    .await?;
    let id = response_id("resident");
    let recorder = Recorder::new(&app, &lease, &id, prompt.clone());
    let prompt_tokens = prompt.len();
    let request = Request { use_cache, speculate, ..Request::new(prompt, sampling) };
    app.resident.add(&id, request.cancel.clone());
    let running = Running { app: Arc::clone(&app), id: id.clone() };
    let job = Job::Answer { request: Box::new(request), sends_progress: true };
    let handle = lease.submit(vec![job]).await?;
    let first = Event::Started { id, prompt_tokens, end };
    let stream =
        AnswerStream { first: Some(first), handle, recorder: Some(recorder), names, running };
    let body = unfold(Some(stream), async |stream| {
        let mut stream = stream?;
        let (line, is_last) = stream.next().await;
        Some((Ok::<_, Infallible>(line), (!is_last).then_some(stream)))
    });
    Ok(Body::from_stream(body).into_response())
}

/// Forgets an answer's handle when its stream ends.
struct Running {
    app: Arc<App>,
    id: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.app.resident.remove(&self.id);
    }
}

/// An answer that is being sent. Dropping it cancels the answer.
struct AnswerStream {
    first: Option<Event>,
    handle: JobHandle,
    recorder: Option<Recorder>,
    names: std::collections::BTreeMap<weft_core::chunk::ChunkId, String>,
    running: Running,
}

impl AnswerStream {
    /// The next line, and whether it is the last.
    async fn next(&mut self) -> (Vec<u8>, bool) {
        if let Some(first) = self.first.take() {
            return (line(&first), false);
        }
        loop {
            let received = tokio::time::timeout(KEEP_ALIVE, self.handle.events.recv()).await;
            let Ok(event) = received else { return (b"\n".to_vec(), false) };
            let event = event.map(|event| event.event);
            return match event.unwrap_or_else(|| self.gone()) {
                JobEvent::Token { token, .. } => {
                    self.recorder.iter_mut().for_each(|recorder| recorder.record(0, token.id));
                    (line(&Event::Text(token.text)), false)
                }
                JobEvent::Done(finished) | JobEvent::Cancelled(finished) => {
                    self.recorder.take().into_iter().for_each(Recorder::keep);
                    let names = std::mem::take(&mut self.names);
                    (line(&Event::Done { finished, names }), true)
                }
                JobEvent::Failed(error) => (line(&Event::Failed(Refused::from(error).0)), true),
                JobEvent::Progress(progress) => (line(&Event::Prefill(progress.processed)), false),
                JobEvent::Admitted
                | JobEvent::Prompt(_)
                | JobEvent::Rows(_)
                | JobEvent::Read(_) => continue,
            };
        }
    }

    /// The end of a job that left the queue: its user cancelled it, or the engine failed.
    fn gone(&self) -> JobEvent {
        if self.running.app.resident.remove(&self.running.id).is_some() {
            return JobEvent::Failed(JobError::Fault);
        }
        let (reason, stats) = (FinishReason::Cancelled, Stats::default());
        let report = Default::default();
        JobEvent::Cancelled(Box::new(Finished { reason, stats, report, stop: None }))
    }
}

fn line(event: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line
}

async fn cancel(State(app): State<Arc<App>>, Json(id): Json<String>) {
    if let Some(cancel) = app.resident.remove(&id) {
        cancel.cancel();
    }
}

async fn verify(State(app): State<Arc<App>>, Json(id): Json<String>) -> Answered<Verification> {
    Ok(Json(compare(&app, &id).await?))
}

async fn find(
    State(app): State<Arc<App>>,
    which: Query<OfModel>,
    Json(find): Json<Find>,
) -> Answered<Found> {
    let lease = open(&app, which).await?;
    let model = Arc::clone(lease.info());
    let words = match &find {
        Find::System(source) | Find::Document(source) => source.word().into_iter().collect(),
        Find::Registered(word) => vec![&word[..]],
        Find::Text(..) => Vec::new(),
    };
    let library = named(&lease, words).await?;
    let found = blocking(move || {
        let tokenizer = &model.tokenizer;
        let chunk = match find {
            Find::System(source) => source.system(tokenizer, &library)?,
            Find::Document(source) => source.document(tokenizer, &library)?,
            Find::Registered(word) => library.find(&word)?.clone(),
            Find::Text(kind, text) => Chunk::new(tokenizer, kind, &text, Default::default())?,
        };
        let name = chunk.name().map(str::to_owned);
        let Chunk { id, kind, tokens, text, .. } = chunk;
        Ok(Found { id, kind, tokens, name, text })
    });
    Ok(Json(found.await?))
}

async fn warm(
    State(app): State<Arc<App>>,
    which: Query<OfModel>,
    Json(warm): Json<Warm>,
) -> Answered<Warmed> {
    let lease = open(&app, which).await?;
    let model = lease.info();
    let words = warm.system.iter().filter_map(Source::word);
    let words = words.chain(warm.words.iter().map(String::as_str)).collect();
    let library = named(&lease, words).await?;
    let read = Arc::clone(model);
    let composition =
        blocking(move || Ok(warm.compose(read.template.as_deref(), &read.tokenizer, &library)?))
            .await?;
    let look = move |engine: &mut Engine| {
        let preview = engine.preview(&composition);
        (composition, preview)
    };
    let (composition, before) = lease.call(look).await?;
    let (tokens, context) = (composition.len(), model.context);
    if tokens >= context {
        let positions = model.shape.max_positions;
        let refused = RequestError::TooLong { tokens, context, positions };
        return Err(Refused::new(Fault::Request, &refused));
    }
    let mut handle = lease.submit(vec![Job::Warm(composition)]).await?;
    wait_until_done(&mut handle).await?;
    let files = lease.call(|engine| engine.n_saved(false)).await?;
    Ok(Json(Warmed::new(&before, files)))
}

async fn refresh(State(app): State<Arc<App>>, which: Query<OfModel>) -> Answered<()> {
    read_shelf(&open(&app, which).await?).await?;
    Ok(Json(()))
}

/// The registered chunks that some words name. If a word names none, another program may have
/// registered it, so the files are read once more.
async fn named(lease: &Lease, words: Vec<&str>) -> Result<Library, Refused> {
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let mut library = Library::default();
    for is_second in [false, true] {
        let looked_for = words.clone();
        let look = move |engine: &mut Engine| -> Vec<Result<Chunk, ChunkError>> {
            looked_for.iter().map(|word| engine.library().find(word).cloned()).collect()
        };
        let found = if words.is_empty() { Vec::new() } else { lease.call(look).await? };
        let mut is_complete = true;
        for chunk in found {
            match chunk {
                Ok(chunk) => library.restore(chunk),
                Err(ChunkError::NotFound { .. } | ChunkError::Unknown { .. }) => {
                    is_complete = false;
                }
                Err(error) => return Err(error.into()),
            }
        }
        if is_complete || is_second {
            break;
        }
        read_shelf(lease).await?;
    }
    Ok(library)
}

/// Makes the engine's chunks those of the files.
async fn read_shelf(lease: &Lease) -> Result<(), Refused> {
    let Some(shelf) = lease.info().shelf.clone() else { return Ok(()) };
    let _in_order = lease.chunk_lock.lock().await;
    let shelved = blocking(move || Ok(shelf.load()?)).await?;
    let update = move |engine: &mut Engine| {
        let of = |library: &Library| -> Vec<Chunk> {
            library.list(&Which::default()).into_iter().cloned().collect()
        };
        for chunk in of(engine.library()) {
            if shelved.library.get(&chunk.id).is_err() {
                let _ = engine.delete(&chunk.id);
            }
        }
        for chunk in of(&shelved.library) {
            let is_same =
                |known: &Chunk| (known.pinned, &known.metadata) == (chunk.pinned, &chunk.metadata);
            if !engine.library().get(&chunk.id).is_ok_and(is_same) {
                let (id, pinned) = (chunk.id, chunk.pinned);
                // A chunk of another model stays on the shelf.
                if engine.restore(chunk).is_ok() {
                    let _ = engine.pin(&id, pinned);
                }
            }
        }
    };
    Ok(lease.call(update).await?)
}

/// Runs work that may take time.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Refused::new(Fault::Engine, "the request could not be read")))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use weft_core::chunk::Asked;
    use weft_core::sampling::Overrides;
    use weft_testing::stub;

    use super::*;
    use crate::http::{Options, settings};
    use crate::model_info::Loaded;
    use crate::registry::{ModelName, OneModel, Registry};

    /// A server of a model that computes nothing.
    fn app() -> Arc<App> {
        let load = Box::new(|| {
            let model = stub::model();
            let engine = stub::engine(&model, "a", &Arc::default());
            Ok(Loaded::new("stub", model, engine))
        });
        let address = "127.0.0.1:0".parse().unwrap();
        let options = Options::new(address);
        let log: Arc<dyn Fn(&str) + Send + Sync> = Arc::new(|_| {});
        let source = Arc::new(OneModel::new(load));
        let names = vec![ModelName::new("stub", "stub")];
        let models = Registry::new(settings(&options, &log), source, names);
        Arc::new(App::new(options, models, address))
    }

    /// An answer whose first line was read, and its id.
    async fn begun(app: &Arc<App>) -> (Body, String) {
        let sampling = Overrides { max_tokens: Some(3), ..Overrides::default() };
        let asked = Asked::Text("x".to_owned());
        let (thinking, use_cache, speculate) = (None, true, None);
        let question = Question { asked, thinking, sampling, use_cache, speculate };
        let which = Query(OfModel { model: None });
        let answer = answer(State(Arc::clone(app)), which, Json(question)).await;
        let mut body = answer.ok().expect("an answer").into_body();
        let line = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let Ok(Event::Started { id, .. }) = serde_json::from_slice(&line) else {
            panic!("{line:?}")
        };
        (body, id)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn only_answers_that_run_can_be_cancelled() {
        let app = app();
        let (body, id) = begun(&app).await;
        assert!(app.resident.remove(&id).is_some(), "it runs");
        drop(body);
        let (body, read) = begun(&app).await;
        body.collect().await.unwrap();
        let (body, left) = begun(&app).await;
        drop(body);
        for id in [read, left] {
            assert!(app.resident.remove(&id).is_none(), "it has ended");
        }
    }
}
