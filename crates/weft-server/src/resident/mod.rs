//! The resident engine: a server that other commands of the same user find and use.
//!
//! A server listens on a socket in a folder that only its user can enter. What a socket answers is
//! in [`protocol`]; `routes/resident.rs` has the handlers. No other user can connect: both sides
//! check the folder, and on Linux the server asks the system for the user of each connection.

pub mod protocol;

use std::collections::HashMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use weft_core::engine::Cancel;

const ENDING: &str = "sock";

/// A socket's file. It is removed when this is dropped.
pub(crate) struct Socket(PathBuf);

impl Socket {
    /// Listens on a socket of this process in the folder.
    pub(crate) fn open(folder: &Path) -> io::Result<(Self, UnixListener)> {
        let parents = folder.parent().unwrap_or(folder);
        DirBuilder::new().recursive(true).mode(0o700).create(parents)?;
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => created?,
        }
        // Also removes the sockets of servers that were killed.
        sockets(folder)?;
        let path = folder.join(format!("{}.{ENDING}", std::process::id()));
        let listener = UnixListener::bind(&path)?;
        let socket = Self(path);
        fs::set_permissions(&socket.0, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok((socket, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another server or client removes it otherwise.
        let _ = fs::remove_file(&self.0);
    }
}

/// Connects to all servers of this user, and removes the sockets of those that are gone. A folder
/// that does not exist has none.
///
/// # Errors
/// The folder is not this user's alone, or cannot be read.
pub fn sockets(folder: &Path) -> io::Result<Vec<(PathBuf, UnixStream)>> {
    match check(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        checked => checked?,
    }
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == ENDING))
        .collect();
    paths.sort();
    let connect = |path: PathBuf| match UnixStream::connect(&path) {
        Ok(stream) => is_own(&stream).then_some((path, stream)),
        Err(error) => {
            if error.kind() == io::ErrorKind::ConnectionRefused {
                let _ = fs::remove_file(&path);
            }
            None
        }
    };
    Ok(paths.into_iter().filter_map(connect).collect())
}

/// Refuses a folder of another user, one that others may enter, and a link.
fn check(folder: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(folder)?;
    let refused = |reason: &str| {
        let message = format!("{} {reason}", folder.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    };
    if !metadata.is_dir() {
        return refused("is not a folder; remove it");
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return refused("belongs to another user; set XDG_RUNTIME_DIR to a folder of your own");
    }
    if metadata.mode() & 0o077 != 0 {
        return refused("can be entered by other users; run `chmod 700` on it");
    }
    Ok(())
}

/// Whether the server at the other end runs as this user, as far as the system says.
#[cfg(target_os = "linux")]
fn is_own(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

#[cfg(not(target_os = "linux"))]
fn is_own(_: &UnixStream) -> bool {
    true
}

/// The server's state for its socket.
pub(crate) struct State {
    /// The address for HTTP.
    pub(crate) address: SocketAddr,
    /// Seconds since 1970.
    pub(crate) started: u64,
    /// The running answers, by their ids.
    cancels: Mutex<HashMap<String, Cancel>>,
    stop: Notify,
}

impl State {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { address, started, cancels: Mutex::default(), stop: Notify::new() }
    }

    /// Asks the server to finish running answers and end.
    pub(crate) fn stop(&self) {
        self.stop.notify_one();
    }

    pub(crate) async fn stopped(&self) {
        self.stop.notified().await;
    }

    pub(crate) fn add(&self, id: &str, cancel: Cancel) {
        self.cancels().insert(id.to_owned(), cancel);
    }

    pub(crate) fn remove(&self, id: &str) -> Option<Cancel> {
        self.cancels().remove(id)
    }

    fn cancels(&self) -> std::sync::MutexGuard<'_, HashMap<String, Cancel>> {
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
