//! The HTTP client for the hub.
//!
//! It sends requests, follows redirects and interprets status codes. It follows redirects itself,
//! because the HTTP library would not keep the token to the hub's own origin (scheme, host and
//! port). The cache on disk is handled elsewhere.

use std::collections::HashMap;

use serde::Deserialize;
use ureq::http::Response;
use ureq::http::header::{AUTHORIZATION, LOCATION, RANGE};
use ureq::{Agent, Body};
use weft_core::hub::{self, HubEnv, RepoRef};

use super::error::PullError;
use super::hash::Hash;
use super::info::{FileInfo, read_info};
use super::retry::{Failure, Limits, classify};
use super::url::{is_loopback, join, origin, percent_encode};

const MAX_REDIRECTS: usize = 10;
/// The list of a repository with 100 000 files is about 10 MB.
const MAX_LIST_BYTES: u64 = 32 << 20;

/// The hub's API for one repository.
pub(super) struct Client<'a> {
    agent: Agent,
    env: &'a HubEnv,
    repo: &'a RepoRef,
}

/// The files of one commit.
#[derive(Debug)]
pub(super) struct Listing {
    /// The commit.
    pub(super) sha: String,
    /// The names of all its files, not yet checked.
    pub(super) files: Vec<String>,
    /// The hashes of its files, as far as the hub lists them.
    pub(super) hashes: HashMap<String, Hash>,
}

/// What a request asks for; used in error messages.
#[derive(Clone, Copy)]
enum Asked<'a> {
    Listing,
    File { file: &'a str, sha: &'a str },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Head,
    Get,
}

