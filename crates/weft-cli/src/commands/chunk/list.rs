//! `weft chunk list`

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use weft_core::chunk::Chunk;

use super::{OnDisk, remote};
use crate::answer::print;
use crate::args::ListChunksArgs;
use crate::commands::list::age;
use crate::error::CliError;
use crate::terminal;

/// Digits of an id in tables.
pub(super) const ID_DIGITS: usize = 12;

pub(super) fn run(args: &ListChunksArgs) -> Result<(), CliError> {
    if args.there.remote.is_some() {
        return remote::list(args);
    }
    let (registered, _) = super::registered(&args.model, &args.cache)?;
    let chunks = registered.library.list(&super::which(&args.which));
    let store = super::store(&args.cache);
    let rows = |chunk: &Chunk| OnDisk::of(store.as_ref(), chunk);
    if args.json {
        let all: Vec<Value> = chunks.into_iter().map(|chunk| facts(chunk, rows(chunk))).collect();
        return print(&format!("{:#}\n", Value::Array(all)));
    }
    if chunks.is_empty() {
        let folder = registered.shelf.folder().display();
        let text = if registered.library.list(&Default::default()).is_empty() {
            format!("there are no chunks yet in {folder}; `weft chunk add FILE` registers one")
        } else {
            format!("no such chunks in {folder}")
        };
        terminal::note(args.model.quiet, &text);
        return Ok(());
    }
    print(&table(chunks.into_iter().map(|chunk| (chunk, rows(chunk)))))
}

/// The chunks and the form of their rows on disk, one line each.
pub(super) fn table<'c>(chunks: impl Iterator<Item = (&'c Chunk, OnDisk)>) -> String {
    let mut text = format!(
        "{:<ID_DIGITS$}  {:<7}  {:>6}  {:>5}  {:<12}  {:<6}  {:<4}  name\n",
        "id", "kind", "tokens", "uses", "last used", "pinned", "rows"
    );
    for (chunk, rows) in chunks {
        let id = chunk.id.to_string();
        let name = terminal::without_controls(chunk.name().unwrap_or_default()).into_owned();
        text += &format!(
            "{:<ID_DIGITS$}  {:<7}  {:>6}  {:>5}  {:<12}  {:<6}  {:<4}  {name}\n",
            &id[..ID_DIGITS],
            chunk.kind.name(),
            chunk.tokens.len(),
            chunk.uses,
            chunk.last_used.map_or_else(|| "never".to_owned(), |time| age(Some(time))),
            if chunk.pinned { "yes" } else { "" },
            rows.form(),
        );
    }
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A chunk as JSON.
pub(super) fn facts(chunk: &Chunk, rows: OnDisk) -> Value {
    let milliseconds = |time: SystemTime| {
        u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).ok()
    };
    json!({
        "id": chunk.id.to_string(),
        "kind": chunk.kind.name(),
        "name": chunk.name(),
        "metadata": chunk.metadata,
        "tokens": chunk.tokens.len(),
        "created_ms": milliseconds(chunk.created),
        "last_used_ms": chunk.last_used.and_then(milliseconds),
        "uses": chunk.uses,
        "pinned": chunk.pinned,
        "rows_on_disk": rows.json(),
    })
}
