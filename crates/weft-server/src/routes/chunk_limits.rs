//! How many chunks a model's library may have, how large they may be together, and what is noted on
//! each. Everything registered stays in memory, and in files, until a client deletes it.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use weft_core::chunk::{Chunk, ChunkId, Library};
use weft_core::engine::Engine;

use crate::api_error::ApiError;

/// The most chunks of a model, and the most bytes of their texts, tokens and metadata.
const MAX_CHUNKS: usize = 16_384;
const MAX_LIBRARY_BYTES: usize = 256 << 20;
/// The most metadata entries of a chunk, and the most bytes of one.
const MAX_NOTES: usize = 32;
const MAX_NOTE_BYTES: usize = 1024;

/// Refuses too much metadata in a request.
pub(super) fn check_notes(notes: &BTreeMap<String, String>) -> Result<(), ApiError> {
    let is_long = |(key, value): (&String, &String)| key.len() + value.len() > MAX_NOTE_BYTES;
    if notes.len() > MAX_NOTES || notes.iter().any(is_long) {
        let message =
            format!("metadata may have {MAX_NOTES} entries of up to {MAX_NOTE_BYTES} bytes");
        return Err(ApiError::invalid(message).param("metadata"));
    }
    Ok(())
}

/// Registers a chunk if there is room; returns its id, and the chunk as it was before.
pub(super) fn register_in(
    engine: &mut Engine,
    chunk: Chunk,
) -> Result<(ChunkId, Option<Chunk>), ApiError> {
    let before = engine.library().get(&chunk.id).ok().cloned();
    if let Some(name) = chunk.name() {
        engine.library().check_name(name, &chunk.id)?;
    }
    check_merged(before.as_ref(), &chunk)?;
    check_room(engine.library(), &chunk, before.is_none())?;
    Ok((engine.register(chunk), before))
}

/// A chunk that is registered again keeps its metadata and gets what is new.
fn check_merged(before: Option<&Chunk>, chunk: &Chunk) -> Result<(), ApiError> {
    let Some(before) = before else { return Ok(()) };
    let n_known = before.metadata.len();
    let n_new = chunk.metadata.keys().filter(|key| !before.metadata.contains_key(*key)).count();
    if n_known + n_new <= MAX_NOTES {
        return Ok(());
    }
    let message = format!(
        "this chunk is registered with {n_known} entries of metadata, and {n_new} more would pass \
         the limit of {MAX_NOTES}; send fewer, or delete the chunk first"
    );
    Err(ApiError::invalid(message).param("metadata"))
}

fn check_room(library: &Library, chunk: &Chunk, is_new: bool) -> Result<(), ApiError> {
    let refused = |message: String| {
        Err(ApiError::refused(StatusCode::INSUFFICIENT_STORAGE, message).code("too_many_chunks"))
    };
    if is_new && library.len() >= MAX_CHUNKS {
        return refused(format!(
            "{} chunks are registered, and the limit is {MAX_CHUNKS}; delete some",
            library.len()
        ));
    }
    let bytes = library.bytes() + chunk.bytes();
    if bytes > MAX_LIBRARY_BYTES {
        return refused(format!(
            "with this one the registered chunks would have {bytes} bytes, and the limit is \
             {MAX_LIBRARY_BYTES}; delete some"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weft_core::chunk::Kind;
    use weft_testing::stub;

    use super::*;

    fn chunk(token: usize, text: &str, notes: std::ops::Range<usize>) -> Chunk {
        let metadata = notes.map(|n| (format!("key {n}"), "value".to_owned())).collect();
        let chunk = Chunk::of_tokens(Kind::Context, text, vec![token as u32]);
        Chunk { metadata, ..chunk }
    }

    fn engine() -> Engine {
        stub::engine(&stub::model(), "a", &Arc::default())
    }

    #[test]
    fn a_library_has_so_many_chunks() {
        let mut engine = engine();
        for token in 0..MAX_CHUNKS - 1 {
            engine.register(chunk(token, "x", 0..0));
        }
        register_in(&mut engine, chunk(MAX_CHUNKS, "x", 0..0)).unwrap();
        let refusal = register_in(&mut engine, chunk(MAX_CHUNKS + 1, "x", 0..0)).unwrap_err();
        assert_eq!(refusal.status(), StatusCode::INSUFFICIENT_STORAGE);
        let message = refusal.message();
        assert!(message.contains("16384 chunks are registered, and the limit is 16384"));
        let (_, before) = register_in(&mut engine, chunk(0, "x", 0..1)).expect("it is there");
        assert!(before.is_some_and(|before| before.metadata.is_empty()));
        engine.delete(&chunk(1, "", 0..0).id).unwrap();
        register_in(&mut engine, chunk(MAX_CHUNKS + 1, "x", 0..0)).unwrap();
    }

    #[test]
    fn a_library_has_so_many_bytes() {
        let (mut engine, text) = (engine(), "x".repeat(MAX_LIBRARY_BYTES / 2 - 4));
        for token in 0..2 {
            register_in(&mut engine, chunk(token, &text, 0..0)).unwrap();
        }
        let refusal = register_in(&mut engine, chunk(2, "", 0..0)).unwrap_err();
        assert_eq!(refusal.status(), StatusCode::INSUFFICIENT_STORAGE);
        assert!(refusal.message().contains("268435460 bytes, and the limit is 268435456"));
    }

    #[test]
    fn notes_of_a_chunk_do_not_add_up() {
        let mut engine = engine();
        for notes in [0..20, 10..32, 0..32] {
            register_in(&mut engine, chunk(0, "x", notes)).unwrap();
        }
        let refusal = register_in(&mut engine, chunk(0, "x", 31..34)).unwrap_err();
        assert_eq!(refusal.status(), StatusCode::BAD_REQUEST);
        assert!(refusal.message().contains("32 entries of metadata, and 2 more would pass"));
    }
}
