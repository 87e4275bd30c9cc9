//! `weft chunk show ID`: prints the text to stdout, and its metadata to stderr.

use serde_json::{Value, json};
use weft_core::chunk::Chunk;

use super::list::{facts, table};
use super::rows_of;
use crate::answer::print;
use crate::args::ShowChunkArgs;
use crate::error::CliError;
use crate::size;
use crate::terminal;

pub(super) fn run(args: &ShowChunkArgs) -> Result<(), CliError> {
    let (registered, _) = super::registered(&args.model, &args.cache)?;
    let chunk = registered.library.find(&args.id)?;
    let store = super::store(&args.cache);
    let rows = store.as_ref().map(|store| rows_of(store, chunk)).unwrap_or_default();
    let (n_files, bytes) = (rows.len(), rows.iter().map(|(_, bytes)| bytes).sum());
    if args.json {
        return print(&format!("{:#}\n", as_json(chunk, n_files, bytes)));
    }
    let rows = match n_files {
        0 => "no rows on disk; `weft chunk warm` computes them".to_owned(),
        n => format!("rows in {} on disk, {}", size::plural(n, "file"), size::bytes(bytes)),
    };
    let notes = chunk.metadata.iter().map(|(key, value)| format!("{key}={value}\n"));
    let about = format!("{}\n{}{}{rows}", chunk.id, notes.collect::<String>(), table(&[chunk]));
    terminal::note(args.model.quiet, &about);
    let end = if chunk.text.ends_with('\n') { "" } else { "\n" };
    print(&format!("{}{end}", terminal::printable(&chunk.text)))
}

fn as_json(chunk: &Chunk, n_files: usize, bytes: u64) -> Value {
    let mut json = facts(chunk);
    json["text"] = chunk.text.clone().into();
    json["rows_on_disk"] = json!({ "files": n_files, "bytes": bytes });
    json
}
