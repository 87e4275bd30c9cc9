//! HTTP for the object store's client: ureq, which weft already has for downloads, on threads of
//! the runtime that may block.
//!
//! A response is read completely before it is handed on. Everything weft asks for is short (a
//! manifest, a range of rows, a page of a list), so a longer body is an error and never memory.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use ureq::http::header::CONTENT_LENGTH;
use ureq::http::{Method, Request, Uri};
use ureq::{Agent, SendBody};

use crate::get::RANGE_BYTES;

/// Maximum bytes of a response: a range of rows or, always smaller, a page of a list.
const BODY_LIMIT: u64 = RANGE_BYTES + (1 << 20);

/// Connections that are kept for later requests.
const IDLE_CONNECTIONS: usize = 16;

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
        let config = || {
            Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                .accept_encoding("identity")
                .https_only(allow_http.as_deref() != Some("true"))
                .user_agent(concat!("weft/", env!("CARGO_PKG_VERSION")))
                .timeout_resolve(Some(self.connect))
                .timeout_connect(Some(self.connect))
                .timeout_global(Some(self.request))
                .max_idle_connections_per_host(IDLE_CONNECTIONS)
        };
        Ok(HttpClient::new(Client {
            agent: config().build().new_agent(),
            direct: config().proxy(None).build().new_agent(),
        }))
    }
}

#[derive(Debug)]
struct Client {
    agent: Agent,
    /// For hosts that a proxy cannot reach.
    direct: Agent,
}

impl Client {
    fn agent(&self, uri: &Uri) -> Agent {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_near = match host.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_link_local(),
            Ok(IpAddr::V6(address)) => address.is_loopback(),
            Err(_) => host == "localhost",
        };
        if is_near { self.direct.clone() } else { self.agent.clone() }
    }
}

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
        let agent = self.agent(&parts.uri);
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread::{self, JoinHandle};

    use object_store::client::HttpRequestBody;
    use object_store::{ClientOptions, PutPayload};

    use super::*;

    const CONNECTOR: Connector =
        Connector { connect: Duration::from_secs(60), request: Duration::from_secs(60) };

    /// A server of one request: what it got, and what it answers.
    fn server(answer: Vec<u8>) -> (String, JoinHandle<(String, Vec<u8>)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        let serve = move || {
            let (mut stream, _): (TcpStream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut head, mut n_bytes) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(length) = line.to_lowercase().strip_prefix("content-length:") {
                    n_bytes = length.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
                head += &line;
            }
            let mut body = vec![0; n_bytes];
            reader.read_exact(&mut body).unwrap();
            // A client that gives up early closes the connection.
            let _ = stream.write_all(&answer);
            (head, body)
        };
        (url, thread::spawn(serve))
    }

    fn call(
        method: Method,
        url: &str,
        body: HttpRequestBody,
        options: &ClientOptions,
    ) -> Result<(u16, Bytes), HttpErrorKind> {
        let client = CONNECTOR.connect(options).unwrap();
        let request = Request::builder().method(method).uri(url).body(body).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        runtime.unwrap().block_on(async {
            let response = client.execute(request).await.map_err(|error| error.kind())?;
            let status = response.status().as_u16();
            Ok((status, response.into_body().bytes().await.map_err(|error| error.kind())?))
        })
    }

    fn get(answer: &[u8]) -> Result<(u16, Bytes), HttpErrorKind> {
        let (url, server) = server(answer.to_vec());
        let options = ClientOptions::new().with_allow_http(true);
        let result = call(Method::GET, &url, HttpRequestBody::empty(), &options);
        server.join().unwrap();
        result
    }

    #[test]
    fn a_body_of_pieces_is_sent_with_its_length() {
        let (url, server) = server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_vec());
        let pieces: PutPayload =
            [Bytes::from_static(b"ab"), Bytes::from_static(b"cde")].into_iter().collect();
        let options = ClientOptions::new().with_allow_http(true);
        let answer = call(Method::PUT, &url, pieces.into(), &options).unwrap();
        assert_eq!(answer, (200, Bytes::from_static(b"ok")));
        let (head, body) = server.join().unwrap();
        assert_eq!(body, b"abcde");
        assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
    }

    #[test]
    fn statuses_are_answers_and_cut_or_endless_bodies_are_errors() {
        let (status, body) =
            get(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\ngone").unwrap();
        assert_eq!((status, &body[..]), (404, &b"gone"[..]));
        let (status, _) =
            get(b"HTTP/1.1 301 M\r\nlocation: /y\r\ncontent-length: 0\r\n\r\n").unwrap();
        assert_eq!(status, 301, "object_store decides what to follow");
        let cut = get(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort");
        assert_eq!(cut.unwrap_err(), HttpErrorKind::Interrupted);
        assert!(get(b"").is_err());
        assert!(get(b"nonsense\r\n\r\n").is_err());
        let endless = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &vec![b' '; BODY_LIMIT as usize + 1]];
        assert!(get(&endless.concat()).is_err());
    }

    #[test]
    fn plain_http_needs_permission_and_a_server_that_is_gone_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        let error = |allow_http| {
            let options = ClientOptions::new().with_allow_http(allow_http);
            call(Method::GET, &url, HttpRequestBody::empty(), &options).unwrap_err()
        };
        assert_eq!(error(false), HttpErrorKind::Unknown);
        drop(listener);
        assert_eq!(error(true), HttpErrorKind::Connect);
    }
}
