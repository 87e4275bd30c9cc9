//! Updates registered chunks in the engine and on disk, in the same order.
//!
//! The engine holds the chunks; blocking threads write their files. One lock is held over both, so
//! that the write of a chunk cannot overtake its deletion. An update that has started is finished
//! even if its client has gone.

use std::sync::Arc;

use tokio::sync::Mutex;
use weft_core::chunk::{Chunk, ChunkId, Shelf};
use weft_core::engine::Engine;

use crate::api_error::ApiError;
use crate::app::App;
use crate::model_info::ModelInfo;

/// Held while an update runs.
#[derive(Default)]
pub(crate) struct ChunkLock(Mutex<()>);

impl ChunkLock {
    /// Waits for its turn.
    #[cfg(unix)]
    pub(crate) async fn lock(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.lock().await
    }
}

/// What an update changes on disk.
pub(crate) enum FileChange {
    /// Saves the chunk at once, so that it outlives a crash of the server.
    Keep(Box<Chunk>),
    Remove(Vec<ChunkId>),
}

impl FileChange {
    fn apply(&self, shelf: &Shelf) -> Result<(), ApiError> {
        match self {
            Self::Keep(chunk) => Ok(shelf.keep(chunk)?),
            Self::Remove(ids) => Ok(ids.iter().try_for_each(|id| shelf.remove(id))?),
        }
    }
}

/// Updates the engine's chunks, then their files.
pub(crate) async fn update_chunks<T: Send + 'static>(
    app: &Arc<App>,
    model: Arc<ModelInfo>,
    update: impl FnOnce(&mut Engine) -> Result<(T, FileChange), ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let app = Arc::clone(app);
    let updated = tokio::spawn(async move {
        let _in_order = app.chunk_lock.0.lock().await;
        let (result, files) = app.worker.call(update).await??;
        if let Some(shelf) = model.shelf.clone() {
            let written = tokio::task::spawn_blocking(move || files.apply(&shelf)).await;
            written.map_err(|_| unusable())??;
        }
        Ok(result)
    });
    updated.await.map_err(|_| unusable())?
}

fn unusable() -> ApiError {
    ApiError::fault("the folder of chunks cannot be used")
}
