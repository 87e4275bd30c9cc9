//! Lines from the user. If stdin is a terminal, they can be edited, completed and recalled.

use std::borrow::Cow;
use std::cell::Cell;
use std::path::PathBuf;

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config as LineConfig, Context, Editor, Helper};

use super::complete;
use crate::error::CliError;
use crate::settings::user_folder;
use crate::terminal;

pub(super) struct Lines {
    editor: Editor<Watcher, FileHistory>,
    history: Option<PathBuf>,
    prompt: String,
}

impl Lines {
    /// `name` stands before each line.
    pub(super) fn open(name: &str) -> Result<Self, CliError> {
        let failed = |error: ReadlineError| CliError::Usage(format!("the terminal: {error}"));
        let config = LineConfig::builder()
            .auto_add_history(true)
            .completion_type(CompletionType::List)
            .build();
        let lines = FileHistory::with_config(&config);
        let mut editor = Editor::with_history(config, lines).map_err(failed)?;
        editor.set_helper(Some(Watcher::default()));
        let history = history_file();
        if let Some(path) = &history {
            // There is no history the first time.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, history, prompt: format!("{name}> ") })
    }

    /// The next line; `None` at the end of input. Ctrl-C discards the line. Tab completes commands,
    /// files, and these names of chunks.
    pub(super) fn next(&mut self, names: Vec<String>) -> Result<Option<String>, CliError> {
        if let Some(watcher) = self.editor.helper_mut() {
            watcher.names = names;
        }
        loop {
            match self.editor.readline(&self.prompt) {
                Ok(line) => return Ok(Some(line)),
                Err(ReadlineError::Eof) => return Ok(None),
                Err(ReadlineError::Interrupted) => {
                    if self.editor.helper().is_none_or(|watcher| watcher.is_empty.get()) {
                        terminal::note(false, "Ctrl-D leaves, and so does /quit");
                    }
                }
                Err(error) => return Err(CliError::Usage(format!("the terminal: {error}"))),
            }
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

/// What the editor calls while a line is edited.
#[derive(Default)]
struct Watcher {
    names: Vec<String>,
    /// Whether the line is empty. The editor's error for Ctrl-C does not say so.
    is_empty: Cell<bool>,
}

impl Helper for Watcher {}

impl Validator for Watcher {}

impl Hinter for Watcher {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Highlighter for Watcher {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        Cow::Owned(terminal::dim_out(prompt))
    }
}

impl Completer for Watcher {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        Ok(complete::complete(&line[..position], &self.names))
    }
}
