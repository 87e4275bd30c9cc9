//! `weft chat`: a conversation in which each turn and each document is a chunk.

mod complete;
mod dialogue;
mod lines;
mod words;

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
use crate::models;
use crate::session::Session;
use crate::size;
use crate::sources::{self, Source};
use crate::terminal;

/// Commands: name, argument, what they do.
const COMMANDS: [(&str, &str, &str); 12] = [
    ("/system", "TEXT", "set the system prompt (or @FILE, or a chunk) and start over"),
    ("/context", "FILE", "put a document before the next message"),
    ("/use", "ID", "put a registered chunk before the next message"),
    ("/drop", "ID", "remove a document from the conversation, by name or id"),
    ("/chunks", "", "show where the last answer's context came from, and the documents"),
    ("/verify", "", "compute the last answer again from scratch, and show the differences"),
    ("/think", "", "let the model reason before it answers"),
    ("/no_think", "", "let the model answer at once"),
    ("/clear", "", "forget the conversation, and start over with the first documents"),
    ("/stats", "", "show the last answer's statistics"),
    ("/help", "", "this list"),
    ("/quit", "", "leave"),
];

const KEYS: &str = "\
Tab            completes commands, files and names of chunks
Ctrl-C         clears the line, or ends an answer; Ctrl-D leaves";

pub(crate) fn run(mut args: ChatArgs) -> Result<ExitCode, CliError> {
    let documents = words::take(&mut args)?;
    sampling::check(&args.sampling)?;
    let system = args.prompt.system.as_deref().map(sources::system).transpose()?;
    interrupt::install();
    let session = Session::open_for(&args.model, &args.cache, &sources::named(&documents))?;
    if !session.has_template() {
        let message = "this model has no chat template; `weft run --raw` continues a text";
        return Err(CliError::Usage(message.to_owned()));
    }
    load::introduce(&args.model, args.model.quiet);
    terminal::note(args.model.quiet, "/help lists the commands");
    let mut chat = Chat::new(args, system.as_ref(), session)?;
    for document in documents {
        chat.add_document(document.clone(), Find::Document(document))?;
    }
    chat.dialogue.keep_waiting();
    chat.talk()?;
    chat.end();
    Ok(ExitCode::SUCCESS)
}

struct Chat {
    args: ChatArgs,
    session: Session,
    /// The names of the registered chunks.
    registered: Vec<String>,
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
    fn new(args: ChatArgs, system: Option<&Source>, session: Session) -> Result<Self, CliError> {
        let thinking = args.prompt.thinking();
        let dialogue = Dialogue::default();
        let registered = session.chunk_names();
        let mut chat = Self { args, session, registered, dialogue, thinking, last: None };
        if let Some(system) = system {
            let text = chat.session.system_text(system)?;
            chat.dialogue.set_system(text);
        }
        Ok(chat)
    }

    fn talk(&mut self) -> Result<(), CliError> {
        let mut lines = Lines::open(&models::short_name(self.args.model.model.as_deref()))?;
        while let Some(line) = lines.next(self.names())? {
            lines.save();
            match self.read(line.trim()) {
                Ok(Turn::Say(text)) => self.say(&text)?,
                Ok(Turn::Nothing) => {}
                Ok(Turn::Leave) => break,
                Err(error) => terminal::error(&error.to_string()),
            }
        }
        Ok(())
    }

    /// The names that `/use` and `/drop` take.
    fn names(&self) -> Vec<String> {
        let said = self.dialogue.documents().map(|document| document.name.clone());
        let mut names: Vec<String> = self.registered.iter().cloned().chain(said).collect();
        names.sort();
        names.dedup();
        names
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
            "/help" | "/?" => self.note(&help()),
            "/clear" => self.start_over(),
            "/system" => self.set_system(rest)?,
            "/context" => {
                let source = sources::document(&complete::path(rest.trim()).to_string_lossy())?;
                self.add_document(source.clone(), Find::Document(source))?;
            }
            "/use" => {
                let word = rest.trim().to_owned();
                self.add_document(Source::Chunk(word.clone()), Find::Registered(word))?;
            }
            "/drop" => self.drop(rest.trim())?,
            "/chunks" => self.show_chunks(),
            "/verify" => self.verify()?,
            "/think" => self.thinking = Some(true),
            "/no_think" => self.thinking = Some(false),
            "/stats" => self.show_stats(),
            _ if command.starts_with('/') => {
                return Err(unknown(command));
            }
            _ => return Ok(Turn::Say(line.to_owned())),
        }
        Ok(Turn::Nothing)
    }

    fn set_system(&mut self, word: &str) -> Result<(), CliError> {
        if word.trim().is_empty() {
            let message = "/system needs a text, @FILE or a chunk";
            return Err(CliError::Usage(message.to_owned()));
        }
        let text = self.session.system_text(&sources::system(word)?)?;
        self.dialogue.set_system(text);
        self.start_over();
        Ok(())
    }

    /// Forgets the turns, and says which documents are there again.
    fn start_over(&mut self) {
        self.dialogue.start_over();
        self.last = None;
        let describe = |Document { name, tokens, .. }: &Document| {
            format!("{name}: {}", size::plural(*tokens, "token"))
        };
        let waiting: Vec<String> = self.dialogue.waiting().iter().map(describe).collect();
        self.note(&match waiting.is_empty() {
            true => "started over".to_owned(),
            false => format!("started over; {}, before the next message", waiting.join(", ")),
        });
    }

    /// Puts a document before the next message.
    fn add_document(&mut self, source: Source, find: Find) -> Result<(), CliError> {
        let found = self.session.find(find)?;
        let kind = found.kind;
        let document = Document::new(source, found);
        let name = &document.name;
        if kind == Kind::System {
            return Err(CliError::Usage(format!(
                "{name} is a system prompt; /system {name} starts over with it"
            )));
        }
        let tokens = size::plural(document.tokens, "token");
        self.note(&format!("{name}: {tokens}, before the next message"));
        self.dialogue.add_document(document);
        Ok(())
    }

    fn drop(&mut self, word: &str) -> Result<(), CliError> {
        let is_meant = |document: &&Document| {
            !word.is_empty() && (document.name == word || document.id.to_string().starts_with(word))
        };
        let found = self.dialogue.documents().find(is_meant).map(|document| document.id);
        if !found.is_some_and(|id| self.dialogue.drop(&id)) {
            return Err(CliError::Usage(format!(
                "{word:?} is not a document of this conversation; /chunks lists them"
            )));
        }
        self.note(&format!("{word} is removed"));
        Ok(())
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
            let id = id.short();
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
                terminal::error(&error.to_string());
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
            speculate: self.args.speculate.speculate,
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

fn help() -> String {
    let line = |(name, argument, does): &(&str, &str, &str)| {
        format!("{:<15}{does}\n", format!("{name} {argument}"))
    };
    COMMANDS.iter().map(line).collect::<String>() + KEYS
}

/// The error for a command that does not exist, with the nearest one.
fn unknown(command: &str) -> CliError {
    let known = COMMANDS.iter().map(|(name, ..)| (*name).to_owned());
    let near = models::nearest_of(command, known);
    let near = near.map_or_else(String::new, |near| format!("did you mean {near}? "));
    CliError::Usage(format!("{command} is not a command; {near}/help lists all commands"))
}
