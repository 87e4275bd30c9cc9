//! `weft chunk export ID FILE` and `weft chunk import FILE`

use weft_core::chunk::{self, Chunk, Homes, Library, Parcel, SignedParcel, SignedRows};
use weft_core::model::Model;
use weft_core::store::SigningKey;

use super::add::register;
use crate::answer::print;
use crate::args::{CacheArgs, ExportArgs, ImportArgs, TrustArgs};
use crate::error::CliError;
use crate::load;
use crate::resident;
use crate::size;
use crate::sources;
use crate::terminal;

pub(super) fn export(args: &ExportArgs) -> Result<(), CliError> {
    let file = args.file.display();
    let note = |text: &str| terminal::note(args.model.quiet, &format!("{file}: {text}"));
    let Some(key) = key(&args.trust)? else {
        let (registered, _) = super::registered(&args.model, &args.cache)?;
        chunk::export(registered.library.find(&args.id)?, None, &args.file)?;
        note("the text, without rows, because nobody accepts them unsigned; give --key for them");
        return Ok(());
    };
    let (model, registered) = super::open(&args.model, &args.cache)?;
    let chunk = registered.library.find(&args.id)?;
    let homes = homes(&args.trust, &model, &registered.library, chunk)?;
    let mut store = super::store(&args.cache);
    let rows = store.as_mut().map(|store| SignedRows { store, homes: &homes, key: &key });
    let exported = chunk::export(chunk, rows, &args.file)?;
    exported.left_out.iter().for_each(|reason| terminal::warn(reason));
    let (files, bytes) = (size::plural(exported.files, "file"), size::bytes(exported.bytes));
    note(&format!("the text, and {files} of rows, {bytes}"));
    if exported.elsewhere > 0 {
        note(&format!(
            "{} of rows left out, because they attended to other documents, or to a system prompt \
             that is not registered (--system names one)",
            size::plural(exported.elsewhere, "file")
        ));
    }
    Ok(())
}

pub(super) fn import(args: &ImportArgs) -> Result<(), CliError> {
    let key = key(&args.trust)?;
    if !args.file.exists() {
        return Err(CliError::Usage(format!("{}: there is no such file", args.file.display())));
    }
    let mut parcel = Parcel::open(&args.file)?;
    let (model, mut registered) = super::open(&args.model, &args.cache)?;
    let mut metadata = parcel.metadata().clone();
    metadata.extend(args.name.iter().map(|name| ("name".to_owned(), name.clone())));
    let chunk = Chunk::new(&model.tokenizer, parcel.kind(), parcel.text(), Default::default());
    let id = chunk
        .map_err(CliError::from)
        .and_then(|chunk| register(&mut registered, chunk, metadata, args.model.quiet))
        .map_err(|error| error.about(&format!("{} (see --name)", args.file.display())))?;
    print(&format!("{id}\n"))?;
    let chunk = registered.library.get(&id)?;
    let is_complete = parcel.has_rows()? && {
        match parcel.signed_by(key.as_ref()) {
            Ok(parcel) => {
                let homes = homes(&args.trust, &model, &registered.library, chunk)?;
                import_rows(args, model, parcel, &homes)?
            }
            Err(reason) => {
                let file = args.file.display();
                terminal::warn(&format!("no rows of {file} are used: {reason}"));
                false
            }
        }
    };
    if !is_complete {
        let name = chunk.name().map_or_else(|| id.to_string(), str::to_owned);
        let tokens = size::plural(chunk.tokens.len(), "token");
        terminal::note(
            args.model.quiet,
            &format!(
                "{name}: {tokens}, computed here by the first question; `weft chunk warm {name}` \
                 computes them now"
            ),
        );
    }
    super::refresh(resident::find(&args.model, &args.cache).as_ref())
}

/// The key whose rows the user trusts.
fn key(args: &TrustArgs) -> Result<Option<SigningKey>, CliError> {
    let read = |path: &std::path::PathBuf| {
        let error = CliError::io(format!("--key {}", path.display()));
        SigningKey::read(path).map_err(error)
    };
    args.key.as_ref().map(read).transpose()
}

/// The places at which rows of the chunk are accepted.
fn homes(
    args: &TrustArgs,
    model: &Model,
    registered: &Library,
    chunk: &Chunk,
) -> Result<Homes, CliError> {
    // Without a template, no prompt has chunks.
    let Some(template) = &model.template else { return Ok(Homes::default()) };
    let mut library = registered.clone();
    if let Some(word) = args.system.as_deref().filter(|text| !text.trim().is_empty()) {
        library.restore(sources::system(word)?.system(&model.tokenizer, registered)?);
    }
    Ok(Homes::new(template, &model.tokenizer, &library, chunk))
}

/// Imports rows, and returns whether there are any. The chunk is registered already. Rows that
/// cannot be imported cost only time.
fn import_rows(
    args: &ImportArgs,
    model: Model,
    parcel: SignedParcel<'_>,
    homes: &Homes,
) -> Result<bool, CliError> {
    let Some(mut store) = super::store(&args.cache) else {
        terminal::warn(
            "KV rows are not imported, because there is no folder for them; give --cache-dir",
        );
        return Ok(false);
    };
    // Only a device knows which rows fit it.
    let without_files = CacheArgs { no_cache: true, ..args.cache.clone() };
    let fingerprint = load::load_model(model, &args.model, &without_files)?.fingerprint();
    let imported = parcel.import_rows(&mut store, homes, &fingerprint)?;
    imported.refused.iter().for_each(|reason| terminal::warn(reason));
    super::print_warnings(&mut store);
    terminal::note(
        args.model.quiet,
        &format!("{} of rows imported", size::plural(imported.files, "file")),
    );
    Ok(imported.files > 0)
}
