//! The store that several machines share, from the flags that name it.

use std::sync::Arc;
use std::time::Duration;

use weft_core::engine::{Engine, RemoteTier};
use weft_core::store::SigningKey;
use weft_remote::{Limits, Remote, Trust};

use crate::args::{CacheArgs, RemoteTrustArgs};
use crate::error::CliError;
use crate::terminal;
use crate::tiers::Budget;

/// A command waits longer for a store than a question does.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the end of a command waits for its rows to be written.
const END_WAIT: Duration = Duration::from_secs(10);

/// Opens the store for a command that is about it.
pub(crate) fn open(url: Option<&str>, trust: &RemoteTrustArgs) -> Result<Remote, CliError> {
    let url = url.ok_or_else(|| {
        CliError::Usage(
            "no store is named; give --remote URL, or set WEFT_REMOTE (docs/store.md)".to_owned(),
        )
    })?;
    let (fetch, long) = (PATIENCE, 10 * PATIENCE);
    let limits = Limits { fetch, whole_fetch: long, write: long, ..Limits::default() };
    Ok(Remote::open(url, trust_of(trust)?, limits)?)
}

/// The store as a tier of an engine, if the flags name one. Without a key no rows of it would be
/// used, so it is left out with a warning.
pub(crate) fn tier(args: &CacheArgs) -> Result<Option<Arc<dyn RemoteTier>>, CliError> {
    let Some(url) = args.remote.remote.as_deref().filter(|_| !args.no_cache) else {
        return Ok(None);
    };
    if Budget::new(args).disk_bytes == 0 {
        return Err(CliError::Usage(
            "--remote needs files on this machine, and --disk-cache is 0; give it a size, or leave \
             out --remote"
                .to_owned(),
        ));
    }
    let trust = trust_of(&args.remote.trust)?;
    if matches!(trust, Trust::Nobody) {
        terminal::warn(
            "the remote store is not used: no --remote-key says whose rows to believe \
             (docs/store.md)",
        );
        return Ok(None);
    }
    Ok(Some(Arc::new(Remote::open(url, trust, Limits::default())?)))
}

/// Waits a while until the rows of this command are in the store.
pub(crate) fn end(engine: &mut Engine) {
    let n_lost = engine.close_remote(END_WAIT);
    if n_lost > 0 {
        terminal::warn(&format!(
            "the remote store is too slow: {n_lost} of its new rows were not written"
        ));
    }
}

fn trust_of(args: &RemoteTrustArgs) -> Result<Trust, CliError> {
    match &args.remote_key {
        Some(path) => {
            let error = CliError::io(format!("--remote-key {}", path.display()));
            Ok(Trust::Key(SigningKey::read(path).map_err(error)?))
        }
        None if args.remote_unsigned => Ok(Trust::Anyone),
        None => Ok(Trust::Nobody),
    }
}
