//! `weft serve [MODEL]...`: runs the server with the same engine as the other commands.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use weft_core::device::MAX_LANES;
use weft_server::{ModelName, Options, ServeError, Server};

use crate::args::{Alias, KeepLoaded, ServeArgs};
use crate::error::CliError;
use crate::load;
use crate::models;
use crate::resident;
use crate::served::ServedModels;
use crate::terminal;

/// How long an unused model of several stays loaded.
const KEEP_LOADED: Duration = Duration::from_secs(600);

pub(crate) fn run(args: ServeArgs) -> Result<ExitCode, CliError> {
    // Before the first thread: models come and go, and the process must not grow by that.
    weft_cpu::share_pools();
    let named = names(&args)?;
    let ServeArgs { mut model, mut cache, speculate, .. } = args;
    let speculate = speculate.speculate.unwrap_or_default();
    // A request without a limit is promised a whole context, and there can be one request per lane.
    cache.contexts = Some(MAX_LANES);
    load::wanted_launches(&model.device)?;
    let is_alone = named.len() == 1 && !args.allow_load;
    let options = Options {
        allowed_origins: args.allow_origin,
        strict_model: args.strict_model,
        reuse: args.reuse,
        api_key: args.api_key,
        insecure: args.insecure,
        allowed_hosts: args.allow_host,
        queue: args.queue,
        keep_loaded: match args.keep_loaded {
            Some(KeepLoaded(time)) => time,
            None => (!is_alone).then_some(KEEP_LOADED),
        },
        max_loaded: args.max_loaded,
        allow_load: args.allow_load,
        resident: if model.no_resident { None } else { resident::folder() },
        ..Options::new(SocketAddr::new(args.host, args.port))
    };
    let quiet = model.quiet;
    let server = Server::bind(options, move |text| terminal::note(quiet, text));
    let server = server.map_err(CliError::serve)?;
    let all = named.iter().map(|named| &named.name).chain(&model.draft);
    for name in all.filter(|name| !models::is_bundled(Some(name.as_str()))) {
        models::check_name(name, model.offline)?;
    }
    let address = server.address().map_err(CliError::io("the server's address"))?;
    let page = page(address);
    let others =
        if address.ip().is_unspecified() { " · other machines: this one's name" } else { "" };
    terminal::note(quiet, &format!("{}{others} · Ctrl-C ends", page.trim_end_matches('/')));
    if args.open {
        open_page(&page);
    }
    model.model = None;
    let served = ServedModels { args: model, cache, speculate, lowers_context: !is_alone };
    server.run_models(named, Arc::new(served)).map_err(CliError::serve)?;
    Ok(ExitCode::SUCCESS)
}

/// The models that the user names, with the names that clients use for them.
fn names(args: &ServeArgs) -> Result<Vec<ModelName>, CliError> {
    let given: Vec<&str> = match &args.names[..] {
        [] => vec![args.model.model.as_deref().unwrap_or(models::BUNDLED)],
        names => names.iter().map(String::as_str).collect(),
    };
    let mut named: Vec<ModelName> =
        given.iter().map(|name| ModelName::new(*name, id(Some(name)))).collect();
    if let [only] = &mut named[..] {
        let mut names = args.served_model_name.iter().cloned();
        only.id = names.next().unwrap_or_else(|| only.id.clone());
        only.aliases = names.collect();
    } else if !args.served_model_name.is_empty() {
        let message = "--served-model-name is for one model; give --alias NAME=MODEL for each name";
        return Err(CliError::Usage(message.to_owned()));
    }
    for Alias { name, model } in &args.alias {
        let is_meant = |named: &&mut ModelName| named.name == *model || named.id == *model;
        let Some(named) = named.iter_mut().find(is_meant) else {
            return Err(CliError::Usage(format!(
                "--alias {name}={model}: {model:?} is not among the models that are served; name \
                 it as on the command line"
            )));
        };
        named.aliases.push(name.clone());
    }
    let mut all: Vec<&str> = named
        .iter()
        .flat_map(|named| std::iter::once(&named.id).chain(&named.aliases))
        .map(String::as_str)
        .collect();
    all.sort_unstable();
    match all.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(CliError::Usage(format!(
            "two models are called {:?}; serve one of them, or give a folder another name",
            pair[0]
        ))),
        None => Ok(named),
    }
}

