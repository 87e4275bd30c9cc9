//! Sockets: where the server listens, how it serves connections, how it shuts down.

mod body;
mod guard;
mod hosts;
mod options;
mod origins;
mod path;
mod progress;
mod request_id;
#[cfg(unix)]
mod resident;
#[cfg(all(test, unix))]
mod tests;
mod write_limit;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::app::App;
use crate::model_info::{Load, LoadError};
use crate::registry::{LoadFailure, ModelName, ModelSource, OneModel, Registry, Settings};
use crate::routes;
use crate::worker::{Limits, Phase};

pub(crate) use self::body::{Body, BodyBudget, MAX_BYTES as MAX_BODY_BYTES, parse};
use self::guard::LocalAddress;
pub(crate) use self::guard::guard;
pub use self::options::Options;
pub use self::origins::AllowedOrigin;
pub(crate) use self::path::PathParam;
pub use self::progress::{LoadProgress, LoadStage};
use self::write_limit::WriteLimit;

/// How long a client may take to send its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request's head. `guard` refuses longer ones; hyper may read twice as much.
const HEADER_BYTES: usize = 64 << 10;
/// Connections at a time; more wait to be accepted.
const CONNECTIONS: usize = 1024;
/// The system's buffer for what a client has not read yet. Left to itself it grows to megabytes,
/// and a lane would compute thousands of tokens for a client that does not read before it waits.
#[cfg(unix)]
const SEND_BYTES: usize = 32 << 10;
/// How long a lane waits for a client that does not read.
const SLOW_READER: Duration = Duration::from_secs(60);
/// The same if other requests wait for a lane.
const GIVE_WAY: Duration = Duration::from_secs(2);
/// How long a connection that has bytes for its client waits. The client may still read how its
/// lane ended if it goes on before that.
const UNREAD: Duration = Duration::from_secs(120);
/// How long answers may continue after a shutdown request, and then how long connections may.
const DRAIN: Duration = Duration::from_secs(60);
/// An engine that fails twice within this time stays down.
const FAULT_WINDOW: Duration = Duration::from_secs(60 * 60);
const LAST_BYTES: Duration = Duration::from_secs(5);
/// How long the listener waits before it tries again if it cannot accept (no file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why the server did not serve.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}: {source}; {}", other_address(source))]
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
    /// The key is empty: everybody would know it.
    #[error(
        "the --api-key is empty (the flag, WEFT_API_KEY, or api-key in the config file): give a \
         key, or remove the setting to serve without one"
    )]
    EmptyKey,
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

/// What to do if the system refuses an address.
fn other_address(refusal: &std::io::Error) -> &'static str {
    match refusal.kind() {
        ErrorKind::AddrNotAvailable => {
            "no interface of this machine has that address; choose another --host"
        }
        ErrorKind::PermissionDenied => "ports below 1024 need root; choose a --port from 1024",
        _ => "choose another --port, or stop what uses it",
    }
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

    /// Serves one model, which a function loads, until SIGTERM or Ctrl-C; then finishes running
    /// answers and saves rows. The model is loaded in the background, and requests wait for it.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn run(self, id: &str, load: Load) -> Result<(), ServeError> {
        self.run_models(vec![ModelName::new(id, id)], Arc::new(OneModel::new(load)))
    }

    /// The same with any number of models. One model that is served alone is loaded at once; of
    /// several, each is loaded when a request first needs it. The first model is that of requests
    /// without a name.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn run_models(
        self,
        models: Vec<ModelName>,
        source: Arc<dyn ModelSource>,
    ) -> Result<(), ServeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let models = Registry::new(settings(&self.options, &self.log), source, models);
        let app = Arc::new(App::new(self.options, models, self.listener.local_addr()?));
        let served = runtime.block_on(serve(self.listener, app, &*self.log));
        // A model may still be loading: its thread ends with the process.
        runtime.shutdown_background();
        served
    }
}

