//! `weft chunk export ID FILE` and `weft chunk import FILE`

use weft_core::chunk::{self, Chunk, Parcel};
use weft_core::model::Model;

use super::add::register;
use crate::answer::print;
use crate::args::{CacheArgs, ExportArgs, ImportArgs};
use crate::error::CliError;
use crate::load;
use crate::resident;
use crate::size;
use crate::terminal;

pub(super) fn export(args: &ExportArgs) -> Result<(), CliError> {
    let (registered, _) = super::registered(&args.model, &args.cache)?;
    let chunk = registered.library.find(&args.id)?;
    let mut store = super::store(&args.cache);
    let exported = chunk::export(chunk, store.as_mut(), &args.file)?;
    exported.left_out.iter().for_each(|reason| terminal::warn(reason));
    let (files, bytes) = (size::plural(exported.files, "file"), size::bytes(exported.bytes));
    let file = args.file.display();
    terminal::note(args.model.quiet, &format!("{file}: the text, and {files} of rows, {bytes}"));
    Ok(())
}

pub(super) fn import(args: &ImportArgs) -> Result<(), CliError> {
    let mut parcel = Parcel::open(&args.file)?;
    let (model, mut registered) = super::open(&args.model, &args.cache)?;
    let mut metadata = parcel.metadata().clone();
    metadata.extend(args.name.iter().map(|name| ("name".to_owned(), name.clone())));
    let chunk = Chunk::new(&model.tokenizer, parcel.kind(), parcel.text(), Default::default());
    let id = chunk
        .map_err(CliError::from)
        .and_then(|chunk| register(&mut registered, chunk, metadata))
        .map_err(|error| error.about(&format!("{} (see --name)", args.file.display())))?;
    print(&format!("{id}\n"))?;
    if parcel.has_rows()? {
        import_rows(args, model, parcel)?;
    }
    super::refresh(resident::find(&args.model, &args.cache).as_ref())
}

/// The chunk is registered already. Rows that cannot be imported cost only time.
fn import_rows(args: &ImportArgs, model: Model, parcel: Parcel) -> Result<(), CliError> {
    let Some(mut store) = super::store(&args.cache) else {
        terminal::warn(
            "KV rows are not imported, because there is no folder for them; give --cache-dir",
        );
        return Ok(());
    };
    // Only a device knows which rows fit it.
    let without_files = CacheArgs { no_cache: true, ..args.cache.clone() };
    let fingerprint = load::load_model(model, &args.model, &without_files)?.fingerprint();
    let imported = parcel.import_rows(&mut store, &fingerprint)?;
    imported.refused.iter().for_each(|reason| terminal::warn(reason));
    super::print_warnings(&mut store);
    terminal::note(
        args.model.quiet,
        &format!("{} of rows imported", size::plural(imported.files, "file")),
    );
    Ok(())
}
