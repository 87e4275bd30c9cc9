//! Accepts the programs of the same user on the resident socket.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

use super::{ACCEPT_PAUSE, spawn_connection};
use crate::app::App;
use crate::resident::Socket;
use crate::routes;

/// Connections at a time; more wait to be accepted.
const CONNECTIONS: usize = 64;

/// Opens the socket, and accepts until a client asks the server to stop. Without a socket the
/// server serves HTTP alone. The socket's file is removed with the returned guard.
pub(super) fn accept<'a>(
    app: &Arc<App>,
    log: &(dyn Fn(&str) + Send + Sync),
    graceful: &'a GracefulShutdown,
) -> (Option<Socket>, impl Future<Output = ()> + use<'a>) {
    let opened = app.options.resident.as_deref().map(|folder| {
        let (socket, listener) = Socket::open(folder)?;
        Ok((socket, UnixListener::from_std(listener)?))
    });
    let (socket, listener) = match opened.transpose() {
        Ok(opened) => opened.unzip(),
        Err(error) => {
            let error: std::io::Error = error;
            log(&format!("other commands cannot find this server: {error}"));
            (None, None)
        }
    };
    let app = Arc::clone(app);
    let serving = async move {
        let router = routes::resident_router(Arc::clone(&app));
        tokio::select! {
            () = accept_all(listener, router, graceful, CONNECTIONS) => {}
            () = app.resident.stopped() => {}
        }
    };
    (socket, serving)
}

/// Accepts programs, `most` at a time.
pub(super) async fn accept_all(
    listener: Option<UnixListener>,
    router: Router,
    graceful: &GracefulShutdown,
    most: usize,
) {
    let Some(listener) = listener else { return std::future::pending().await };
    let permits = Arc::new(Semaphore::new(most));
    let own = rustix::process::geteuid().as_raw();
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // The folder lets only this user in; the system says who it really is.
        if stream.peer_cred().is_ok_and(|peer| peer.uid() == own) {
            spawn_connection(stream, None, &router, graceful, permit);
        }
    }
}
