//! `weft rm MODEL`: deletes a model from the hub cache, and never anything outside of it.

use std::io::{IsTerminal, stdin};
use std::path::PathBuf;
use std::process::ExitCode;

use weft_core::hub::{self, CachedModel, HubEnv, RepoRef};

use crate::args::RmModelArgs;
use crate::error::CliError;
use crate::models;
use crate::size;
use crate::terminal;

pub(crate) fn run(args: &RmModelArgs) -> Result<ExitCode, CliError> {
    let env = HubEnv::from_env()?;
    let cached = hub::list(&env)?;
    // All names are looked up before anything is deleted.
    let found: Result<Vec<_>, _> =
        args.names.iter().map(|name| find(name, &env, &cached)).collect();
    for (model, folder) in found? {
        let what = format!("{} ({})", model.id, size::bytes(model.size_bytes));
        if !args.yes && !agrees(&format!("delete {what} in {}?", folder.display()))? {
            terminal::note(false, &format!("kept {what}"));
            continue;
        }
        std::fs::remove_dir_all(&folder).map_err(CliError::io(folder.display().to_string()))?;
        // Lock files are empty; those that are left do no harm.
        if let Some(name) = folder.file_name() {
            let _ = std::fs::remove_dir_all(env.cache.join(".locks").join(name));
        }
        terminal::note(false, &format!("deleted {what}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The cached model that a name means, and its folder.
fn find<'a>(
    name: &str,
    env: &HubEnv,
    cached: &'a [CachedModel],
) -> Result<(&'a CachedModel, PathBuf), CliError> {
    let refuse = |reason: &str| Err(CliError::Usage(format!("{name:?} {reason}")));
    if name == models::BUNDLED {
        return refuse("is part of the program and cannot be deleted");
    }
    if name.contains('@') {
        return refuse("names a revision; name the model alone to delete all its revisions");
    }
    if name.starts_with(['/', '.', '~']) {
        return refuse(
            "is a path; `weft rm` deletes only models of the hub cache: see `weft list`",
        );
    }
    let full = models::full_name(name);
    let Some(model) = cached.iter().find(|model| model.id == full) else {
        return match models::nearest_of(name, cached.iter().map(|model| model.id.clone())) {
            Some(near) => refuse(&format!("is not in the hub cache; did you mean {near}?")),
            None => refuse("is not in the hub cache; `weft list` shows what is"),
        };
    };
    let folder = RepoRef::parse(&full)?.cache_folder(env);
    let is_link = folder.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    if is_link || folder.parent() != Some(&env.cache) {
        return refuse(&format!("is a link at {}; delete it yourself", folder.display()));
    }
    Ok((model, folder))
}

/// Asks on the terminal; only `y` and `yes` agree.
fn agrees(question: &str) -> Result<bool, CliError> {
    if !stdin().is_terminal() {
        return Err(CliError::Usage(
            "there is no terminal to ask on; give -y to delete without a question".to_owned(),
        ));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    stdin().read_line(&mut answer).map_err(CliError::io("stdin"))?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}
