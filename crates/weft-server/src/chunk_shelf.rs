//! Registered chunks on disk, written in the order in which they changed.
//!
//! The engine has the chunks; their files are written by threads that may wait for a disk. One lock
//! keeps a deletion from being overtaken by the write of what it deletes.

use std::sync::Arc;

use tokio::sync::Mutex;
use weft::chunk::{Chunk, ChunkId, Shelf};

use crate::api_error::ApiError;
use crate::served::Served;

/// The order of writes.
#[derive(Default)]
pub(crate) struct ChunkShelf(Mutex<()>);

impl ChunkShelf {
    /// Writes a chunk down, so that it outlives the server, however that ends.
    pub(crate) async fn keep(&self, served: &Arc<Served>, chunk: Chunk) -> Result<(), ApiError> {
        self.change(served, move |shelf| Ok(shelf.keep(&chunk)?)).await
    }

    /// Removes the files of chunks.
    pub(crate) async fn remove(
        &self,
        served: &Arc<Served>,
        ids: Vec<ChunkId>,
    ) -> Result<(), ApiError> {
        let remove = move |shelf: &Shelf| Ok(ids.iter().try_for_each(|id| shelf.remove(id))?);
        self.change(served, remove).await
    }

    async fn change(
        &self,
        served: &Arc<Served>,
        change: impl FnOnce(&Shelf) -> Result<(), ApiError> + Send + 'static,
    ) -> Result<(), ApiError> {
        let Some(shelf) = served.shelf.clone() else { return Ok(()) };
        let _in_order = self.0.lock().await;
        let done = tokio::task::spawn_blocking(move || change(&shelf)).await;
        done.unwrap_or_else(|_| Err(ApiError::fault("the folder of chunks cannot be used")))
    }
}
