//! State that all requests share.

use std::sync::Arc;

use tokio::sync::{Mutex, Semaphore};

use crate::api_error::ApiError;
use crate::chunk_update::ChunkLock;
use crate::http::Options;
use crate::metrics::Metrics;
use crate::responses::Recent;
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
    /// The last answers, any of which can be verified.
    pub(crate) recent: Recent,
    pub(crate) chunk_lock: ChunkLock,
    /// Held while a verification runs.
    pub(crate) verifying: Mutex<()>,
}

/// Runs something that takes time in proportion to `bytes`: here if it is short, else on a blocking
/// thread.
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
