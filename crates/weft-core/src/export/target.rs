//! Where a model is written: beside the target under a temporary name, which is renamed at the end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{ExportError, ExportForm};
use crate::files::{beside, folder_of};
use crate::model::is_gguf;
use crate::store::platform::sync_folder;
use crate::weights::WriteError;

/// What is being written. If it is dropped before [`Target::commit`], nothing is left.
pub(super) struct Target {
    to: PathBuf,
    temporary: PathBuf,
    /// Where the replaced folder is kept until the new one has its name.
    replaced: PathBuf,
}

impl Target {
    /// Checks that `to` can be written. `from` is what the model is read from.
    pub(super) fn new(
        to: &Path,
        form: ExportForm,
        force: bool,
        from: Option<&Path>,
    ) -> Result<Self, ExportError> {
        let refuse = |reason: String| ExportError::Target { path: to.to_owned(), reason };
        match (form.is_gguf(), is_gguf(to)) {
            (true, false) => {
                let reason = format!("{form} is written as a file whose name ends in .gguf");
                return Err(refuse(reason));
            }
            (false, true) => {
                let reason = format!("{form} is written as a folder; --form q4_0 writes a file");
                return Err(refuse(reason));
            }
            _ => {}
        }
        if to.file_name().is_none() {
            return Err(refuse("it does not name a new file or folder".to_owned()));
        }
        let parent = folder_of(to);
        if !parent.is_dir() {
            return Err(refuse(format!("{} is not a folder; make it first", parent.display())));
        }
        if let Ok(found) = fs::canonicalize(to) {
            if from.and_then(|from| fs::canonicalize(from).ok()).as_ref() == Some(&found) {
                return Err(refuse("it is the model that is read; name another path".to_owned()));
            }
            check_replaceable(&found, form, force).map_err(refuse)?;
        }
        let (temporary, replaced) = (beside(to, "tmp"), beside(to, "old"));
        Ok(Self { to: to.to_owned(), temporary, replaced })
    }

    /// The path to write to.
    pub(super) fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Gives what was written its name.
    pub(super) fn commit(self) -> Result<(), ExportError> {
        self.rename().map_err(|source| {
            ExportError::Write(WriteError::Write { path: self.to.clone(), source })
        })
    }

    fn rename(&self) -> io::Result<()> {
        if self.temporary.is_dir() {
            sync_folder(&self.temporary)?;
        }
        // A file is replaced at once; a folder has to make room first.
        if self.temporary.is_dir() && self.to.exists() {
            fs::rename(&self.to, &self.replaced)?;
            if let Err(error) = fs::rename(&self.temporary, &self.to) {
                fs::rename(&self.replaced, &self.to)?;
                return Err(error);
            }
            fs::remove_dir_all(&self.replaced)?;
        } else {
            fs::rename(&self.temporary, &self.to)?;
        }
        sync_folder(self.temporary.parent().unwrap_or(Path::new(".")))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // After a commit neither exists.
        let _ = match self.temporary.is_dir() {
            true => fs::remove_dir_all(&self.temporary),
            false => fs::remove_file(&self.temporary),
        };
    }
}

/// Checks that what is found at a path may be replaced. An empty folder always may.
fn check_replaceable(found: &Path, form: ExportForm, force: bool) -> Result<(), String> {
    if !form.is_gguf() && is_empty_folder(found) {
        return Ok(());
    }
    let is_replaceable = if form.is_gguf() { found.is_file() } else { is_model_folder(found) };
    match (is_replaceable, force) {
        (true, true) => Ok(()),
        (true, false) => Err("it exists already; --force replaces it".to_owned()),
        (false, _) => {
            let what = if form.is_gguf() { "a file" } else { "a folder with a model only" };
            Err(format!("it is not {what}, so weft does not replace it; name another path"))
        }
    }
}

fn is_empty_folder(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// Whether a folder holds a model and nothing that could be missed: no other folders.
fn is_model_folder(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    let no_folders = entries.flatten().all(|entry| !entry.path().is_dir());
    no_folders && folder.join("config.json").is_file()
}
