//! Sockets: where the server listens, how it serves connections, how it shuts down.

mod body;
mod guard;
mod hosts;
mod options;
mod path;
#[cfg(unix)]
mod resident;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::app::App;
use crate::chunk_update::ChunkLock;
use crate::metrics::Metrics;
use crate::model_info::{Load, LoadError};
use crate::responses::Recent;
use crate::routes;
use crate::worker::{Limits, Phase, Worker};

pub(crate) use self::body::{Body, parse};
pub(crate) use self::guard::guard;
pub use self::options::Options;
pub(crate) use self::path::PathParam;

/// How long a client may take to send its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const HEADER_BYTES: usize = 64 << 10;
/// Connections at a time; more wait to be accepted.
const CONNECTIONS: usize = 1024;
/// How long a lane waits for a client that does not read.
const SLOW_READER: Duration = Duration::from_secs(60);
/// How long answers may continue after a shutdown request, and then how long connections may.
const DRAIN: Duration = Duration::from_secs(60);
const LAST_BYTES: Duration = Duration::from_secs(5);
/// How long the listener waits before it tries again if it cannot accept (no file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why the server did not serve.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}: {source}; choose another --port, or stop what uses it")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// Other machines could reach the server without a key.
    #[error(
        "--host {host} lets other machines in: give an --api-key that they must send, or \
         --insecure if anybody may use this server"
    )]
    NoKey {
        /// The host.
        host: std::net::IpAddr,
    },
    /// The engine could not be loaded.
    #[error("{0}")]
    Load(Arc<LoadError>),
    /// The system refused a thread or a signal handler.
    #[error("cannot serve: {0}")]
    System(#[from] std::io::Error),
}

/// A server that is bound to its address and does not answer yet.
pub struct Server {
    listener: TcpListener,
    options: Options,
    log: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Server {
    /// Binds the address. `log` gets the lines that an operator should read.
    pub fn bind(
        options: Options,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, ServeError> {
        options.check()?;
        let address = options.address;
        let bind = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = bind().map_err(|source| ServeError::Bind { address, source })?;
        Ok(Self { listener, options, log: Arc::new(log) })
    }

    /// The address that the server listens on.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until SIGTERM or Ctrl-C, then finishes running answers and saves rows. The engine is
    /// loaded in the background; requests that arrive before it is ready get status 503.
    pub fn run(self, load: Load) -> Result<(), ServeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let metrics = Arc::new(Metrics::default());
        let limits = Limits { queue: self.options.queue, slow_reader: SLOW_READER, drain: DRAIN };
        let (worker, thread) =
            Worker::start(load, limits, Arc::clone(&metrics), Arc::clone(&self.log))?;
        #[cfg(unix)]
        let resident = crate::resident::State::new(self.listener.local_addr()?);
        let app = Arc::new(App {
            worker,
            metrics,
            options: self.options,
            recent: Recent::default(),
            chunk_lock: ChunkLock::default(),
            verifying: Mutex::default(),
            #[cfg(unix)]
            resident,
        });
        runtime.block_on(serve(self.listener, app, &*self.log, thread))
    }
}

async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    log: &(dyn Fn(&str) + Send + Sync),
    engine: JoinHandle<()>,
) -> Result<(), ServeError> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let graceful = GracefulShutdown::new();
    #[cfg(unix)]
    let (socket, resident) = resident::accept(&app, log, &graceful);
    #[cfg(not(unix))]
    let resident = std::future::pending::<()>();
    let unloadable = {
        let accepting = accept(&listener, routes::router(Arc::clone(&app)), &graceful);
        let mut phase = app.worker.phase();
        let unloadable = async {
            let phase = phase.wait_for(|phase| matches!(phase, Phase::Unloadable(_))).await;
            match phase.as_deref() {
                Ok(Phase::Unloadable(error)) => Arc::clone(error),
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = accepting => None,
            () = resident => None,
            error = unloadable => Some(error),
            ended = shutdown_signal() => ended.map(|()| None)?,
        }
    };
    drop(listener);
    #[cfg(unix)]
    drop(socket);
    app.worker.drain();
    if let Some(error) = unloadable {
        return Err(ServeError::Load(error));
    }
    log("finishing running answers; send the signal again to exit at once");
    tokio::select! {
        () = drain(graceful, engine) => {}
        ended = shutdown_signal() => ended?,
    }
    Ok(())
}

/// Waits for the engine's thread, then for the last bytes of answers.
async fn drain(graceful: GracefulShutdown, engine: JoinHandle<()>) {
    // A panic of the thread has already been logged.
    let _ = tokio::task::spawn_blocking(move || engine.join()).await;
    let _ = tokio::time::timeout(LAST_BYTES, graceful.shutdown()).await;
}

/// SIGTERM, or Ctrl-C.
async fn shutdown_signal() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            _ = terminate.recv() => Ok(()),
            interrupted = tokio::signal::ctrl_c() => interrupted,
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}

async fn accept(listener: &tokio::net::TcpListener, router: Router, graceful: &GracefulShutdown) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Tokens are small and must be sent at once.
        let _ = stream.set_nodelay(true);
        spawn_connection(stream, &router, graceful, permit);
    }
}

/// Answers the requests of one client.
fn spawn_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    router: &Router,
    graceful: &GracefulShutdown,
    permit: OwnedSemaphorePermit,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(HEADER_BYTES);
    let service = TowerToHyperService::new(router.clone());
    let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
    tokio::spawn(async move {
        // A client may close the connection at any time.
        let _ = connection.await;
        drop(permit);
    });
}
