//! HTTP for the object store's client: ureq, which weft already has for downloads, on threads of
//! the runtime that may block.
//!
//! A response is read completely before it is handed on. Everything weft asks for is short (a
//! manifest, a range of rows, a page of a list), so a longer body is an error and never memory.

use std::io::ErrorKind;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use ureq::http::header::CONTENT_LENGTH;
use ureq::http::{Method, Request};
use ureq::{Agent, SendBody};

use crate::get::RANGE_BYTES;

/// Maximum bytes of a response: a range of rows or, always smaller, a page of a list.
const BODY_LIMIT: u64 = RANGE_BYTES + (1 << 20);

/// Makes clients with these limits on time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connector {
    /// For a name to be found, and for a connection.
    pub(crate) connect: Duration,
    /// For a whole request.
    pub(crate) request: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .accept_encoding("identity")
            .https_only(allow_http.as_deref() != Some("true"))
            .user_agent(concat!("weft/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(self.connect))
            .timeout_connect(Some(self.connect))
            .timeout_global(Some(self.request));
        Ok(HttpClient::new(Client(config.build().new_agent())))
    }
}

#[derive(Debug)]
struct Client(Agent);

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (mut parts, body) = request.into_parts();
        let n_bytes = body.content_length();
        // The pieces of memory of a body stay where they are.
        let body = body.collect().await?.aggregate();
        let has_body = n_bytes > 0 || matches!(parts.method, Method::PUT | Method::POST);
        if has_body {
            // Without a length the body would be sent in chunks, which stores refuse.
            parts.headers.insert(CONTENT_LENGTH, n_bytes.into());
        }
        let agent = self.0.clone();
        let run = move || -> Result<HttpResponse, ureq::Error> {
            let body = match has_body {
                true => SendBody::from_owned_reader(body.reader()),
                false => SendBody::none(),
            };
            let (parts, mut body) = agent.run(Request::from_parts(parts, body))?.into_parts();
            let bytes = body.with_config().limit(BODY_LIMIT).read_to_vec()?;
            Ok(HttpResponse::from_parts(parts, Bytes::from(bytes).into()))
        };
        let done = tokio::task::spawn_blocking(run).await;
        done.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?
            .map_err(|error| HttpError::new(kind(&error), error))
    }
}

/// The kind decides whether object_store tries again.
fn kind(error: &ureq::Error) -> HttpErrorKind {
    use ureq::{Error, Timeout};
    match error {
        Error::Timeout(Timeout::Resolve | Timeout::Connect)
        | Error::HostNotFound
        | Error::ConnectionFailed => HttpErrorKind::Connect,
        Error::Timeout(_) | Error::BodyStalled => HttpErrorKind::Timeout,
        Error::Io(error) => match error.kind() {
            ErrorKind::TimedOut => HttpErrorKind::Timeout,
            ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
            // The library reports a bad certificate as invalid data.
            ErrorKind::InvalidData => HttpErrorKind::Decode,
            _ => HttpErrorKind::Interrupted,
        },
        Error::Protocol(_) => HttpErrorKind::Request,
        _ => HttpErrorKind::Unknown,
    }
}
