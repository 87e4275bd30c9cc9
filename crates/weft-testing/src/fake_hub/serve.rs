//! The connections of the fake hub: reads a request, logs it, and responds.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use super::answer::answer;
use super::{Fault, Request, Server, Shared, State};

/// Serves connections until the hub stops, each in its own thread.
pub(super) fn accept(shared: &Arc<Shared>, server: Server, listener: &TcpListener) {
    for stream in listener.incoming() {
        if shared.lock().is_stopping {
            return;
        }
        if let Ok(stream) = stream {
            let shared = Arc::clone(shared);
            std::thread::spawn(move || serve(&shared, server, &stream));
        }
    }
}

/// One request per connection.
fn serve(shared: &Shared, server: Server, stream: &TcpStream) {
    let Some(request) = read_request(server, stream) else { return };
    let fault = {
        let mut state = shared.lock();
        state.log.push(request.clone());
        state.take_fault(&request)
    };
    shared.changed.notify_all();
    answer(shared, &request, fault.as_ref(), stream);
}

fn read_request(server: Server, stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut request = Request { server, method, path, range: None, authorization: None };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value.trim().to_owned()),
            "authorization" => request.authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    Some(request)
}

impl State {
    /// The oldest fault for such a request.
    fn take_fault(&mut self, request: &Request) -> Option<Fault> {
        let i = self.faults.iter().position(|f| {
            f.server == request.server
                && f.method == request.method
                && request.path.ends_with(&f.path_end)
        })?;
        let fault = self.faults[i].fault.clone();
        if !self.faults[i].is_lasting {
            self.faults.remove(i);
        }
        Some(fault)
    }
}
