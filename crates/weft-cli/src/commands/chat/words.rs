//! The words of `weft chat [MODEL] [FILE]...`: which is the model, and which are documents.

use std::path::Path;

use crate::args::ChatArgs;
use crate::error::CliError;
use crate::models;
use crate::sources::{self, Source};

/// Moves the model to its flag and reads the documents, before a model is loaded.
pub(super) fn take(args: &mut ChatArgs) -> Result<Vec<Source>, CliError> {
    let words = std::mem::take(&mut args.words);
    let is_file = |word: &String| Path::new(word).exists() && !Path::new(word).is_dir();
    let (files, mut names): (Vec<String>, Vec<String>) = words.into_iter().partition(is_file);
    if names.len() > 1 {
        return Err(CliError::Usage(format!(
            "{:?} is not a file; check the name, or give `--context {}` for a registered chunk",
            names[1], names[1]
        )));
    }
    if let Some(model) = names.pop() {
        if !model.contains(['/', '\\']) && !models::is_model(&model) {
            return Err(CliError::Usage(format!(
                "{model:?} is neither a model nor a file: {}",
                models::instead(&model)
            )));
        }
        args.model.model = Some(model);
    }
    let documents = args.context.iter().chain(&files);
    if documents.clone().any(|name| name == "-") {
        return Err(CliError::Usage(
            "a chat reads its messages from stdin, so `-` cannot be a document; save it to a file"
                .to_owned(),
        ));
    }
    documents.map(|name| sources::document(name)).collect()
}
