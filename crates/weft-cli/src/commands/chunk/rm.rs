//! `weft chunk rm`: deletes chunks and all their rows, for all models and devices.

use std::collections::HashSet;

use weft_core::chunk::{Chunk, Which};

use super::rows_of;
use crate::args::RmArgs;
use crate::error::CliError;
use crate::size;
use crate::terminal;
use crate::tiers::RegisteredChunks;

pub(super) fn run(args: &RmArgs) -> Result<(), CliError> {
    check(args)?;
    let (registered, server) = super::registered(&args.model, &args.cache)?;
    let chunks = chosen(args, &registered)?;
    let mut store = super::store(&args.cache);
    let mut freed = 0;
    for chunk in &chunks {
        registered.shelf.remove(&chunk.id)?;
        if let Some(store) = &mut store {
            for (key, bytes) in rows_of(store, chunk) {
                freed += if store.remove(&key) { bytes } else { 0 };
            }
        }
    }
    super::refresh(server.as_ref())?;
    let text =
        format!("removed {}, {} of rows", size::plural(chunks.len(), "chunk"), size::bytes(freed));
    terminal::note(args.model.quiet, &text);
    Ok(())
}

/// The user must give ids, a filter or `--all`, so that a slip does not delete all chunks.
fn check(args: &RmArgs) -> Result<(), CliError> {
    let which = &args.which;
    let chooses = which.kind.is_some() || which.older_than.is_some() || !which.meta.is_empty();
    let ways = [!args.ids.is_empty(), chooses, args.all];
    match ways.iter().filter(|way| **way).count() {
        1 => Ok(()),
        0 => Err(CliError::Usage(
            "no chunks selected; give IDs, --kind, --older-than or --meta, or --all".to_owned(),
        )),
        _ => Err(CliError::Usage(
            "give either IDs, or --kind, --older-than and --meta, or --all".to_owned(),
        )),
    }
}

fn chosen(args: &RmArgs, registered: &RegisteredChunks) -> Result<Vec<Chunk>, CliError> {
    if !args.ids.is_empty() {
        let found = args.ids.iter().map(|id| registered.library.find(id).cloned());
        let mut chunks = found.collect::<Result<Vec<_>, _>>()?;
        // Two words may mean one chunk.
        let mut seen = HashSet::new();
        chunks.retain(|chunk| seen.insert(chunk.id));
        return Ok(chunks);
    }
    let which = if args.all { Which::default() } else { super::which(&args.which) };
    Ok(registered.library.list(&which).into_iter().cloned().collect())
}
