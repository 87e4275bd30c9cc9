//! A client of a resident server: HTTP over its socket, one connection per request.
//!
//! A request of HTTP/1.0 is answered without chunks, and the connection's end is the body's end.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weft_core::chunk::{Library, Shelf};
use weft_core::engine::{Cancel, Verification};
use weft_server::resident::protocol::{
    self, Event, Facts, Find, Found, Question, Refusal, Warm, Warmed,
};

use crate::answer::{Answer, Origin, Printer, Style};
use crate::error::CliError;
use crate::interrupt;
use crate::terminal;
use crate::tiers::RegisteredChunks;

/// How often Ctrl-C is looked for.
const WATCH: Duration = Duration::from_millis(20);
/// How long a server may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// A model of a server.
pub(crate) struct Client {
    path: PathBuf,
    pub(crate) facts: Facts,
}

impl Client {
    /// Asks a server what it is: each of its models is a client.
    pub(super) fn open(path: &Path, stream: UnixStream) -> io::Result<Vec<Self>> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let (_, body) = exchange(stream, "GET", protocol::FACTS, b"")?;
        let all: Vec<Facts> = serde_json::from_reader(body)?;
        Ok(all.into_iter().map(|facts| Self { path: path.to_owned(), facts }).collect())
    }

    /// The line that takes the place of the one after loading.
    pub(crate) fn describe(&self) -> String {
        let Facts { model, device, pid, .. } = &self.facts;
        let device = match device.split_once(" (") {
            Some((short, _)) if !terminal::is_verbose() => short,
            _ => device,
        };
        format!("{model} · {device} · resident server, process {pid}")
    }

    /// Answers a question and shows the answer.
    pub(crate) fn answer(&self, question: &Question, style: Style) -> Result<Answer, CliError> {
        let mut events = self.post(protocol::ANSWER, question)?;
        let mut next = || read_event(&mut events);
        let (id, prompt_tokens, end) = match next()? {
            Event::Started { id, prompt_tokens, end } => (id, prompt_tokens, end),
            Event::Failed(refusal) => return Err(CliError::Resident(refusal)),
            _ => return Err(failed(io::ErrorKind::InvalidData.into())),
        };
        let mut printer = Printer::new(style, prompt_tokens, &end);
        let bar = printer.bar();
        self.until_interrupted(&id, || {
            loop {
                match next()? {
                    Event::Started { .. } => {}
                    Event::Prefill(done) => Printer::prefill(&bar, done),
                    Event::Text(text) => printer.text(&text)?,
                    Event::Failed(refusal) => return Err(CliError::Resident(refusal)),
                    Event::Done { finished, names } => {
                        let parts = printer.finish(&finished)?;
                        let origin = Origin::Resident(id.clone());
                        return Ok(Answer { origin, parts, finished: *finished, names });
                    }
                }
            }
        })
    }

    /// Runs something; Ctrl-C cancels the answer meanwhile, which then ends like any other.
    fn until_interrupted<T>(&self, id: &str, run: impl FnOnce() -> T) -> T {
        let cancel = Cancel::default();
        let _guard = interrupt::ends(&cancel);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if cancel.is_cancelled() {
                        // If the server is gone, the answer ends too.
                        let _ = self.post(protocol::CANCEL, &id);
                        return;
                    }
                    thread::park_timeout(WATCH);
                }
            });
            let done = run();
            is_over.store(true, Ordering::Relaxed);
            watch.thread().unpark();
            done
        })
    }

    pub(crate) fn verify(&self, answer: &str) -> Result<Verification, CliError> {
        self.call(protocol::VERIFY, &answer)
    }

    pub(crate) fn find(&self, find: &Find) -> Result<Found, CliError> {
        self.call(protocol::FIND, find)
    }

    /// The registered chunks, from their files.
    pub(crate) fn library(&self) -> Result<Library, CliError> {
        match &self.facts.shelf {
            Some(folder) => Ok(RegisteredChunks::load(Shelf::at(folder.clone()))?.library),
            None => Ok(Library::default()),
        }
    }

    pub(crate) fn warm(&self, warm: &Warm) -> Result<Warmed, CliError> {
        self.call(protocol::WARM, warm)
    }

    /// Reports that the files of chunks have changed.
    pub(crate) fn refresh(&self) -> Result<(), CliError> {
        self.call(protocol::REFRESH, &())
    }

    /// Ends the server, and waits until its socket is closed.
    pub(crate) fn stop(&self) -> Result<(), CliError> {
        self.post(protocol::STOP, &())?;
        while Path::new(&self.path).exists() {
            thread::sleep(WATCH);
        }
        Ok(())
    }

    fn call<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, CliError> {
        let body = self.post(path, body)?;
        serde_json::from_reader(body).map_err(|error| failed(error.into()))
    }

    fn post(&self, path: &str, body: &impl Serialize) -> Result<BufReader<UnixStream>, CliError> {
        let json = serde_json::to_vec(body).map_err(|error| failed(error.into()))?;
        let gone = |error| failed(io::Error::new(io::ErrorKind::ConnectionRefused, error));
        let stream = UnixStream::connect(&self.path).map_err(gone)?;
        let path = format!("{path}?model={}", encoded(&self.facts.model));
        let (status, body) = exchange(stream, "POST", &path, &json).map_err(failed)?;
        if status == 200 {
            return Ok(body);
        }
        let refusal: Result<Refusal, _> = serde_json::from_reader(body);
        Err(refusal.map_or_else(|error| failed(error.into()), CliError::Resident))
    }
}

/// A name as part of a query.
fn encoded(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    name.bytes().map(encode).collect()
}

fn failed(error: io::Error) -> CliError {
    CliError::io("the resident server")(error)
}

/// The next event of an answer.
fn read_event(events: &mut impl BufRead) -> Result<Event, CliError> {
    let mut line = String::new();
    // Empty lines keep the connection alive.
    while line.trim().is_empty() {
        line.clear();
        if events.read_line(&mut line).map_err(failed)? == 0 {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
    }
    serde_json::from_str(&line).map_err(|error| failed(error.into()))
}

/// Sends a request; returns the status and the body.
fn exchange(
    mut stream: UnixStream,
    method: &str,
    path: &str,
    body: &[u8],
) -> io::Result<(u16, BufReader<UnixStream>)> {
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut response = BufReader::new(stream);
    let mut line = String::new();
    response.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    while !line.trim().is_empty() {
        line.clear();
        (&mut response).take(64 << 10).read_line(&mut line)?;
    }
    Ok((status.ok_or(io::ErrorKind::InvalidData)?, response))
}