/// What these options mean for the models.
pub(crate) fn settings(options: &Options, log: &Arc<dyn Fn(&str) + Send + Sync>) -> Settings {
    let limits = Limits {
        queue: options.queue,
        slow_reader: SLOW_READER,
        give_way: GIVE_WAY,
        drain: DRAIN,
        fault_window: FAULT_WINDOW,
    };
    Settings {
        limits,
        keep_loaded: options.keep_loaded,
        max_loaded: options.max_loaded,
        allow_load: options.allow_load,
        strict: options.strict_model,
        log: Arc::clone(log),
    }
}

async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    log: &(dyn Fn(&str) + Send + Sync),
) -> Result<(), ServeError> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let graceful = GracefulShutdown::new();
    #[cfg(unix)]
    let (socket, resident) = resident::accept(&app, log, &graceful);
    #[cfg(not(unix))]
    let resident = std::future::pending::<()>();
    // Before the first request: none shall find a server that is healthy and not ready.
    let loading = app.models.is_single().then(|| app.models.begin_first()).flatten();
    let router = routes::router(Arc::clone(&app));
    let mut accepting = Box::pin(accept(&listener, router, &graceful, CONNECTIONS));
    let unloadable = tokio::select! {
        () = &mut accepting => None,
        () = resident => None,
        () = Arc::clone(&app.models).unload_by_age() => None,
        failure = failure_of(loading) => Some(failure),
        ended = shutdown_signal() => ended.map(|()| None)?,
    };
    #[cfg(unix)]
    drop(socket);
    let running = app.models.close();
    if let Some(failure) = unloadable {
        return Err(ServeError::Load(failure.error));
    }
    if !running.is_empty() {
        log("finishing running answers; send the signal again to exit at once");
    }
    let running =
        tokio::task::spawn_blocking(move || running.iter().for_each(|served| served.join()));
    // New requests and health checks are answered meanwhile, with status 503.
    tokio::select! {
        _ = running => {}
        () = &mut accepting => {}
        ended = shutdown_signal() => return Ok(ended?),
    }
    drop(accepting);
    drop(listener);
    tokio::select! {
        _ = tokio::time::timeout(LAST_BYTES, graceful.shutdown()) => {}
        ended = shutdown_signal() => ended?,
    }
    Ok(())
}

/// Why a model that is served alone cannot be loaded: then there is nothing to serve. Does not end
/// otherwise.
async fn failure_of(loading: Option<watch::Receiver<Phase>>) -> LoadFailure {
    if let Some(mut phase) = loading
        && let Ok(phase) = phase.wait_for(|phase| !matches!(phase, Phase::Loading)).await
        && let Phase::Unloadable(failure) = &*phase
    {
        return failure.clone();
    }
    std::future::pending().await
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

/// Accepts clients, `most` at a time.
async fn accept(
    listener: &tokio::net::TcpListener,
    router: Router,
    graceful: &GracefulShutdown,
    most: usize,
) {
    let permits = Arc::new(Semaphore::new(most));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Tokens are small and must be sent at once.
        let _ = stream.set_nodelay(true);
        #[cfg(unix)]
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BYTES);
        let local = stream.local_addr().ok().map(|address| LocalAddress(address.ip()));
        spawn_connection(stream, local, &router, graceful, permit);
    }
}

/// Answers the requests of one client. `local` is the address that it connected to.
fn spawn_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    local: Option<LocalAddress>,
    router: &Router,
    graceful: &GracefulShutdown,
    permit: OwnedSemaphorePermit,
) {
    let stream = WriteLimit::new(stream, UNREAD);
    spawn_limited(stream, local, router, graceful, permit);
}

fn spawn_limited<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: WriteLimit<S>,
    local: Option<LocalAddress>,
    router: &Router,
    graceful: &GracefulShutdown,
    permit: OwnedSemaphorePermit,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(HEADER_BYTES);
    let router = TowerToHyperService::new(router.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        local.map(|local| request.extensions_mut().insert(local));
        router.call(request)
    });
    let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
    tokio::spawn(async move {
        // A client may close the connection at any time.
        let _ = connection.await;
        drop(permit);
    });
}
