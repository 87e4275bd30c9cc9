//! `weft chat`: a conversation in which each turn and each document is a chunk.

mod complete;
mod dialogue;
mod lines;
mod words;

use std::process::ExitCode;

use weft_core::chunk::{ChunkId, Kind};
use weft_core::prompt::Conversation;

use self::dialogue::Dialogue;
use self::lines::Lines;
use super::reply::{Reply, reply, template};
use super::{sampling, verify};
use crate::answer::{self, Answer, Style};
use crate::args::ChatArgs;
use crate::context_report;
use crate::error::CliError;
use crate::interrupt;
use crate::load::{self, Loaded};
use crate::models;
use crate::size;
use crate::sources::{ChunkResolver, Source};
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
    ("/clear", "", "forget the conversation"),
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
    let system = args.prompt.system.as_deref().map(Source::system).transpose()?;
    interrupt::install();
    let loaded = load::load(&args.model, &args.cache)?;
    template(&loaded.model)?;
    load::introduce(&args.model, args.model.quiet);
    terminal::note(args.model.quiet, "/help lists the commands");
    let mut chat = Chat::new(args, system.as_ref(), loaded)?;
    for document in &documents {
        let id = chat.resolver.document(&mut chat.loaded.engine, document)?;
        chat.add_document(id)?;
    }
    chat.talk()?;
    chat.end();
    Ok(ExitCode::SUCCESS)
}

struct Chat {
    args: ChatArgs,
    loaded: Loaded,
    resolver: ChunkResolver,
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
    fn new(args: ChatArgs, system: Option<&Source>, mut loaded: Loaded) -> Result<Self, CliError> {
        let resolver = ChunkResolver::open(&args.cache, &mut loaded);
        let thinking = args.prompt.thinking();
        let dialogue = Dialogue::default();
        let mut chat = Self { args, loaded, resolver, dialogue, thinking, last: None };
        if let Some(system) = system {
            chat.set_system(system)?;
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
        let said = self.dialogue.documents().map(|id| self.display_name(id));
        let mut names: Vec<String> = self.resolver.registered_names().chain(said).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Saves rows for later runs.
    fn end(&mut self) {
        if !self.args.cache.no_cache {
            self.loaded.engine.save(false);
        }
        self.resolver.save_use_counts(&self.loaded.engine);
        self.loaded.print_warnings();
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
            "/clear" => self.dialogue.clear(),
            "/system" => self.set_system(&Source::system(rest)?)?,
            "/context" => {
                let source = Source::document(&complete::path(rest.trim()).to_string_lossy())?;
                let id = self.resolver.document(&mut self.loaded.engine, &source)?;
                self.add_document(id)?;
            }
            "/use" => {
                let id = self.resolver.registered(&mut self.loaded.engine, rest.trim())?;
                self.add_document(id)?;
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

    fn set_system(&mut self, source: &Source) -> Result<(), CliError> {
        let text = self.resolver.system_text(&mut self.loaded.engine, source)?;
        self.dialogue = Dialogue::new(text);
        Ok(())
    }

    /// Puts a document before the next message.
    fn add_document(&mut self, id: ChunkId) -> Result<(), CliError> {
        let chunk = self.loaded.engine.library().get(&id)?;
        let (name, tokens) = (self.display_name(&id), chunk.tokens.len());
        if chunk.kind == Kind::System {
            return Err(CliError::Usage(format!(
                "{name} is a system prompt; /system {name} starts over with it"
            )));
        }
        self.dialogue.add_document(id);
        let tokens = size::plural(tokens, "token");
        self.note(&format!("{name}: {tokens}, before the next message"));
        Ok(())
    }

    /// A document's name, or the start of its id.
    fn display_name(&self, id: &ChunkId) -> String {
        self.resolver.name(id).unwrap_or_else(|| id.to_string()[..8].to_owned())
    }

    fn drop(&mut self, word: &str) -> Result<(), CliError> {
        let is_meant = |id: &&ChunkId| {
            !word.is_empty() && (self.display_name(id) == word || id.to_string().starts_with(word))
        };
        let found = self.dialogue.documents().find(is_meant).copied();
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
            let name = |id: &ChunkId| self.resolver.name(id);
            eprint!(
                "{}",
                context_report::draw(&answer.finished.report, &name, terminal::has_colour())
            );
        }
        let library = self.loaded.engine.library();
        for chunk in self.dialogue.documents().filter_map(|id| library.get(id).ok()) {
            let when = if self.dialogue.is_waiting(&chunk.id) { "waiting" } else { "said" };
            let (id, tokens) = (&chunk.id.to_string()[..8], chunk.tokens.len());
            self.note(&format!(
                "{when:<8}{id}  {tokens:>6} tokens  {}",
                self.display_name(&chunk.id)
            ));
        }
        if self.last.is_none() && self.dialogue.documents().next().is_none() {
            self.note("no answer yet, and no document");
        }
    }

    fn verify(&mut self) -> Result<(), CliError> {
        match &self.last {
            Some(answer) => {
                let verification = verify::verify(&mut self.loaded, answer)?;
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
        self.loaded.print_warnings();
        match answer {
            Ok(answer) => {
                self.dialogue.answer(&answer.parts.answer);
                self.last = Some(answer);
                Ok(())
            }
            Err(error @ (CliError::Request(_) | CliError::Prompt(_) | CliError::Chunk(_))) => {
                self.dialogue.unsay();
                terminal::error(&error.to_string());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn answer(&mut self) -> Result<Answer, CliError> {
        let engine = &self.loaded.engine;
        let messages = self.dialogue.messages(engine.library());
        let mut prompt = engine.compose_chat(&Conversation::new(messages, self.thinking))?;
        self.dialogue.name_documents(&mut prompt, engine.library());
        let how = Reply {
            thinking: self.thinking,
            sampling: &self.args.sampling,
            style: Style { stream: true, quiet: self.args.model.quiet },
            use_cache: !self.args.cache.no_cache,
        };
        reply(&mut self.loaded, prompt, &how)
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
