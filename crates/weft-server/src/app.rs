//! State that all requests share.

use std::sync::Arc;

use tokio::sync::{Mutex, Semaphore};

use crate::api_error::ApiError;
use crate::chunk_update::ChunkLock;
use crate::http::Options;
use crate::metrics::Metrics;
use crate::responses::Recent;
use crate::worker::Worker;

/// Up to this many bytes of text are processed on the calling thread; more would delay other
/// requests.
const INLINE_BYTES: usize = 16 << 10;
/// Texts of more bytes than this are processed two at a time. Parsing 16 MB of JSON can take a
/// gigabyte, so a few such bodies at once could fill a machine's memory.
const LARGE_BYTES: usize = 1 << 20;
static TURNS: Semaphore = Semaphore::const_new(2);
/// Bytes that work counts for if it takes time but has no text.
pub(crate) const SLOW: usize = LARGE_BYTES;

/// The server's state.
pub(crate) struct App {
    pub(crate) worker: Worker,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) options: Options,
    /// The latest answers, each of which can be verified.
    pub(crate) recent: Recent,
    pub(crate) chunk_lock: ChunkLock,
    /// Held while a verification runs.
    pub(crate) verifying: Mutex<()>,
    /// The state of the resident socket.
    #[cfg(unix)]
    pub(crate) resident: crate::resident::State,
}

/// Runs work that takes time in proportion to `bytes`: on this thread if it is short, otherwise on
/// a blocking thread.
pub(crate) async fn off_thread<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if bytes <= INLINE_BYTES {
        return work();
    }
    // The permit is held until the work ends, even if the caller has gone. The semaphore is never
    // closed.
    let turn = if bytes > LARGE_BYTES { TURNS.acquire().await.ok() } else { None };
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    let done = done.await;
    done.unwrap_or_else(|_| Err(ApiError::fault("the request could not be read")))
}
