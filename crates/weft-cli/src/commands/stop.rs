//! `weft stop [NAME|PID]`: ends a server after its running answers.

use std::process::ExitCode;

use crate::args::StopArgs;
use crate::error::CliError;
use crate::models;
use crate::resident::{self, Client};
use crate::terminal;

pub(crate) fn run(args: &StopArgs) -> Result<ExitCode, CliError> {
    let mut servers = resident::servers()?;
    if let Some(which) = &args.which {
        servers.retain(|server| is_called(server, which));
    }
    // A server is listed with each of its models.
    servers.dedup_by_key(|server| server.facts.pid);
    match &servers[..] {
        [server] => {
            server.stop()?;
            let (model, pid) = (&server.facts.model, server.facts.pid);
            terminal::note(false, &format!("{model} (process {pid}) has ended"));
            Ok(ExitCode::SUCCESS)
        }
        [] => Err(CliError::Unhealthy(match &args.which {
            Some(which) => format!("no server of yours is {which:?}; `weft ps` lists them"),
            None => "no server of yours is running".to_owned(),
        })),
        all => {
            let pids: Vec<String> = all.iter().map(|server| server.facts.pid.to_string()).collect();
            Err(CliError::Usage(format!(
                "{} servers are running; give a process: {}",
                all.len(),
                pids.join(", ")
            )))
        }
    }
}

/// By process, by a name that means its model, or by the name without its organisation.
fn is_called(server: &Client, which: &str) -> bool {
    let model = &server.facts.model;
    let short = model.rsplit('/').next().unwrap_or(model);
    server.facts.pid.to_string() == which
        || *model == models::full_name(which)
        || short.eq_ignore_ascii_case(which)
}
