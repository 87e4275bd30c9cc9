//! `weft ps`: the servers of this user, with their models.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use weft_server::resident::protocol::Facts;

use crate::answer::print;
use crate::args::PsArgs;
use crate::error::CliError;
use crate::resident;
use crate::size;
use crate::terminal;

pub(crate) fn run(args: &PsArgs) -> Result<ExitCode, CliError> {
    let servers: Vec<Facts> = resident::servers()?.into_iter().map(|server| server.facts).collect();
    if args.json {
        let all: Vec<Value> = servers.iter().map(facts).collect();
        print(&format!("{:#}\n", Value::Array(all)))?;
    } else if servers.is_empty() {
        terminal::note(false, "no server is running; `weft serve MODEL` starts one");
    } else {
        print(&table(&servers))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn uptime(server: &Facts) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_secs(server.started))
}

fn facts(server: &Facts) -> Value {
    json!({
        "model": server.model,
        "ready": server.is_ready,
        "state": server.state,
        "progress": server.progress,
        "size_bytes": server.bytes,
        "stays_s": server.stays_s,
        "device": server.device,
        "pid": server.pid,
        "address": server.address,
        "context": server.context,
        "lanes": server.lanes,
        "running": server.running,
        "memory_bytes": server.resident_bytes,
        "kv_bytes": server.kv_bytes.0,
        "kv_reserved_bytes": server.kv_bytes.1,
        "uptime_s": uptime(server).as_secs(),
    })
}

fn table(servers: &[Facts]) -> String {
    let heads = [
        "model", "size", "state", "until", "context", "lanes", "pid", "address", "memory", "up",
        "device",
    ];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(servers.iter().map(|server| {
        let loaded = |text: String| if server.is_ready { text } else { "-".to_owned() };
        [
            server.model.clone(),
            if server.bytes > 0 { size::bytes(server.bytes) } else { "?".to_owned() },
            state(server),
            loaded(until(server)),
            loaded(server.context.to_string()),
            loaded(format!("{} of {}", server.running, server.lanes)),
            server.pid.to_string(),
            server.address.clone(),
            server.resident_bytes.map_or_else(|| "?".to_owned(), size::bytes),
            time(uptime(server)),
            loaded(server.device.clone()),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let line = |row: &[String; 11]| {
        let cells = row.iter().enumerate().map(|(i, cell)| {
            let cell = terminal::without_controls(cell).into_owned();
            format!("{cell:<width$}", width = width(i).unwrap_or_default())
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Whether the model is loaded, and how far.
fn state(server: &Facts) -> String {
    match server.progress {
        Some(done) => format!("{} {:.0} %", server.state, done * 100.0),
        None => server.state.clone(),
    }
}

/// How long the model stays loaded if nobody uses it.
fn until(server: &Facts) -> String {
    let stays = server.stays_s.map(|s| format!("in {}", time(Duration::from_secs(s))));
    stays.unwrap_or_else(|| "forever".to_owned())
}

/// A time in its largest unit: `3 h`.
fn time(time: Duration) -> String {
    match time.as_secs() {
        s if s < 120 => format!("{s} s"),
        s if s < 2 * 3600 => format!("{} min", s / 60),
        s if s < 48 * 3600 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_still_loads_is_listed_as_such() {
        let facts = |is_ready: bool| Facts {
            pid: 7,
            version: String::new(),
            model: "a model".to_owned(),
            is_ready,
            state: if is_ready { "loaded" } else { "loading" }.to_owned(),
            progress: (!is_ready).then_some(0.426),
            bytes: 3 << 20,
            stays_s: is_ready.then_some(540),
            device: "CPU".to_owned(),
            context: 512,
            lanes: 8,
            running: 3,
            address: "127.0.0.1:8080".to_owned(),
            resident_bytes: None,
            kv_bytes: (5, 6),
            started: 0,
            has_template: true,
            shelf: None,
            identity: Value::Null,
        };
        let text = table(&[facts(true), facts(false)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("a model ") && lines[1].contains("3 of 8"), "{text}");
        assert!(lines[1].contains("loaded ") && lines[1].contains("in 9 min"), "{text}");
        assert!(lines[2].contains("loading 43 %") && !lines[2].contains("of 8"), "{text}");
        let json = super::facts(&facts(false));
        assert_eq!((&json["ready"], &json["running"]), (&json!(false), &json!(3)));
        assert_eq!((&json["kv_bytes"], &json["kv_reserved_bytes"]), (&json!(5), &json!(6)));
    }
}
