//! `weft chat`: a conversation, with line editing and history.

use std::path::PathBuf;
use std::process::ExitCode;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config as LineConfig, Editor};
use weft::prompt::{Conversation, Message};

use super::reply::{Reply, reply, template};
use super::sampling;
use crate::answer::{self, Answer, Style};
use crate::args::ChatArgs;
use crate::error::CliError;
use crate::interrupt;
use crate::load::{self, Loaded};
use crate::settings::user_folder;
use crate::terminal;

const HELP: &str = "\
/system TEXT   set the system prompt and start over
/think         let the model think before it answers
/no_think      have it answer at once
/clear         forget the conversation
/stats         show the last answer's figures
/help          this list
/quit          leave (Ctrl-D does too; Ctrl-C ends an answer)";

pub(crate) fn run(mut args: ChatArgs) -> Result<ExitCode, CliError> {
    args.model.model = args.name.take().or(args.model.model);
    sampling::check(&args.sampling)?;
    interrupt::install();
    let loaded = load::load(&args.model, &args.cache)?;
    template(&loaded.model)?;
    terminal::note(args.model.quiet, "/help lists the commands");
    Chat::new(args, loaded).talk()?;
    Ok(ExitCode::SUCCESS)
}

struct Chat {
    args: ChatArgs,
    loaded: Loaded,
    messages: Vec<Message>,
    thinking: Option<bool>,
    last: Option<Answer>,
}

/// What a line asks for.
enum Turn {
    Say(String),
    Nothing,
    Leave,
}

impl Chat {
    fn new(args: ChatArgs, loaded: Loaded) -> Self {
        let thinking = args.prompt.thinking();
        let messages = args.prompt.system.iter().map(|text| Message::system(text)).collect();
        Self { args, loaded, messages, thinking, last: None }
    }

    fn talk(&mut self) -> Result<(), CliError> {
        let mut lines = Lines::open()?;
        while let Some(line) = lines.next()? {
            lines.save();
            match self.read(line.trim()) {
                Turn::Say(text) => self.say(&text)?,
                Turn::Nothing => {}
                Turn::Leave => break,
            }
        }
        Ok(())
    }

    /// Carries out a command, or finds what to say to the model.
    fn read(&mut self, line: &str) -> Turn {
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match command {
            "" => return Turn::Nothing,
            "/quit" | "/exit" | "/bye" => return Turn::Leave,
            "/help" | "/?" => terminal::note(false, HELP),
            "/clear" => self.messages.retain(Message::is_system),
            "/system" => self.messages = vec![Message::system(rest)],
            "/think" => self.thinking = Some(true),
            "/no_think" => self.thinking = Some(false),
            "/stats" => self.stats(),
            _ if command.starts_with('/') => {
                terminal::note(false, &format!("{command} is no command; /help lists them"));
            }
            _ => return Turn::Say(line.to_owned()),
        }
        Turn::Nothing
    }

    /// Answers one message. A request that is refused is told and forgotten; the chat goes on.
    fn say(&mut self, text: &str) -> Result<(), CliError> {
        self.messages.push(Message::user(text));
        match self.answer() {
            Ok(answer) => {
                self.messages.push(Message::assistant(&answer.parts.answer));
                self.last = Some(answer);
                Ok(())
            }
            Err(error @ (CliError::Request(_) | CliError::Prompt(_))) => {
                self.messages.pop();
                terminal::note(false, &format!("weft: {error}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn answer(&mut self) -> Result<Answer, CliError> {
        let conversation = Conversation::new(self.messages.clone(), self.thinking);
        let how = Reply {
            thinking: self.thinking,
            sampling: &self.args.sampling,
            style: Style { stream: true, quiet: self.args.model.quiet },
            use_cache: !self.args.cache.no_cache,
        };
        let prompt = self.loaded.engine.compose_chat(&conversation)?;
        reply(&mut self.loaded, prompt, &how)
    }

    fn stats(&self) {
        match &self.last {
            Some(answer) => terminal::note(false, &answer::figures(&answer.finished)),
            None => terminal::note(false, "no answer yet"),
        }
    }
}

/// Lines from the user, edited where stdin is a terminal.
struct Lines {
    editor: Editor<(), FileHistory>,
    history: Option<PathBuf>,
}

impl Lines {
    fn open() -> Result<Self, CliError> {
        let failed = |error: ReadlineError| CliError::Usage(format!("the terminal: {error}"));
        let config = LineConfig::builder().auto_add_history(true).build();
        let lines = FileHistory::with_config(&config);
        let mut editor = Editor::with_history(config, lines).map_err(failed)?;
        let history = history_file();
        if let Some(path) = &history {
            // There is none the first time.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, history })
    }

    /// The next line; none at the end of input.
    fn next(&mut self) -> Result<Option<String>, CliError> {
        match self.editor.readline("> ") {
            Ok(line) => Ok(Some(line)),
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => Ok(None),
            Err(error) => Err(CliError::Usage(format!("the terminal: {error}"))),
        }
    }

    /// Keeps the history after each line: an answer may be the last thing that happens.
    fn save(&mut self) {
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
