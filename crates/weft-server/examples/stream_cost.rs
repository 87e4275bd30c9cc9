//! What streaming costs: a device that computes nothing says 2,000 tokens a second, one client
//! reads them, and the processor time that the server's own threads took is reported as a share of
//! one core. Also what a request's first token takes over the same request to the library. Prints
//! JSON with all samples; the first number on the command line says how often all of it is
//! measured.
//!
//! `cargo run --release -p weft-server --example stream_cost -- 5`

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weft_core::chunk::{Repair, Reuse};
use weft_core::engine::{Engine, Request};
use weft_core::prompt::{Conversation, Message};
use weft_core::sampling::Sampling;
use weft_server::{Loaded, Options, Server};

use weft_testing::stub::{self, Control};

const TOKENS: usize = 4000;
const STREAMS: usize = 5;
const REQUESTS: usize = 200;
const BODY_OF_ONE: &str = r#"{"stream": true, "max_tokens": 1, "temperature": 0, "messages": [{"role": "user", "content": "Who is it?"}]}"#;

fn main() {
    let rounds = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(1);
    let control = Arc::new(Control::default());
    let address = serve(&control);
    let runs: Vec<Value> = (0..rounds)
        .map(|_| {
            let first_token = measure_first_token(address, &control);
            json!({"first_token": first_token, "stream": measure_stream(address, &control)})
        })
        .collect();
    let report = json!({
        "command": std::env::args().collect::<Vec<_>>(),
        "commit": commit(),
        "debug_build": cfg!(debug_assertions),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "load_average": std::fs::read_to_string("/proc/loadavg").ok(),
        "runs": runs,
    });
    println!("{}", serde_json::to_string_pretty(&report).expect("a report is plain JSON"));
}

fn measure_first_token(address: SocketAddr, control: &Control) -> Value {
    control.step_us.store(0, Ordering::Relaxed);
    let by_library = first_tokens_of_library();
    let _warm: Vec<Duration> = (0..REQUESTS).map(|_| first_token(address)).collect();
    let served: Vec<Duration> = (0..REQUESTS).map(|_| first_token(address)).collect();
    json!({
        "added_us": us(median(&served)) - us(median(&by_library)),
        "served_us": served.into_iter().map(us).collect::<Vec<_>>(),
        "library_us": by_library.into_iter().map(us).collect::<Vec<_>>(),
    })
}

fn measure_stream(address: SocketAddr, control: &Arc<Control>) -> Value {
    control.step_us.store(500, Ordering::Relaxed);
    let before = [cpu_time("tokio"), cpu_time("weft-engine")];
    let start = Instant::now();
    let n_events: usize = (0..STREAMS).map(|_| stream(address)).sum();
    let wall = start.elapsed();
    let share = |time: Duration| time.as_secs_f64() / wall.as_secs_f64() * 100.0;
    let sockets = share(cpu_time("tokio") - before[0]);
    let engine = share(cpu_time("weft-engine") - before[1]);
    let library = share_of_library(control);
    json!({
        "events": n_events,
        "tokens_per_s": (STREAMS * TOKENS) as f64 / wall.as_secs_f64(),
        "percent_of_a_core": {
            "sockets": sockets,
            "engine": engine,
            // The engine and the device's pacing without a server.
            "library": library,
            "server": sockets + engine - library,
        },
    })
}

/// The commit of the checkout that this is run in.
fn commit() -> Option<String> {
    let git = ["describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"];
    let output = std::process::Command::new("git").args(git).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What the engine and the device's pacing take without a server, in percent of a core.
fn share_of_library(control: &Arc<Control>) -> f64 {
    let control = Arc::clone(control);
    let thread = std::thread::Builder::new().name("library".to_owned()).spawn(move || {
        let model = stub::model();
        let mut engine = stub::engine(&model, "a", &control);
        let (start, before) = (Instant::now(), cpu_time("library"));
        for _ in 0..STREAMS {
            let sampling =
                Sampling { max_tokens: Some(TOKENS), temperature: 0.0, ..Sampling::default() };
            engine.generate(Request::new(vec![5, 6, 7], sampling)).expect("room").for_each(drop);
        }
        (cpu_time("library") - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0
    });
    thread.expect("a thread").join().expect("no panic")
}

fn serve(control: &Arc<Control>) -> SocketAddr {
    let options = Options::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = Server::bind(options, |_| {}).expect("a free port");
    let address = server.address().expect("an address");
    let control = Arc::clone(control);
    std::thread::spawn(move || {
        server.run(
            "stub",
            Box::new(move || {
                let model = stub::model();
                let engine = stub::engine(&model, "a", &control);
                Ok(Loaded::new("stub", model, engine))
            }),
        )
    });
    while !is_up(address) {
        std::thread::sleep(Duration::from_millis(10));
    }
    address
}

fn is_up(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let head = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("it answers");
    line.contains(" 200 ")
}

/// A request on a connection that is open already is what clients make; opening one is not counted.
fn post(stream: &mut TcpStream, body: &str) {
    let n = body.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {n}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).expect("it reads");
}

fn first_token(address: SocketAddr) -> Duration {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    let start = Instant::now();
    post(&mut stream, BODY_OF_ONE);
    let mut lines = BufReader::new(stream).lines();
    lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("\"content\":\"a\"")));
    start.elapsed()
}

/// The same by the library: rendering, composing, one token.
fn first_tokens_of_library() -> Vec<Duration> {
    let model = stub::model();
    let mut engine: Engine = stub::engine(&model, "a", &Arc::default());
    let mut ask = || {
        let start = Instant::now();
        let conversation = Conversation::new(vec![Message::user("Who is it?")], None);
        let prompt = engine.compose_chat(&conversation, &[], Reuse::Exact, Repair::None);
        let prompt = prompt.expect("a prompt");
        let sampling = Sampling { max_tokens: Some(1), temperature: 0.0, ..Sampling::default() };
        let mut answer = engine.generate(Request::new(prompt, sampling)).expect("room");
        answer.next();
        start.elapsed()
    };
    let _warm: Vec<Duration> = (0..REQUESTS).map(|_| ask()).collect();
    (0..REQUESTS).map(|_| ask()).collect()
}

fn stream(address: SocketAddr) -> usize {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let body = BODY_OF_ONE.replace("\"max_tokens\": 1", &format!("\"max_tokens\": {TOKENS}"));
    post(&mut stream, &body);
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.take_while(|line| !line.contains("[DONE]")).filter(|l| l.starts_with("data: ")).count()
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() / 2]
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Processor time that the threads of this name took so far.
fn cpu_time(name: &str) -> Duration {
    const TICKS_PER_SECOND: f64 = 100.0;
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let ticks = tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (head, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let is_it = head.split_once('(')?.1.starts_with(name);
        is_it.then(|| fields[11].parse::<f64>().ok().zip(fields[12].parse::<f64>().ok()))?
    });
    Duration::from_secs_f64(
        ticks.map(|(user, system)| user + system).sum::<f64>() / TICKS_PER_SECOND,
    )
}
