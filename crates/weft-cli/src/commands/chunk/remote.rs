//! `weft chunk push` and `pull`, and `list` and `gc` with `--remote`: the chunks and KV rows in a
//! store that several machines share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use weft_core::chunk::{Chunk, ChunkId, Homes, Library, Shelf};
use weft_core::dtype::Dtype;
use weft_core::model::Model;
use weft_core::store::{Header, Put, Store};
use weft_remote::{Label, Labels, Miss, Pulled, Remote, Sweep, Written};

use super::add::register;
use super::list::ID_DIGITS;
use super::rows_of;
use crate::answer::print;
use crate::args::{
    CacheArgs, GcArgs, ListChunksArgs, PullChunksArgs, PushArgs, RemoteArgs, WhichArgs,
};
use crate::commands::list::age;
use crate::error::CliError;
use crate::load::{self, Loaded};
use crate::remote;
use crate::resident;
use crate::size;
use crate::terminal;

/// Opens the store that a command needs.
fn open(args: &RemoteArgs) -> Result<Remote, CliError> {
    remote::open(args.remote.as_deref(), &args.trust)
}

fn failed(what: impl Into<String>) -> impl FnOnce(Miss) -> CliError {
    let what = what.into();
    move |source| CliError::RemoteStore { what, source }
}

/// The name of a tokenizer in the store: that of its folder.
fn vocabulary(shelf: &Shelf) -> String {
    shelf.folder().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

pub(super) fn push(args: &PushArgs) -> Result<(), CliError> {
    let remote = open(&args.remote)?;
    let (registered, _) = super::registered(&args.model, &args.cache)?;
    let vocabulary = vocabulary(&registered.shelf);
    let mut store = super::store(&args.cache);
    // All names are looked up before anything is sent.
    let chunks: Vec<&Chunk> =
        args.ids.iter().map(|id| registered.library.find(id)).collect::<Result<_, _>>()?;
    for chunk in chunks {
        let name = chunk.name().map_or_else(|| chunk.id.to_string(), str::to_owned);
        let text = remote.push_chunk(&vocabulary, chunk).map_err(failed(name.clone()))?;
        let sent = match &mut store {
            Some(store) => push_rows(&remote, chunk, store).map_err(failed(name.clone()))?,
            None => Sent::default(),
        };
        terminal::note(args.model.quiet, &format!("{name}: {}", sent.describe(text)));
    }
    if let Some(store) = &mut store {
        super::print_warnings(store);
    }
    Ok(())
}

/// What was sent of a chunk's rows.
#[derive(Default)]
struct Sent {
    files: usize,
    bytes: u64,
    present: usize,
}

impl Sent {
    fn describe(&self, text: Written) -> String {
        let text = match text {
            Written::New { .. } => "the text",
            Written::Present => "the text (already there)",
        };
        let files = size::plural(self.files, "file");
        let present = match self.present {
            0 => String::new(),
            n => format!("; already there: {}", size::plural(n, "file")),
        };
        format!("{text}, and {files} of rows, {}{present}", size::bytes(self.bytes))
    }
}

/// Sends the rows on disk that hold a chunk. Damaged files are skipped; the store reports them.
fn push_rows(remote: &Remote, chunk: &Chunk, store: &mut Store) -> Result<Sent, Miss> {
    let mut sent = Sent::default();
    for (key, _) in rows_of(store, chunk) {
        let Some(header) = store.find(&key).map(|entry| entry.header.clone()) else { continue };
        let Some(rows) = store.get(&key, &header) else { continue };
        match remote.push_rows(&chunk.id, &key, &header, &Arc::new(rows))? {
            Written::New { bytes } => {
                sent.files += 1;
                sent.bytes += bytes;
            }
            Written::Present => sent.present += 1,
        }
    }
    Ok(sent)
}

pub(super) fn pull(args: &PullChunksArgs) -> Result<(), CliError> {
    let remote = open(&args.remote)?;
    let (model, mut registered) = super::open(&args.model, &args.cache)?;
    let vocabulary = vocabulary(&registered.shelf);
    let labels = labels(&remote, &vocabulary)?;
    let chosen: Vec<&Label> =
        args.ids.iter().map(|name| one(&labels, name)).collect::<Result<_, _>>()?;
    let mut pulled = Vec::new();
    for label in chosen {
        let name = label.name().map_or_else(|| label.id.to_string(), str::to_owned);
        let chunk = remote.pull_chunk(&vocabulary, label).map_err(failed(name.clone()))?;
        let mut metadata = chunk.metadata.clone();
        keep_name(&registered.library, label, &mut metadata, args.model.quiet);
        // The tokens are computed here: whoever wrote the card may have written any.
        let ours = Chunk::new(&model.tokenizer, chunk.kind, &chunk.text, BTreeMap::new())?;
        if ours.id != label.id {
            let what = "this model's tokenizer reads the text differently".to_owned();
            return Err(failed(name)(Miss::Card(what)));
        }
        let id = register(&mut registered, ours, metadata, args.model.quiet)
            .map_err(|error| error.about(&name))?;
        print(&format!("{id}\n"))?;
        pulled.push(registered.library.get(&id)?.clone());
    }
    pull_rows(args, &remote, model, &registered.library, &pulled)?;
    super::refresh(resident::find(&args.model, &args.cache).as_ref())
}

/// A text that has a name here keeps it: commands and scripts here use it.
fn keep_name(
    library: &Library,
    label: &Label,
    metadata: &mut BTreeMap<String, String>,
    quiet: bool,
) {
    let Some(ours) = library.get(&label.id).ok().and_then(Chunk::name) else { return };
    if let Some(theirs) = metadata.remove("name").filter(|theirs| theirs != ours) {
        terminal::note(quiet, &format!("{theirs} is {ours:?} here, and keeps that name"));
    }
}

/// The label that a name means.
fn one<'l>(labels: &'l Labels, name: &str) -> Result<&'l Label, CliError> {
    match labels.find(name)[..] {
        [label] => Ok(label),
        [] => Err(CliError::Usage(format!(
            "the store has no chunk {name:?} for this model; `weft chunk list --remote` lists them"
        ))),
        ref several => {
            let ids: Vec<String> = several.iter().map(|label| label.id.to_string()).collect();
            let ids = ids.join(", ");
            Err(CliError::Usage(format!("{name:?} can be any of {ids}; give an id")))
        }
    }
}

