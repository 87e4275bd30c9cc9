//! `weft chunk …`: the registered chunks and their cached rows.
//!
//! Only `warm`, `import` and `pull` of rows and `gc --other-models` need a device. The other
//! commands read the model's tokenizer, the shelf and the headers of row files.

mod add;
mod gc;
mod key;
mod list;
mod pin;
mod remote;
mod rm;
mod show;
mod transfer;
mod warm;

use std::process::ExitCode;

use serde_json::{Value, json};
use weft_core::chunk::{Chunk, Shelf, Which};
use weft_core::model::Model;
use weft_core::store::{KvKey, Store};

use crate::args::{CacheArgs, ChunkCommand, ModelArgs, WhichArgs};
use crate::error::CliError;
use crate::load;
use crate::resident::{self, Client};
use crate::terminal;
use crate::tiers::{Budget, RegisteredChunks};

pub(crate) fn run(command: ChunkCommand) -> Result<ExitCode, CliError> {
    match command {
        ChunkCommand::Add(args) => add::run(args),
        ChunkCommand::List(args) => list::run(&args),
        ChunkCommand::Show(args) => show::run(&args),
        ChunkCommand::Warm(args) => warm::run(&args),
        ChunkCommand::Pin(args) => pin::run(&args, true),
        ChunkCommand::Unpin(args) => pin::run(&args, false),
        ChunkCommand::Rm(args) => rm::run(&args),
        ChunkCommand::Export(args) => transfer::export(&args),
        ChunkCommand::Import(args) => transfer::import(&args),
        ChunkCommand::Push(args) => remote::push(&args),
        ChunkCommand::Pull(args) => remote::pull(&args),
        ChunkCommand::Key(args) => key::run(&args),
        ChunkCommand::Gc(args) => gc::run(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// A model and its chunks, without a device.
fn open(model: &ModelArgs, cache: &CacheArgs) -> Result<(Model, RegisteredChunks), CliError> {
    let model = load::open(None, model)?;
    let registered = RegisteredChunks::open(cache, &model.tokenizer)?;
    Ok((model, registered))
}

/// The registered chunks, and the resident server that has them too, if there is one. The server
/// knows their folder, so that no tokenizer is read.
fn registered(
    model: &ModelArgs,
    cache: &CacheArgs,
) -> Result<(RegisteredChunks, Option<Client>), CliError> {
    if let Some(server) = resident::find(model, cache)
        && let Some(folder) = server.facts.shelf.clone()
    {
        return Ok((RegisteredChunks::load(Shelf::at(folder))?, Some(server)));
    }
    Ok((open(model, cache)?.1, None))
}

/// Reports changed chunks to the resident server, if there is one.
fn refresh(server: Option<&Client>) -> Result<(), CliError> {
    server.map_or(Ok(()), Client::refresh)
}

/// The rows on disk; `None` if there are none, or if the folder cannot be used, which is reported.
fn store(cache: &CacheArgs) -> Option<Store> {
    if cache.no_cache {
        return None;
    }
    let mut store = Budget::new(cache).open_store().unwrap_or_else(|reason| {
        terminal::warn(&reason);
        None
    })?;
    print_warnings(&mut store);
    Some(store)
}

fn print_warnings(store: &mut Store) {
    store.take_warnings().iter().for_each(|warning| terminal::warn(warning));
}

/// The files that hold rows of a chunk, for all models and devices, and their bytes.
fn rows_of(store: &Store, chunk: &Chunk) -> Vec<(KvKey, u64)> {
    let entries = store.entries().filter(|(_, entry)| chunk.is_in(&entry.header.tokens));
    entries.map(|(key, entry)| (*key, entry.bytes)).collect()
}

/// A chunk's rows on disk.
#[derive(Clone, Copy, Default)]
struct OnDisk {
    files: usize,
    bytes: u64,
    /// Those of the files that have rows in 8 bits.
    coarse_files: usize,
}

impl OnDisk {
    /// The rows of a chunk, for all models and devices.
    fn of(store: Option<&Store>, chunk: &Chunk) -> Self {
        let entries = store.into_iter().flat_map(Store::entries).map(|(_, entry)| entry);
        let mut rows = Self::default();
        for entry in entries.filter(|entry| chunk.is_in(&entry.header.tokens)) {
            rows.files += 1;
            rows.bytes += entry.bytes;
            rows.coarse_files += usize::from(entry.header.form.is_coarse());
        }
        rows
    }

    /// The form of the rows, in one word.
    fn form(&self) -> &'static str {
        match self.files - self.coarse_files {
            _ if self.files == 0 => "",
            0 => "int8",
            _ if self.coarse_files > 0 => "both",
            _ => "full",
        }
    }

    fn json(&self) -> Value {
        json!({"files": self.files, "bytes": self.bytes, "coarse_files": self.coarse_files})
    }
}

fn which(args: &WhichArgs) -> Which {
    Which {
        kind: args.kind.map(Into::into),
        older_than: args.older_than,
        metadata: args.meta.iter().cloned().collect(),
    }
}
