//! State that all requests share.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::api_error::ApiError;
use crate::dialects;
use crate::http::{BodyBudget, Options};
use crate::metrics::RequestMetrics;
use crate::registry::Registry;
use crate::responses::Recent;

/// Up to this many bytes of text are processed on the calling thread; more would delay other
/// requests.
const INLINE_BYTES: usize = 16 << 10;
/// Texts of more bytes than this are processed two at a time. Parsing 16 MB of JSON can take a
/// gigabyte, so a few such bodies at once could fill a machine's memory.
const LARGE_BYTES: usize = 1 << 20;
static TURNS: Semaphore = Semaphore::const_new(2);
/// Bytes that work counts for if it takes time but has no text. It takes a turn.
pub(crate) const SLOW: usize = LARGE_BYTES + 1;

/// The server's state.
pub(crate) struct App {
    pub(crate) models: Arc<Registry>,
    pub(crate) requests: RequestMetrics,
    pub(crate) options: Options,
    /// The latest answers, each of which can be verified.
    pub(crate) recent: Recent,
    pub(crate) dialects: dialects::State,
    pub(crate) body_budget: BodyBudget,
    /// The state of the resident socket.
    #[cfg(unix)]
    pub(crate) resident: crate::resident::State,
}

impl App {
    /// A server that has answered nothing yet. `address` is that for HTTP.
    pub(crate) fn new(
        options: Options,
        models: Arc<Registry>,
        #[cfg_attr(not(unix), expect(unused_variables))] address: SocketAddr,
    ) -> Self {
        Self {
            models,
            requests: RequestMetrics::default(),
            options,
            recent: Recent::default(),
            dialects: dialects::State::default(),
            body_budget: BodyBudget::default(),
            #[cfg(unix)]
            resident: crate::resident::State::new(address),
        }
    }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn slow_work_waits_for_its_turn() {
        let turns = TURNS.acquire_many(2).await.unwrap();
        let slow = off_thread(SLOW, || Ok(7));
        let mut slow = std::pin::pin!(slow);
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut slow).await.is_err());
        assert_eq!(off_thread(LARGE_BYTES, || Ok(8)).await.unwrap(), 8);
        drop(turns);
        assert_eq!(slow.await.unwrap(), 7);
    }
}
