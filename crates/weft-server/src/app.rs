//! What all requests share.

use std::sync::Arc;

use tokio::sync::{Mutex, Semaphore};

use crate::answers::Recent;
use crate::api_error::ApiError;
use crate::chunk_shelf::ChunkShelf;
use crate::http::Options;
use crate::metrics::Metrics;
use crate::served::Served;
use crate::worker::Worker;

/// Bytes of text that are worked on where they are; more would hold up other requests.
const INLINE_BYTES: usize = 16 << 10;
/// Bytes of text that are worked on at any time; more wait their turn. JSON of 16 MB can be a gigabyte
/// while it is read, and a few of them at once all of a machine's memory.
const LARGE_BYTES: usize = 1 << 20;
static TURNS: Semaphore = Semaphore::const_new(2);
/// What takes time and has no bytes is worked on as if it had these.
pub(crate) const SLOW: usize = LARGE_BYTES;

/// The server's state.
pub(crate) struct App {
    pub(crate) worker: Worker,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) options: Options,
    /// The last answers, for those who want one verified.
    pub(crate) recent: Recent,
    pub(crate) shelf: ChunkShelf,
    /// Held by the verification that runs.
    pub(crate) verifying: Mutex<()>,
}

impl App {
    /// The served model, or why there is none now.
    pub(crate) fn served(&self) -> Result<Arc<Served>, ApiError> {
        self.worker.served()
    }
}

/// Runs something that takes time in proportion to `bytes`: here if that is little, else on a thread
/// where it holds up nobody.
pub(crate) async fn off_thread<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if bytes <= INLINE_BYTES {
        return work();
    }
    // The turn lasts as long as the work, even if who waits for it has gone. It is never closed.
    let turn = if bytes > LARGE_BYTES { TURNS.acquire().await.ok() } else { None };
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    let done = done.await;
    done.unwrap_or_else(|_| Err(ApiError::fault("the request could not be read")))
}
