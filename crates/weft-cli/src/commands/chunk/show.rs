//! `weft chunk show ID`: prints the text to stdout, and its metadata to stderr.

use serde_json::Value;
use weft_core::chunk::Chunk;

use super::OnDisk;
use super::list::{facts, table};
use crate::answer::print;
use crate::args::ShowChunkArgs;
use crate::error::CliError;
use crate::size;
use crate::terminal;

pub(super) fn run(args: &ShowChunkArgs) -> Result<(), CliError> {
    let (registered, _) = super::registered(&args.model, &args.cache)?;
    let chunk = registered.library.find(&args.id)?;
    let store = super::store(&args.cache);
    let on_disk = OnDisk::of(store.as_ref(), chunk);
    if args.json {
        return print(&format!("{:#}\n", as_json(chunk, on_disk)));
    }
    let (files, bytes) = (size::plural(on_disk.files, "file"), size::bytes(on_disk.bytes));
    let coarse = match on_disk.coarse_files {
        0 => String::new(),
        n => format!(", {n} of them in 8 bits"),
    };
    let rows = match on_disk.files {
        0 => "no rows on disk; `weft chunk warm` computes them".to_owned(),
        _ => format!("rows in {files} on disk, {bytes}{coarse}"),
    };
    let notes = chunk.metadata.iter().map(|(key, value)| format!("{key}={value}\n"));
    let about = format!(
        "{}\n{}{}{rows}",
        chunk.id,
        notes.collect::<String>(),
        table([(chunk, on_disk)].into_iter())
    );
    terminal::note(args.model.quiet, &about);
    let end = if chunk.text.ends_with('\n') { "" } else { "\n" };
    print(&format!("{}{end}", terminal::printable(&chunk.text)))
}

fn as_json(chunk: &Chunk, rows: OnDisk) -> Value {
    let mut json = facts(chunk, rows);
    json["text"] = chunk.text.clone().into();
    json
}