/// The page's address on this machine, for a server that listens on all its addresses too.
fn page(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}/", SocketAddr::new(ip, address.port()))
}

/// Opens the user's browser. The server goes on if there is none.
fn open_page(url: &str) {
    let (program, args): (&str, &[&str]) = match std::env::consts::OS {
        "macos" => ("open", &[]),
        "windows" => ("cmd", &["/c", "start", ""]),
        _ => ("xdg-open", &[]),
    };
    let mut command = std::process::Command::new(program);
    let command = command.args(args).arg(url).stdin(Stdio::null()).stdout(Stdio::null());
    match command.stderr(Stdio::null()).spawn() {
        // Waits for the program, so that no dead process stays behind.
        Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
        Err(error) => terminal::warn(&format!("{program} does not start ({error}); open {url}")),
    }
}

/// The model's name for clients: its name on the hub, or the name of its folder.
fn id(model: Option<&str>) -> String {
    let Some(model) = model else { return models::BUNDLED.to_owned() };
    let model = &models::full_name(model);
    let is_path = Path::new(model).is_dir() || model.starts_with(['/', '.', '~']);
    let last = Path::new(model).file_name().filter(|_| is_path);
    last.map_or_else(|| model.clone(), |name| name.to_string_lossy().into_owned())
}

impl CliError {
    /// A loading error gets the same exit code as in any other command.
    fn serve(error: ServeError) -> Self {
        match error {
            ServeError::NoKey { .. } | ServeError::EmptyKey => Self::Usage(error.to_string()),
            error => Self::Serve(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn named(words: &[&str]) -> Result<Vec<(String, Vec<String>)>, String> {
        let cli = Cli::parse_from(["weft", "serve"].iter().chain(words));
        let Some(Command::Serve(args)) = cli.command else { panic!("{words:?}") };
        let named = names(&args).map_err(|error| error.to_string())?;
        Ok(named.into_iter().map(|named| (named.id, named.aliases)).collect())
    }

    #[test]
    fn clients_call_models_by_their_names_and_aliases() {
        let pair = |id: &str, others: &[&str]| {
            (id.to_owned(), others.iter().map(|name| (*name).to_owned()).collect())
        };
        assert_eq!(named(&[]).unwrap(), [pair("weft-tiny", &[])]);
        assert_eq!(named(&["--served-model-name", "a,b"]).unwrap(), [pair("a", &["b"])]);
        let two = ["weft-tiny", "Qwen/Qwen3-0.6B"];
        let aliases = ["--alias", "gpt-4o=Qwen/Qwen3-0.6B,small=weft-tiny"];
        let both = [pair("weft-tiny", &["small"]), pair(two[1], &["gpt-4o"])];
        assert_eq!(named(&[&two[..], &aliases].concat()).unwrap(), both);
        for (more, reason) in [
            (&["--served-model-name", "x"][..], "--alias"),
            (&["--alias", "x=other"], "not among the models"),
            (&["--alias", "weft-tiny=Qwen/Qwen3-0.6B"], "two models are called"),
            (&["weft-tiny"], "two models are called"),
        ] {
            let refused = named(&[&two[..], more].concat()).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[test]
    fn ids_are_no_paths() {
        assert_eq!(id(None), "weft-tiny");
        assert_eq!(id(Some("Qwen/Qwen3-0.6B")), "Qwen/Qwen3-0.6B");
        assert_eq!(id(Some("/srv/models/mine/")), "mine");
        assert_eq!(id(Some("./models/mine")), "mine");
    }
}