/// The chunks are registered already. Rows that are not pulled cost only time.
fn pull_rows(
    args: &PullChunksArgs,
    remote: &Remote,
    model: Model,
    library: &Library,
    chunks: &[Chunk],
) -> Result<(), CliError> {
    let has_rows = |chunk: &Chunk| -> Result<bool, CliError> {
        let name = chunk.name().map_or_else(|| chunk.id.to_string(), str::to_owned);
        remote.has_rows(&chunk.id).map_err(failed(name))
    };
    let mut with_rows = Vec::new();
    for chunk in chunks {
        if has_rows(chunk)? {
            with_rows.push(chunk);
        }
    }
    if with_rows.is_empty() {
        return Ok(());
    }
    let trust = &args.remote.trust;
    if trust.remote_key.is_none() && !trust.remote_unsigned {
        let text = "rows are computed here, because no --remote-key says whose to use";
        terminal::note(args.model.quiet, text);
        return Ok(());
    }
    let Some(mut store) = super::store(&args.cache) else {
        terminal::warn("rows are not pulled, because there is no folder for them (--cache-dir)");
        return Ok(());
    };
    // Without a template, no prompt has chunks.
    let homes_of = |chunk: &&Chunk| match &model.template {
        Some(template) => Homes::new(template, &model.tokenizer, library, chunk),
        None => Homes::default(),
    };
    let homes: Vec<Homes> = with_rows.iter().map(homes_of).collect();
    // Only a device knows which rows fit it.
    let without_files = CacheArgs { no_cache: true, ..args.cache.clone() };
    let fit = Fit::of(&load::load_model(model, &args.model, &without_files)?);
    let mut got = Got::default();
    for (chunk, homes) in with_rows.into_iter().zip(&homes) {
        let name = chunk.name().map_or_else(|| chunk.id.to_string(), str::to_owned);
        let limit = store.budget_bytes();
        let (fits, take) =
            (|header: &_| fit.check(header, homes), |rows| got.add(rows, &mut store));
        remote.pull_rows(chunk, &fit.fingerprint, limit, fits, take).map_err(failed(name))?;
    }
    got.refused.iter().for_each(|(reason, n)| {
        terminal::warn(&format!("{} of rows not used: {reason}", size::plural(*n, "file")));
    });
    super::print_warnings(&mut store);
    let files = size::plural(got.files, "file");
    terminal::note(args.model.quiet, &format!("{files} of rows, {}", size::bytes(got.bytes)));
    Ok(())
}

/// What rows must be to be used by this model on its device.
struct Fit {
    fingerprint: String,
    dtype: Dtype,
    layers: usize,
    kv_width: usize,
}

impl Fit {
    fn of(loaded: &Loaded) -> Self {
        let config = &loaded.model.config;
        Self {
            fingerprint: loaded.fingerprint(),
            dtype: loaded.engine.device().dtype(),
            layers: config.layers,
            kv_width: config.kv_width(),
        }
    }

    /// Checks rows before they are asked for.
    fn check(&self, found: &Header, homes: &Homes) -> Result<(), Miss> {
        let Self { dtype, layers, kv_width, .. } = *self;
        let expected = Header { dtype, layers, kv_width, ..found.clone() };
        match expected.mismatch(found) {
            Some(reason) => Err(Miss::Mismatch(reason)),
            None if !homes.have(found) => Err(Miss::Elsewhere),
            None => Ok(()),
        }
    }
}

/// What came of a chunk's rows.
#[derive(Default)]
struct Got {
    files: usize,
    bytes: u64,
    /// Reasons, and how often.
    refused: BTreeMap<String, usize>,
}

