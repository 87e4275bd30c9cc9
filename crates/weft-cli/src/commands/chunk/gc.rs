//! `weft chunk gc`: cleans the folder of KV rows, and prints what was freed.

use weft_core::store::{KvKey, Store};

use super::{print_warnings, remote, rows_of};
use crate::answer::print;
use crate::args::{CacheArgs, GcArgs};
use crate::error::CliError;
use crate::load;
use crate::size;
use crate::tiers::{Budget, RegisteredChunks};

pub(super) fn run(args: &GcArgs) -> Result<(), CliError> {
    if args.there.remote.is_some() {
        return remote::gc(args);
    }
    let budget = Budget::new(&args.cache);
    let folder = budget.folder.clone().unwrap_or_default();
    let Some(mut store) = budget.open_store().map_err(CliError::Unhealthy)? else {
        return Err(CliError::Usage(
            "with --disk-cache 0 there is no folder to clean; leave it out".to_owned(),
        ));
    };
    let (model, registered) = super::open(&args.model, &args.cache)?;
    pin(&mut store, &registered);
    let temp_files = store.stats().swept_temp_files;
    let (damaged, damaged_bytes) =
        store.empty_quarantine().map_err(CliError::io(folder.display().to_string()))?;
    let mut freed = vec![
        size::plural(temp_files as usize, "left-over file"),
        format!(
            "{}, {}",
            size::plural(damaged as usize, "damaged file"),
            size::bytes(damaged_bytes)
        ),
    ];
    if args.other_models {
        let without_files = CacheArgs { no_cache: true, ..args.cache.clone() };
        let ours = load::load_model(model, &args.model, &without_files)?.fingerprint();
        let (files, bytes) = remove_others(&mut store, &ours);
        freed.push(format!(
            "{} of other models, {}",
            size::plural(files, "file"),
            size::bytes(bytes)
        ));
    }
    let (used, evicted) = (store.used_bytes(), store.stats().evicted);
    store.set_budget(budget.disk_bytes);
    freed.push(format!(
        "{} over the budget, {}",
        size::plural((store.stats().evicted - evicted) as usize, "file"),
        size::bytes(used - store.used_bytes())
    ));
    print_warnings(&mut store);
    let mut text: String = freed.iter().map(|freed| format!("freed {freed}\n")).collect();
    text += &format!(
        "left  {}, {} of {} in {}\n",
        size::plural(store.entries().count(), "file"),
        size::bytes(store.used_bytes()),
        size::bytes(budget.disk_bytes),
        folder.display()
    );
    print(&text)
}

/// Rows of pinned chunks stay, even beyond the budget.
fn pin(store: &mut Store, registered: &RegisteredChunks) {
    let chunks = registered.library.list(&weft_core::chunk::Which::default());
    for chunk in chunks.into_iter().filter(|chunk| chunk.pinned) {
        rows_of(store, chunk).iter().for_each(|(key, _)| store.pin(key));
    }
}

fn remove_others(store: &mut Store, fingerprint: &str) -> (usize, u64) {
    let others: Vec<(KvKey, u64)> = store
        .entries()
        .filter(|(_, entry)| entry.header.fingerprint != fingerprint)
        .map(|(key, entry)| (*key, entry.bytes))
        .collect();
    let removed = others.iter().filter(|(key, _)| store.remove(key));
    removed.fold((0, 0), |(files, sum), (_, bytes)| (files + 1, sum + bytes))
}
