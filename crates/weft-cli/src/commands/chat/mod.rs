//! `weft chat`: a conversation in which each turn and each document is a chunk.

mod dialogue;
mod lines;

use std::process::ExitCode;

use weft_core::chunk::{ChunkId, Kind};
use weft_server::resident::protocol::{Find, Question};

use self::dialogue::{Dialogue, Document};
use self::lines::Lines;
use super::{sampling, verify};
use crate::answer::{self, Answer, Style};
use crate::args::ChatArgs;
use crate::context_report;
use crate::error::CliError;
use crate::interrupt;
use crate::load;
use crate::session::Session;
use crate::sources::{self, Source};
use crate::terminal;

const HELP: &str = "\
/system TEXT   set the system prompt (or @FILE, or a chunk) and start over
/context FILE  put a document before the next message
/use ID        put a registered chunk before the next message
/drop ID       remove a document from the conversation, by name or id
/chunks        show where the last answer's context came from, and the documents
/verify        compute the last answer again from scratch, and show the differences
/think         let the model reason before it answers
/no_think      let the model answer at once
/clear         forget the conversation
/stats         show the last answer's statistics
/help          this list
/quit          leave (Ctrl-D does too; Ctrl-C ends an answer)";

pub(crate) fn run(mut args: ChatArgs) -> Result<ExitCode, CliError> {
    args.model.model = args.name.take().or(args.model.model);
    sampling::check(&args.sampling)?;
    interrupt::install();
    let session = Session::open(&args.model, &args.cache)?;
    if !session.has_template() {
        let message = "this model has no chat template; `weft run --raw` continues a text";
        return Err(CliError::Usage(message.to_owned()));
    }
    load::introduce(&args.model, args.model.quiet);
    terminal::note(args.model.quiet, "/help lists the commands");
    let mut chat = Chat::new(args, session)?;
    chat.talk()?;
    chat.end();
    Ok(ExitCode::SUCCESS)
}

struct Chat {
    args: ChatArgs,
    session: Session,
    dialogue: Dialogue,
    thinking: Option<bool>,
    last: Option<Answer>,
}

/// The effect of a line.
enum Turn {
    Say(String),
    Nothing,
    Leave,
}

impl Chat {
    fn new(args: ChatArgs, session: Session) -> Result<Self, CliError> {
        let thinking = args.prompt.thinking();
        let system = args.prompt.system.clone();
        let dialogue = Dialogue::default();
        let mut chat = Self { args, session, dialogue, thinking, last: None };
        if let Some(system) = system {
            chat.set_system(&system)?;
        }
        Ok(chat)
    }

    fn talk(&mut self) -> Result<(), CliError> {
        let mut lines = Lines::open()?;
        while let Some(line) = lines.next()? {
            lines.save();
            match self.read(line.trim()) {
                Ok(Turn::Say(text)) => self.say(&text)?,
                Ok(Turn::Nothing) => {}
                Ok(Turn::Leave) => break,
                Err(error) => self.note(&format!("weft: {error}")),
            }
        }
        Ok(())
    }

    /// Saves rows for later runs.
    fn end(&mut self) {
        self.session.save();
    }

    /// Prints a reply to a command.
    fn note(&self, text: &str) {
        terminal::note(false, text);
    }

    /// Runs a command, or returns the message for the model.
    fn read(&mut self, line: &str) -> Result<Turn, CliError> {
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match command {
            "" => {}
            "/quit" | "/exit" | "/bye" => return Ok(Turn::Leave),
            "/help" | "/?" => self.note(HELP),
            "/clear" => self.dialogue.clear(),
            "/system" => self.set_system(rest)?,
            "/context" | "/use" => self.add_document(command, rest.trim())?,
            "/drop" => self.drop(rest.trim()),
            "/chunks" => self.show_chunks(),
            "/verify" => self.verify()?,
            "/think" => self.thinking = Some(true),
            "/no_think" => self.thinking = Some(false),
            "/stats" => self.show_stats(),
            _ if command.starts_with('/') => {
                self.note(&format!("{command} is not a command; /help lists all commands"));
            }
            _ => return Ok(Turn::Say(line.to_owned())),
        }
        Ok(Turn::Nothing)
    }

    fn set_system(&mut self, word: &str) -> Result<(), CliError> {
        let text = self.session.system_text(&sources::system(word)?)?;
        self.dialogue = Dialogue::new(text);
        Ok(())
    }

    /// Adds a document or a chunk to the next message.
    fn add_document(&mut self, command: &str, word: &str) -> Result<(), CliError> {
        let (source, find) = match command {
            "/use" => (Source::Chunk(word.to_owned()), Find::Registered(word.to_owned())),
            _ => {
                let source = sources::document(word)?;
                (source.clone(), Find::Document(source))
            }
        };
        let found = self.session.find(find)?;
        if found.kind == Kind::System {
            self.note(&format!("{word} is a system prompt; /system {word} starts over with it"));
        } else {
            let document = Document::new(source, found);
            self.note(&format!(
                "{}: {} tokens, before the next message",
                document.name, document.tokens
            ));
            self.dialogue.add_document(document);
        }
        Ok(())
    }

    fn drop(&mut self, word: &str) {
        let is_meant = |document: &&Document| {
            !word.is_empty() && (document.name == word || document.id.to_string().starts_with(word))
        };
        let found = self.dialogue.documents().find(is_meant).map(|document| document.id);
        match found {
            Some(id) if self.dialogue.drop(&id) => self.note(&format!("{word} is removed")),
            _ => self.note(&format!("{word} is not a document of this conversation; see /chunks")),
        }
    }

    fn show_chunks(&self) {
        if let Some(answer) = &self.last {
            let name = |id: &ChunkId| answer.names.get(id).cloned();
            eprint!(
                "{}",
                context_report::draw(&answer.finished.report, &name, terminal::has_colour())
            );
        }
        for Document { id, name, tokens, .. } in self.dialogue.documents() {
            let when = if self.dialogue.is_waiting(id) { "waiting" } else { "said" };
            let id = &id.to_string()[..8];
            self.note(&format!("{when:<8}{id}  {tokens:>6} tokens  {name}"));
        }
        if self.last.is_none() && self.dialogue.documents().next().is_none() {
            self.note("no answer yet, and no document");
        }
    }

    fn verify(&mut self) -> Result<(), CliError> {
        match &self.last {
            Some(answer) => {
                let verification = self.session.verify(answer)?;
                self.note(&verify::describe(&verification));
            }
            None => self.note("no answer yet"),
        }
        Ok(())
    }

    /// Answers one message. A refused request is reported and forgotten, and the chat continues.
    fn say(&mut self, text: &str) -> Result<(), CliError> {
        self.dialogue.say(text);
        let answer = self.answer();
        self.session.print_warnings();
        match answer {
            Ok(answer) => {
                self.dialogue.answer(&answer.parts.answer);
                self.last = Some(answer);
                Ok(())
            }
            Err(error) if error.is_refusal() => {
                self.dialogue.unsay();
                self.note(&format!("weft: {error}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn answer(&mut self) -> Result<Answer, CliError> {
        let question = Question {
            asked: self.dialogue.asked(),
            thinking: self.thinking,
            sampling: sampling::overrides(&self.args.sampling),
            use_cache: !self.args.cache.no_cache,
        };
        let style = Style { stream: true, quiet: self.args.model.quiet };
        self.session.answer(&question, style)
    }

    fn show_stats(&self) {
        match &self.last {
            Some(answer) => self.note(&answer::stats_line(&answer.finished)),
            None => self.note("no answer yet"),
        }
    }
}
