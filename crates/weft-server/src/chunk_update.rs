//! Updates registered chunks in the engine and on disk, in the same order.
//!
//! The engine holds the chunks; blocking threads write their files. One lock is held over both, so
//! that the write of a chunk cannot overtake its deletion. An update that has started is finished
//! even if its client has gone. If a file cannot be written, the update is undone.

use std::sync::Arc;

use tokio::sync::Mutex;
use weft_core::chunk::{Chunk, ChunkError, ChunkId, Shelf};
use weft_core::engine::Engine;

use crate::api_error::ApiError;
use crate::registry::Lease;

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
    /// Saves the chunk at once, so that it outlives a crash of the server. `before` is the chunk
    /// as it was before the update, if it was registered.
    Keep {
        chunk: Box<Chunk>,
        before: Option<Box<Chunk>>,
    },
    Remove(Vec<ChunkId>),
}

impl FileChange {
    /// A change of a chunk that the engine has now.
    pub(crate) fn keep(chunk: &Chunk, before: Option<Chunk>) -> Self {
        Self::Keep { chunk: Box::new(chunk.clone()), before: before.map(Box::new) }
    }

    fn apply(&self, shelf: &Shelf) -> Result<(), ChunkError> {
        match self {
            Self::Keep { chunk, .. } => shelf.keep(chunk),
            Self::Remove(ids) => ids.iter().try_for_each(|id| shelf.remove(id)),
        }
    }

    /// Undoes an update whose file could not be written. A file that could not be removed brings
    /// its chunk back with the next start; until then the chunk is gone.
    fn undo(&self, engine: &mut Engine) -> Result<(), ChunkError> {
        match self {
            Self::Keep { chunk, before: None } => engine.delete(&chunk.id),
            Self::Keep { chunk, before: Some(before) } => {
                engine.pin(&chunk.id, before.pinned)?;
                engine.restore((**before).clone())
            }
            Self::Remove(_) => Ok(()),
        }
    }
}

/// Updates the engine's chunks, then their files.
pub(crate) async fn update_chunks<T: Send + 'static>(
    lease: &Lease,
    update: impl FnOnce(&mut Engine) -> Result<(T, FileChange), ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let lease = lease.clone();
    let updated = tokio::spawn(async move {
        let _in_order = lease.chunk_lock.0.lock().await;
        let (result, files) = lease.call(update).await??;
        if let Some(shelf) = lease.info().shelf.clone() {
            let files = Arc::new(files);
            let writing = Arc::clone(&files);
            let written = tokio::task::spawn_blocking(move || writing.apply(&shelf)).await;
            if let Err(error) = written.map_err(|_| unusable())? {
                lease.metrics().count_unwritten_chunk();
                lease.worker.log(&format!("a chunk was not saved: {error}"));
                // If the engine has failed meanwhile, its chunks are read from their files.
                let _ = lease.call(move |engine| files.undo(engine)).await;
                return Err(error.into());
            }
        }
        Ok(result)
    });
    updated.await.map_err(|_| unusable())?
}

fn unusable() -> ApiError {
    ApiError::fault("the folder of chunks cannot be used")
}
