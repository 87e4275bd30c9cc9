//! `weft serve [MODEL]`: runs the server with the same engine as the other commands.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::{ExitCode, Stdio};

use weft::DEFAULT_CONTEXT;
use weft_core::chunk::Which;
use weft_core::device::MAX_LANES;
use weft_core::engine::Speculate;
use weft_server::{Loaded, Options, ServeError, Server};

use crate::args::{CacheArgs, ModelArgs, ServeArgs};
use crate::error::CliError;
use crate::load;
use crate::models;
use crate::progress::Bars;
use crate::resident::{self, Identity};
use crate::terminal;
use crate::tiers::RegisteredChunks;

pub(crate) fn run(args: ServeArgs) -> Result<ExitCode, CliError> {
    let ServeArgs { name, mut model, mut cache, speculate, .. } = args;
    let speculate = speculate.speculate.unwrap_or_default();
    model.model = name.or(model.model);
    // A request without a limit is promised a whole context, and there can be one request per lane.
    cache.contexts = Some(MAX_LANES);
    load::wanted_launches(&model.device)?;
    let mut names = args.served_model_name.into_iter();
    let id = names.next().unwrap_or_else(|| id(model.model.as_deref()));
    let options = Options {
        allowed_origins: args.allow_origin,
        aliases: names.collect(),
        strict_model: args.strict_model,
        reuse: args.reuse,
        api_key: args.api_key,
        insecure: args.insecure,
        allowed_hosts: args.allow_host,
        queue: args.queue,
        resident: if model.no_resident { None } else { resident::folder() },
        ..Options::new(SocketAddr::new(args.host, args.port))
    };
    let quiet = model.quiet;
    let server = Server::bind(options, move |text| terminal::note(quiet, text));
    let server = server.map_err(CliError::serve)?;
    let names = [&model.model, &model.draft].into_iter().flatten();
    for name in names.filter(|name| !models::is_bundled(Some(name.as_str()))) {
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
    model.bars = Bars::reporting_to(quiet, server.progress()).into();
    server
        .run(Box::new(move || Ok(load(&id, &model, &cache, speculate)?)))
        .map_err(CliError::serve)?;
    Ok(ExitCode::SUCCESS)
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

fn load(
    id: &str,
    args: &ModelArgs,
    cache: &CacheArgs,
    speculate: Speculate,
) -> Result<Loaded, CliError> {
    let load::Loaded { model, mut engine } = load::load(args, cache)?;
    engine.set_speculation(speculate);
    load::introduce(args, args.quiet);
    let registered = RegisteredChunks::open(cache, &model.tokenizer);
    let shelf = match registered {
        Ok(RegisteredChunks { shelf, library }) => {
            for chunk in library.list(&Which::default()) {
                if let Err(error) = engine.restore(chunk.clone()) {
                    terminal::warn(&error.to_string());
                }
            }
            Some(shelf).filter(|_| !cache.no_cache)
        }
        Err(error) => {
            terminal::warn(&format!("chunks are lost when the server ends: {error}"));
            None
        }
    };
    let about = resident::Loaded {
        on_gpu: engine.device().kv_family().starts_with("CUDA"),
        has_gpu: weft_cuda::probe().is_ok(),
        kernels: resident::kernels(args.device.kernels),
        context: engine.context(),
        default_context: DEFAULT_CONTEXT.min(model.config.max_positions),
        no_cache: cache.no_cache,
        kv_memory: cache.kv_memory,
        ram_cache: cache.ram_cache,
        disk_cache: cache.disk_cache,
        remote: cache.remote.remote.clone(),
    };
    let identity = Identity::of_server(args, cache, about);
    let identity = serde_json::to_value(identity).unwrap_or_default();
    Ok(Loaded { id: id.to_owned(), model, engine, shelf, identity })
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
    use super::*;

    #[test]
    fn ids_are_no_paths() {
        assert_eq!(id(None), "weft-tiny");
        assert_eq!(id(Some("Qwen/Qwen3-0.6B")), "Qwen/Qwen3-0.6B");
        assert_eq!(id(Some("/srv/models/mine/")), "mine");
        assert_eq!(id(Some("./models/mine")), "mine");
    }
}
