//! Lines from the user. If stdin is a terminal, they can be edited and have a history.

use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config as LineConfig, Editor};

use crate::error::CliError;
use crate::settings::user_folder;
use crate::terminal;

pub(super) struct Lines {
    editor: Editor<(), FileHistory>,
    history: Option<PathBuf>,
}

impl Lines {
    pub(super) fn open() -> Result<Self, CliError> {
        let failed = |error: ReadlineError| CliError::Usage(format!("the terminal: {error}"));
        let config = LineConfig::builder().auto_add_history(true).build();
        let lines = FileHistory::with_config(&config);
        let mut editor = Editor::with_history(config, lines).map_err(failed)?;
        let history = history_file();
        if let Some(path) = &history {
            // There is no history the first time.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, history })
    }

    /// The next line; `None` at the end of input.
    pub(super) fn next(&mut self) -> Result<Option<String>, CliError> {
        match self.editor.readline("> ") {
            Ok(line) => Ok(Some(line)),
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => Ok(None),
            Err(error) => Err(CliError::Usage(format!("the terminal: {error}"))),
        }
    }

    /// Saves the history after each line, because the program may end during an answer.
    pub(super) fn save(&mut self) {
        let Some(path) = &self.history else { return };
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        if folder.is_err() || self.editor.save_history(path).is_err() {
            terminal::note(false, &format!("the history could not be saved to {}", path.display()));
        }
    }
}

fn history_file() -> Option<PathBuf> {
    Some(user_folder("XDG_STATE_HOME", ".local/state")?.join("history"))
}