impl<'a> Client<'a> {
    pub(super) fn new(env: &'a HubEnv, repo: &'a RepoRef, limits: &Limits) -> Self {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Lengths and ranges must refer to the file itself, not to a compressed form.
            .accept_encoding("identity")
            .user_agent(concat!("weft/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(limits.connect))
            .timeout_connect(Some(limits.connect))
            .timeout_per_read(Some(limits.stall))
            .timeout_per_write(Some(limits.stall));
        if is_loopback(&env.endpoint) {
            // A proxy cannot reach this machine's loopback address.
            config = config.proxy(None);
        }
        Client { agent: config.build().new_agent(), env, repo }
    }

    /// Asks which commit the revision is, and which files it has.
    pub(super) fn list(&self) -> Result<Listing, Failure> {
        #[derive(Deserialize)]
        struct Answer {
            sha: String,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
            #[serde(rename = "blobId")]
            blob_id: Option<String>,
            lfs: Option<Lfs>,
        }
        // The blob of such a file holds a pointer, so its id says nothing about the content.
        #[derive(Deserialize)]
        struct Lfs {
            sha256: String,
        }
        let (endpoint, id) = (&self.env.endpoint, self.repo.id());
        let revision = percent_encode(self.repo.revision(), false);
        let url = format!("{endpoint}/api/models/{id}/revision/{revision}?blobs=true");
        let mut response = self.follow(Method::Get, &url, None, Asked::Listing)?;
        let bad = |reason: String| PullError::BadAnswer { url: url.clone(), reason };
        let body = response.body_mut().with_config().limit(MAX_LIST_BYTES).read_to_vec();
        let body = body.map_err(|e| classify(&url, e))?;
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|e| bad(format!("not a list of files ({e})")))?;
        if !hub::is_commit_sha(&answer.sha) {
            return Err(bad(format!("{:?} is not a commit sha", answer.sha)).into());
        }
        let (mut files, mut hashes) = (Vec::new(), HashMap::new());
        for Sibling { rfilename, blob_id, lfs } in answer.siblings {
            let hash = lfs.map(|lfs| lfs.sha256).or(blob_id);
            if let Some(hash) = hash.as_deref().and_then(Hash::parse) {
                hashes.insert(rfilename.clone(), hash);
            }
            files.push(rfilename);
        }
        Ok(Listing { sha: answer.sha, files, hashes })
    }

    /// Asks for the length and the blob name of a file. Redirects are followed on the hub only: for
    /// a large file, both are in the headers of the response that redirects to another host.
    pub(super) fn file_info(&self, sha: &str, file: &str) -> Result<FileInfo, Failure> {
        let mut url = self.file_url(sha, file);
        for _ in 0..MAX_REDIRECTS {
            let response = self.send(Method::Head, &url, None)?;
            let next = self.redirect_target(&url, &response)?;
            if next.is_none() {
                self.check_status(&url, &response, Asked::File { file, sha })?;
            }
            if let Some(info) = read_info(&url, &response)? {
                return Ok(info);
            }
            match next {
                Some(next) if self.is_own_origin(&next) => url = next,
                _ => break,
            }
        }
        let reason = format!("no length or no etag for {file:?}");
        Err(PullError::BadAnswer { url, reason }.into())
    }

    /// Asks for the content of a file from byte `from` on. The status is 200 (the whole file), 206
    /// (from `from` on) or 416 (`from` is past the end).
    pub(super) fn open(&self, sha: &str, file: &str, from: u64) -> Result<Response<Body>, Failure> {
        let range = (from > 0).then(|| format!("bytes={from}-"));
        let asked = Asked::File { file, sha };
        self.follow(Method::Get, &self.file_url(sha, file), range.as_deref(), asked)
    }

    fn file_url(&self, sha: &str, file: &str) -> String {
        let (endpoint, id) = (&self.env.endpoint, self.repo.id());
        format!("{endpoint}/{id}/resolve/{sha}/{}", percent_encode(file, true))
    }

    /// Sends a request, and follows all redirects.
    fn follow(
        &self,
        method: Method,
        url: &str,
        range: Option<&str>,
        asked: Asked<'_>,
    ) -> Result<Response<Body>, Failure> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(method, &url, range)?;
            match self.redirect_target(&url, &response)? {
                Some(next) => url = next,
                None => {
                    self.check_status(&url, &response, asked)?;
                    return Ok(response);
                }
            }
        }
        let reason = format!("more than {MAX_REDIRECTS} redirects");
        Err(PullError::BadAnswer { url, reason }.into())
    }

    /// Sends one request. This is the only place that adds the token.
    fn send(
        &self,
        method: Method,
        url: &str,
        range: Option<&str>,
    ) -> Result<Response<Body>, Failure> {
        let mut request = match method {
            Method::Head => self.agent.head(url),
            Method::Get => self.agent.get(url),
        };
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        if let Some(token) = &self.env.token
            && self.is_own_origin(url)
        {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        request.call().map_err(|error| classify(url, error))
    }

    fn is_own_origin(&self, url: &str) -> bool {
        origin(url).is_some_and(|other| Some(other) == origin(&self.env.endpoint))
    }

    /// The target of a redirect; `None` for any other response.
    fn redirect_target(
        &self,
        url: &str,
        response: &Response<Body>,
    ) -> Result<Option<String>, PullError> {
        if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let next = location.and_then(|location| join(url, location)).ok_or_else(|| {
            let reason = format!(
                "a redirect to {:?}, which is not a valid target",
                location.unwrap_or_default()
            );
            PullError::BadAnswer { url: url.to_owned(), reason }
        })?;
        Ok(Some(next))
    }

    fn check_status(
        &self,
        url: &str,
        response: &Response<Body>,
        asked: Asked<'_>,
    ) -> Result<(), Failure> {
        let status = response.status().as_u16();
        match status {
            200 | 206 | 416 => Ok(()),
            401 | 403 => Err(self.denied(status, asked).into()),
            404 => Err(self.not_found(response, asked).into()),
            408 | 429 | 500..=599 => {
                Err(Failure::Passing(format!("the server answered {}", response.status())))
            }
            _ => {
                let reason = format!("HTTP {}", response.status());
                Err(PullError::BadAnswer { url: url.to_owned(), reason }.into())
            }
        }
    }

    fn denied(&self, status: u16, asked: Asked<'_>) -> PullError {
        let (repo, endpoint) = (self.repo.id(), &self.env.endpoint);
        let page = format!("{endpoint}/{repo}");
        let cure = if self.env.token.is_some() {
            format!(
                "the token was not enough; accept the model's licence at {page}, or set \
                     HF_TOKEN to a token that may read it"
            )
        } else {
            format!(
                "the name is wrong, or the model is private or gated; accept its licence at \
                     {page} if it has one, and set HF_TOKEN"
            )
        };
        let what = match asked {
            Asked::Listing => "the list of files".to_owned(),
            Asked::File { file, .. } => file.to_owned(),
        };
        PullError::Denied { what, repo, status, cure }
    }

    fn not_found(&self, response: &Response<Body>, asked: Asked<'_>) -> PullError {
        let code = response.headers().get("x-error-code").and_then(|value| value.to_str().ok());
        let repo = self.repo.id();
        match (asked, code) {
            (_, Some("RevisionNotFound")) => {
                PullError::RevisionNotFound { repo, revision: self.repo.revision().to_owned() }
            }
            (Asked::File { file, sha }, code) if code != Some("RepoNotFound") => {
                PullError::FileNotFound { repo, file: file.to_owned(), sha: sha.to_owned() }
            }
            _ => PullError::RepoNotFound { repo, endpoint: self.env.endpoint.clone() },
        }
    }
}
