//! The file of A's distributions on disk: opened and checked, or written whole or not at all.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;

use weft_core::compare::{BaseError, BaseHeader, BaseReader, BaseWriter, Distribution};
use weft_core::files::NewFile;
use weft_core::model::Model;

use super::report::Subject;
use crate::error::CliError;

/// A file that is read.
pub(super) struct Base {
    name: String,
    reader: BaseReader<BufReader<File>>,
}

impl Base {
    pub(super) fn open(path: &Path) -> Result<Self, CliError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(CliError::io(&name))?;
        let length = file.metadata().map_err(CliError::io(&name))?.len();
        let reader = BaseReader::new(BufReader::new(file), length).map_err(about(&name))?;
        Ok(Self { name, reader })
    }

    pub(super) fn window(&self) -> usize {
        self.reader.header().window
    }

    /// The file's tokens, if the model has its vocabulary.
    pub(super) fn tokens_for(&self, model: &Model) -> Result<Vec<u32>, CliError> {
        let BaseHeader { vocab, tokens, .. } = self.reader.header();
        if *vocab == model.config.vocab {
            return Ok(tokens.clone());
        }
        Err(CliError::Usage(format!(
            "{} is of a model with a vocabulary of {vocab} tokens, and {} has {}; make the file \
             with another form of the same model",
            self.name, model.name, model.config.vocab
        )))
    }

    pub(super) fn subject(&self) -> Subject {
        Subject::of_file(&self.name)
    }

    pub(super) fn read(&mut self) -> Result<Distribution, CliError> {
        self.reader.read().map_err(about(&self.name))
    }
}

fn about(name: &str) -> impl FnOnce(BaseError) -> CliError {
    let file = name.to_owned();
    move |source| match source {
        BaseError::Io(source) => CliError::Io { what: file, source },
        source => CliError::Base { file, source },
    }
}

/// A file that is written. It gets its name when it is complete, and is deleted if it never is.
pub(super) struct Saving {
    name: String,
    writer: BaseWriter<BufWriter<NewFile>>,
}

impl Saving {
    pub(super) fn new(
        path: &Path,
        window: usize,
        vocab: usize,
        tokens: &[u32],
    ) -> Result<Self, CliError> {
        let name = path.display().to_string();
        let file = BufWriter::new(NewFile::create(path).map_err(CliError::io(&name))?);
        let header = BaseHeader { window, vocab, tokens: tokens.to_vec() };
        let writer = BaseWriter::new(file, &header).map_err(CliError::io(&name))?;
        Ok(Self { name, writer })
    }

    pub(super) fn write(&mut self, logits: &[f32]) -> Result<(), CliError> {
        self.writer.write(logits).map_err(CliError::io(&self.name))
    }

    pub(super) fn finish(self) -> Result<(), CliError> {
        let written = self.writer.finish().and_then(|file| Ok(file.into_inner()?));
        written.and_then(NewFile::commit).map_err(CliError::io(&self.name))
    }
}
