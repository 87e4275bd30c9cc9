//! Ends a connection whose client does not read.
//!
//! A response whose bytes nobody takes would otherwise hold its connection for ever. Only time in
//! which a write waits counts: a stream that has nothing to send may be quiet as long as it likes.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail if the client has taken nothing for a time.
pub(super) struct WriteLimit<S> {
    stream: S,
    limit: Duration,
    /// Runs while a write waits, since the last byte that was written.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteLimit<S> {
    pub(super) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, waiting: None }
    }

    /// The outcome of an attempt to write, unless it has waited for too long.
    fn limited<T>(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.waiting = None;
            return outcome;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteLimit<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteLimit<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limited(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.limited(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.limited(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.limited(context, outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use futures_util::stream::unfold;
    use hyper_util::server::graceful::GracefulShutdown;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::sync::Semaphore;
    use tokio::time::timeout;

    use super::super::spawn_limited;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);
    const SOON: Duration = Duration::from_secs(20);

    /// A client that has asked for `path`, the permits of its connection, and what ends it.
    async fn asked(path: &str) -> (DuplexStream, Arc<Semaphore>, GracefulShutdown) {
        let quiet = |left: usize| async move {
            sleep(if left == 2 { LIMIT * 3 } else { Duration::ZERO }).await;
            (left > 0).then_some((Ok::<_, Infallible>("data: x\n\n"), left - 1))
        };
        let router = Router::new()
            .route("/large", get(|| async { "x".repeat(1 << 20) }))
            .route("/quiet", get(move || async move { Body::from_stream(unfold(3, quiet)) }));
        let (mut client, server) = tokio::io::duplex(4096);
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).acquire_owned().await.unwrap();
        let server = WriteLimit::new(server, LIMIT);
        let graceful = GracefulShutdown::new();
        spawn_limited(server, None, &router, &graceful, permit);
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        (client, permits, graceful)
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_gives_its_connection_back() {
        let (mut client, permits, _running) = asked("/large").await;
        assert!(permits.try_acquire().is_err());
        let _free = timeout(SOON, permits.acquire()).await.expect("the connection ended");
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        assert!(read.len() < 1 << 20, "it ended early");
    }

    /// Each byte begins the time anew.
    #[tokio::test]
    async fn a_client_that_reads_slowly_gets_all() {
        let (mut client, _permits, _running) = asked("/large").await;
        let (mut read, mut pauses) = (0, 0);
        let mut bytes = vec![0; 200 << 10];
        loop {
            match client.read(&mut bytes).await.unwrap() {
                0 => break,
                n => read += n,
            }
            if read > pauses * (100 << 10) {
                pauses += 1;
                sleep(LIMIT / 4).await;
            }
        }
        assert!(pauses > 8 && read > 1 << 20, "{read} bytes with {pauses} pauses");
    }

    #[tokio::test]
    async fn a_stream_may_be_quiet_for_longer_than_the_limit() {
        let (mut client, _permits, _running) = asked("/quiet").await;
        let mut read = String::new();
        timeout(SOON, client.read_to_string(&mut read)).await.unwrap().unwrap();
        assert_eq!(read.matches("data: x").count(), 3, "{read}");
    }
}
