//! The responses of the fake hub: those of the real hub, possibly changed by a fault.

use std::io::Write;
use std::net::TcpStream;

use super::{Fault, Request, Server, Shared, State, StoredFile};

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// Responds to a request, correctly or with a fault.
pub(super) fn answer(
    shared: &Shared,
    request: &Request,
    fault: Option<&Fault>,
    stream: &TcpStream,
) {
    if matches!(fault, Some(Fault::Hold)) {
        shared.wait_until(|state| state.is_gate_open);
    }
    let mut answer = route(shared, request, fault);
    spoil(&mut answer, fault);
    let is_head = request.method == "HEAD";
    let (n_sent, stalls) = match fault {
        Some(Fault::CutAfter(n) | Fault::IgnoreRangeAndCutAfter(n)) => (*n, false),
        Some(Fault::StallAfter(n)) => (*n, true),
        _ => (answer.body.len(), false),
    };
    let mut out = head_of(&answer).into_bytes();
    if !is_head {
        out.extend(&answer.body[..n_sent.min(answer.body.len())]);
    }
    let mut stream = stream;
    // The client may have closed the connection.
    let _ = stream.write_all(&out).and_then(|()| stream.flush());
    if stalls {
        shared.wait_until(|_| false);
    }
}

fn head_of(answer: &Answer) -> String {
    let mut head = format!("HTTP/1.1 {} Scripted\r\nConnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head + "\r\n"
}

impl Answer {
    fn new(status: u16, body: Vec<u8>) -> Self {
        let headers = vec![("Content-Length".to_owned(), body.len().to_string())];
        Answer { status, headers, body }
    }

    fn error(status: u16, code: &str) -> Self {
        let mut answer = Answer::new(status, b"no".to_vec());
        if !code.is_empty() {
            answer.set("X-Error-Code", code);
        }
        answer
    }

    /// It has its own body, like real redirects: the length of this body must not be taken for the
    /// file's.
    fn redirect(status: u16, to: &str) -> Self {
        let mut answer = Answer::new(status, b"Found. Redirecting".to_vec());
        answer.set("Location", to);
        answer
    }

    fn set(&mut self, name: &str, value: &str) {
        self.headers.retain(|(other, _)| other != name);
        if !value.is_empty() {
            self.headers.push((name.to_owned(), value.to_owned()));
        }
    }
}

fn spoil(answer: &mut Answer, fault: Option<&Fault>) {
    match fault {
        Some(Fault::Status(status, code)) => *answer = Answer::error(*status, code),
        Some(Fault::Redirect(to)) => *answer = Answer::redirect(302, to),
        Some(Fault::SayLength(n)) => {
            answer.body.resize(*n, b'?');
            answer.set("Content-Length", &n.to_string());
        }
        Some(Fault::NoLength) => answer.set("Content-Length", ""),
        Some(Fault::Body(body)) => {
            answer.body.clone_from(body);
            answer.set("Content-Length", &body.len().to_string());
        }
        Some(Fault::Header(name, value)) => answer.set(name, value),
        _ => {}
    }
}

fn route(shared: &Shared, request: &Request, fault: Option<&Fault>) -> Answer {
    let state = shared.lock();
    let path = request.path.split('?').next().unwrap_or_default();
    let path: Vec<String> = path.split('/').skip(1).map(unescape).collect();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let expected = state.token.as_ref().map(|token| format!("Bearer {token}"));
    if request.server == Server::Hub && expected.is_some() && request.authorization != expected {
        return Answer::error(401, "GatedRepo");
    }
    match (request.server, &path[..]) {
        (Server::Hub, ["api", "models", org, name, "revision", revision]) => {
            list(&state, &format!("{org}/{name}"), revision)
        }
        (Server::Hub, ["api", "resolve-cache", org, name, sha, file @ ..]) => {
            match state.find(org, name, sha, file) {
                Ok(file) => small(file, request, fault),
                Err(answer) => answer,
            }
        }
        (Server::Hub, [org, name, "resolve", sha, file @ ..]) => {
            match state.find(org, name, sha, file) {
                Ok(file) if file.is_large() => elsewhere(shared, file),
                Ok(_) if state.redirects_small_files => {
                    let file = file.join("/");
                    Answer::redirect(307, &format!("/api/resolve-cache/{org}/{name}/{sha}/{file}"))
                }
                Ok(file) => small(file, request, fault),
                Err(answer) => answer,
            }
        }
        (Server::Cdn, [org, name, sha, file @ ..]) => match state.find(org, name, sha, file) {
            Ok(file) => content(file, request, fault),
            Err(answer) => answer,
        },
        _ => Answer::error(404, ""),
    }
}

impl State {
    fn find(&self, org: &str, name: &str, sha: &str, file: &[&str]) -> Result<&StoredFile, Answer> {
        let (repo, file) = (format!("{org}/{name}"), file.join("/"));
        let of_repo = || self.files.iter().filter(|f| f.repo == repo);
        if of_repo().next().is_none() {
            return Err(Answer::error(404, "RepoNotFound"));
        }
        let found = of_repo().find(|f| f.sha == sha && f.name == file);
        found.ok_or_else(|| Answer::error(404, "EntryNotFound"))
    }
}

fn list(state: &State, repo: &str, revision: &str) -> Answer {
    if !state.files.iter().any(|f| f.repo == repo) {
        return Answer::error(404, "RepoNotFound");
    }
    let by_ref = state.refs.iter().find(|(r, name, _)| r == repo && name == revision);
    let by_sha = state.files.iter().find(|f| f.repo == repo && f.sha == revision);
    let sha = by_ref.map(|(_, _, sha)| sha).or(by_sha.map(|f| &f.sha));
    let Some(sha) = sha else { return Answer::error(404, "RevisionNotFound") };
    let files = state.files.iter().filter(|f| f.repo == repo && f.sha == *sha);
    let sibling = |file: &StoredFile| match (state.lists_names_alone, file.is_large()) {
        (true, _) => serde_json::json!({"rfilename": file.name}),
        (false, true) => {
            // The blob of a large file is a pointer to its content.
            let (pointer, lfs) = ("0".repeat(40), serde_json::json!({"sha256": file.etag()}));
            serde_json::json!({"rfilename": file.name, "blobId": pointer, "lfs": lfs})
        }
        (false, false) => serde_json::json!({"rfilename": file.name, "blobId": file.etag()}),
    };
    let siblings: Vec<_> = files.map(sibling).collect();
    let body = serde_json::json!({ "id": repo, "sha": sha, "siblings": siblings });
    Answer::new(200, body.to_string().into_bytes())
}

/// A redirect to the CDN, with the headers of the file.
fn elsewhere(shared: &Shared, file: &StoredFile) -> Answer {
    let StoredFile { repo, sha, name, content } = file;
    let mut answer = Answer::redirect(302, &format!("http://{}/{repo}/{sha}/{name}", shared.cdn));
    answer.set("ETag", "\"of-the-redirect\"");
    answer.set("X-Linked-Etag", &format!("\"{}\"", file.etag()));
    answer.set("X-Linked-Size", &content.len().to_string());
    answer
}

fn small(file: &StoredFile, request: &Request, fault: Option<&Fault>) -> Answer {
    let mut answer = content(file, request, fault);
    answer.set("ETag", &format!("W/\"{}\"", file.etag()));
    answer
}

fn content(file: &StoredFile, request: &Request, fault: Option<&Fault>) -> Answer {
    let start = request
        .range
        .as_deref()
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let (start, shift) = match (start, fault) {
        (_, Some(Fault::IgnoreRange | Fault::IgnoreRangeAndCutAfter(_))) => (None, 0),
        (start, Some(Fault::ShiftRange(shift))) => (start, *shift),
        (start, _) => (start, 0),
    };
    let n_bytes = file.content.len();
    let Some(start) = start else { return Answer::new(200, file.content.clone()) };
    if start >= n_bytes {
        let mut answer = Answer::error(416, "");
        answer.set("Content-Range", &format!("bytes */{n_bytes}"));
        return answer;
    }
    let mut answer = Answer::new(206, file.content[start..].to_vec());
    let first = start as u64 + shift;
    answer.set("Content-Range", &format!("bytes {first}-{}/{n_bytes}", n_bytes - 1));
    answer
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