impl Got {
    fn add(&mut self, pulled: Result<Pulled, Miss>, store: &mut Store) {
        let reason = match pulled {
            Ok(Pulled { key, header, rows }) => match store.put(&key, &header, &rows) {
                Put::Stored | Put::Present => {
                    self.files += 1;
                    self.bytes += 2 * header.tensor_bytes().unwrap_or_default() as u64;
                    return;
                }
                outcome => outcome.to_string(),
            },
            Err(miss) => miss.to_string(),
        };
        *self.refused.entry(reason).or_default() += 1;
    }
}

pub(super) fn list(args: &ListChunksArgs) -> Result<(), CliError> {
    let url = args.there.remote.clone().flatten();
    let remote = remote::open(url.as_deref(), &args.there.trust)?;
    let (registered, _) = super::registered(&args.model, &args.cache)?;
    let all = labels(&remote, &vocabulary(&registered.shelf))?;
    let chosen: Vec<&Label> = all.labels.iter().filter(|label| is(label, &args.which)).collect();
    if args.json {
        let all: Vec<Value> = chosen.into_iter().map(facts).collect();
        return print(&format!("{:#}\n", Value::Array(all)));
    }
    if chosen.is_empty() {
        terminal::note(args.model.quiet, "the store has no such chunks for this model");
        return Ok(());
    }
    print(&table(&chosen))
}

/// All labels. Those that cannot be used are reported.
fn labels(remote: &Remote, vocabulary: &str) -> Result<Labels, CliError> {
    let labels = remote.labels(vocabulary).map_err(failed("the remote store"))?;
    for (id, miss) in &labels.refused {
        terminal::warn(&format!("chunk {id} in the store is not used: {miss}"));
    }
    Ok(labels)
}

/// Whether a label passes the filter.
fn is(label: &Label, which: &WhichArgs) -> bool {
    let age = SystemTime::now().duration_since(label.stored).unwrap_or_default();
    which.kind.is_none_or(|kind| label.kind == kind.into())
        && which.older_than.is_none_or(|wanted| age >= wanted)
        && which.meta.iter().all(|(key, value)| label.metadata.get(key) == Some(value))
}

/// The labels, one line each.
fn table(labels: &[&Label]) -> String {
    let line = |id: &str, kind: &str, tokens: &str, bytes: &str, stored: &str, name: &str| {
        let line =
            format!("{id:<ID_DIGITS$}  {kind:<7}  {tokens:>6}  {bytes:>8}  {stored:<12}  {name}");
        format!("{}\n", line.trim_end())
    };
    let mut text = line("id", "kind", "tokens", "size", "stored", "name");
    for label in labels {
        let name = terminal::without_controls(label.name().unwrap_or_default()).into_owned();
        text += &line(
            &label.id.to_string()[..ID_DIGITS],
            label.kind.name(),
            &label.n_tokens.to_string(),
            &size::bytes(label.bytes),
            &age(Some(label.stored)),
            &name,
        );
    }
    text
}

fn facts(label: &Label) -> Value {
    let stored = label.stored.duration_since(UNIX_EPOCH).unwrap_or_default();
    let id: &ChunkId = &label.id;
    json!({
        "id": id.to_string(),
        "kind": label.kind.name(),
        "name": label.name(),
        "metadata": label.metadata,
        "tokens": label.n_tokens,
        "bytes": label.bytes,
        "stored_ms": u64::try_from(stored.as_millis()).ok(),
    })
}

pub(super) fn gc(args: &GcArgs) -> Result<(), CliError> {
    let url = args.there.remote.clone().flatten();
    let remote = remote::open(url.as_deref(), &args.there.trust)?;
    let which = Sweep { older_than: args.older_than, max_bytes: args.max_size };
    let swept = remote.sweep(&which).map_err(failed("the remote store"))?;
    let of = |(n, bytes): (usize, u64), what: &str| {
        format!("{}, {}", size::plural(n, what), size::bytes(bytes))
    };
    print(&format!(
        "freed {}\nfreed {}\nleft  {} of rows\n",
        of(swept.leftovers, "left-over object"),
        of(swept.deleted, "file") + " of rows",
        of(swept.left, "file")
    ))
}

#[cfg(test)]
mod tests {
    use weft_core::store::{KvKey, RowForm};

    use super::*;

    #[test]
    fn rows_of_another_shape_or_at_no_home_do_not_fit() {
        let fit =
            Fit { fingerprint: "model".to_owned(), dtype: Dtype::Bf16, layers: 2, kv_width: 4 };
        let found = Header {
            fingerprint: "model".to_owned(),
            dtype: Dtype::Bf16,
            form: RowForm::Full,
            layers: 2,
            kv_width: 4,
            reuse: "exact".to_owned(),
            parent: KvKey::NOTHING,
            home_position: 0,
            tokens: vec![1],
            prefill_us: 1,
        };
        let reason = |found: &Header| fit.check(found, &Homes::default()).unwrap_err().name();
        assert_eq!(reason(&Header { dtype: Dtype::F32, ..found.clone() }), "dtype");
        assert_eq!(reason(&Header { layers: 3, ..found.clone() }), "layers_x_width");
        assert_eq!(reason(&Header { kv_width: 8, ..found.clone() }), "layers_x_width");
        assert_eq!(reason(&found), "elsewhere");
    }
}
