//! Registered chunks, in the engine and on disk: both change together and in one order.
//!
//! The engine has the chunks; their files are written by threads that may wait for a disk. One lock
//! is held over both, so that no deletion is overtaken by the write of what it deletes, and a change
//! that was begun is finished even if its client has gone.

use std::sync::Arc;

use tokio::sync::Mutex;
use weft_core::chunk::{Chunk, ChunkId, Shelf};
use weft_core::engine::Engine;

use crate::api_error::ApiError;
use crate::app::App;
use crate::served::Served;

/// The order of changes.
#[derive(Default)]
pub(crate) struct ChunkShelf(Mutex<()>);

/// What a change of the engine's chunks means for their files.
pub(crate) enum Files {
    /// The chunk is written down, so that it outlives the server, however that ends.
    Keep(Box<Chunk>),
    Remove(Vec<ChunkId>),
}

impl Files {
    fn change(&self, shelf: &Shelf) -> Result<(), ApiError> {
        match self {
            Self::Keep(chunk) => Ok(shelf.keep(chunk)?),
            Self::Remove(ids) => Ok(ids.iter().try_for_each(|id| shelf.remove(id))?),
        }
    }
}

/// Changes the engine's chunks, then their files.
pub(crate) async fn change<T: Send + 'static>(
    app: &Arc<App>,
    served: Arc<Served>,
    change: impl FnOnce(&mut Engine) -> Result<(T, Files), ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let app = Arc::clone(app);
    let changed = tokio::spawn(async move {
        let _in_order = app.shelf.0.lock().await;
        let (told, files) = app.worker.ask(change).await??;
        if let Some(shelf) = served.shelf.clone() {
            let written = tokio::task::spawn_blocking(move || files.change(&shelf)).await;
            written.map_err(|_| unusable())??;
        }
        Ok(told)
    });
    changed.await.map_err(|_| unusable())?
}

fn unusable() -> ApiError {
    ApiError::fault("the folder of chunks cannot be used")
}
