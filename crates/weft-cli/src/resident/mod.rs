//! Resident servers: finds a `weft serve` of this user that has the model a command would load.

mod client;
mod identity;

use std::path::PathBuf;

use weft_server::resident::sockets;

use crate::args::{CacheArgs, ModelArgs};
use crate::error::CliError;
use crate::settings::{path_variable, user_folder};

pub(crate) use self::client::Client;
pub(crate) use self::identity::{Identity, Loaded, experts, kernels};

/// The folder of sockets: in the user's runtime folder, else beside the cache.
pub(crate) fn folder() -> Option<PathBuf> {
    let runtime = || Some(path_variable("XDG_RUNTIME_DIR")?.join("weft"));
    let beside_cache = || Some(user_folder("XDG_CACHE_HOME", ".cache")?.join("run"));
    runtime().or_else(beside_cache)
}

/// All models of the servers of this user. A folder that cannot be trusted is an error.
pub(crate) fn servers() -> Result<Vec<Client>, CliError> {
    let found = folder().map(|folder| sockets(&folder)).transpose();
    let found = found.map_err(CliError::io("the servers' folder"))?.unwrap_or_default();
    let clients = found.into_iter();
    let models = |(path, stream): (PathBuf, _)| Client::open(&path, stream).unwrap_or_default();
    Ok(clients.flat_map(models).collect())
}

/// A server that would give this command's answers.
pub(crate) fn find(model: &ModelArgs, cache: &CacheArgs) -> Option<Client> {
    // A command loads the model itself if the folder cannot be trusted.
    let servers = if model.no_resident { Vec::new() } else { servers().unwrap_or_default() };
    let mut ready = servers.into_iter().filter(|server| server.facts.is_ready).peekable();
    ready.peek()?;
    let wanted = Identity::wanted(model, cache)?;
    ready.find(|server| {
        let theirs = serde_json::from_value::<Identity>(server.facts.identity.clone());
        theirs.is_ok_and(|theirs| theirs.serves(&wanted, model, cache))
    })
}
