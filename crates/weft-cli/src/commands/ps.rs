//! `weft ps`: the servers of this user.

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
    let heads = ["model", "pid", "address", "context", "lanes", "memory", "up", "device"];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(servers.iter().map(|server| {
        [
            if server.is_ready { server.model.clone() } else { "(not ready)".to_owned() },
            server.pid.to_string(),
            server.address.clone(),
            server.context.to_string(),
            format!("{} of {}", server.running, server.lanes),
            server.resident_bytes.map_or_else(|| "?".to_owned(), size::bytes),
            time(uptime(server)),
            server.device.clone(),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let line = |row: &[String; 8]| {
        let cells = row.iter().enumerate().map(|(i, cell)| {
            let cell = terminal::without_controls(cell).into_owned();
            format!("{cell:<width$}", width = width(i).unwrap_or_default())
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
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
        assert!(lines[2].starts_with("(not ready) ") && !lines[2].contains("a model"), "{text}");
        let json = super::facts(&facts(false));
        assert_eq!((&json["ready"], &json["running"]), (&json!(false), &json!(3)));
        assert_eq!((&json["kv_bytes"], &json["kv_reserved_bytes"]), (&json!(5), &json!(6)));
    }
}
