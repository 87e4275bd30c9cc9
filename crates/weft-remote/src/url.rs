//! From a URL to a store: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///folder`.
//!
//! Credentials and endpoints come from the environment, under the names that object_store reads
//! (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME` …).

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use crate::http::Connector;
use crate::miss::first_line;

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The URL does not name a store.
    #[error(
        "the remote store {url:?} is not used: {reason}; give s3://BUCKET/PREFIX, \
         gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER"
    )]
    Url {
        /// The URL as given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The settings in the environment do not suffice, or contradict each other.
    #[error("the remote store {url:?} is not used: {reason}; check its variables (docs/store.md)")]
    Settings {
        /// The URL as given.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// No threads could be started.
    #[error("the remote store's threads cannot be started: {0}")]
    Threads(std::io::Error),
}

/// Limits on the time of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) connect: Duration,
    pub(crate) request: Duration,
    /// Of all attempts of one request.
    pub(crate) retries: Duration,
}

/// How often a request is tried again at most.
const RETRIES: usize = 2;

/// The store of a URL, and the prefix of its objects.
pub(crate) fn open(url: &str, times: Times) -> Result<(Arc<dyn ObjectStore>, Path), RemoteError> {
    let wrong = |reason: String| RemoteError::Url { url: url.to_owned(), reason };
    let settings = |error: object_store::Error| {
        let reason = first_line(&error);
        RemoteError::Settings { url: url.to_owned(), reason }
    };
    let (scheme, rest) =
        url.split_once("://").ok_or_else(|| wrong("it has no scheme".to_owned()))?;
    if scheme == "file" {
        return open_folder(rest).map_err(wrong);
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = Path::parse(prefix.trim_end_matches('/'))
        .map_err(|error| wrong(format!("its prefix cannot name objects ({error})")))?;
    let known = ["s3", "s3a", "gs", "az", "azure"];
    if !known.contains(&scheme) {
        return Err(wrong(format!("it begins with {scheme:?}")));
    }
    if bucket.is_empty() || bucket.contains(['@', '?', '#', ' ']) {
        return Err(wrong("it names no bucket".to_owned()));
    }
    let connector = Connector { connect: times.connect, request: times.request };
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(1),
            base: 2.0,
        },
        max_retries: RETRIES,
        retry_timeout: times.retries,
    };
    let store: Arc<dyn ObjectStore> = match scheme {
        "s3" | "s3a" => Arc::new(
            AmazonS3Builder::from_env()
                .with_bucket_name(bucket)
                .with_http_connector(connector)
                .with_retry(retry)
                .build()
                .map_err(settings)?,
        ),
        "gs" => Arc::new(
            GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(bucket)
                .with_http_connector(connector)
                .with_retry(retry)
                .build()
                .map_err(settings)?,
        ),
        _ => Arc::new(
            MicrosoftAzureBuilder::from_env()
                .with_container_name(bucket)
                .with_http_connector(connector)
                .with_retry(retry)
                .build()
                .map_err(settings)?,
        ),
    };
    Ok((store, prefix))
}

fn open_folder(rest: &str) -> Result<(Arc<dyn ObjectStore>, Path), String> {
    if !rest.starts_with('/') {
        return Err("a folder needs three slashes and its whole path".to_owned());
    }
    std::fs::create_dir_all(rest).map_err(|error| format!("its folder: {error}"))?;
    let store = LocalFileSystem::new_with_prefix(rest).map_err(|error| first_line(&error))?;
    Ok((Arc::new(store), Path::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times {
        connect: Duration::from_secs(1),
        request: Duration::from_secs(1),
        retries: Duration::from_secs(1),
    };

    #[test]
    fn urls_name_stores_and_prefixes() {
        let (_, prefix) = open("s3://bucket/team/kv/", TIMES).unwrap();
        assert_eq!(prefix.as_ref(), "team/kv");
        let (_, prefix) = open("s3://bucket", TIMES).unwrap();
        assert_eq!(prefix.as_ref(), "");
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a/b");
        open(&format!("file://{}", below.display()), TIMES).unwrap();
        assert!(below.is_dir());
    }

    #[test]
    fn what_is_no_url_of_a_store_is_refused_with_the_forms() {
        for url in [
            "",
            "bucket",
            "s3:/bucket",
            "s3://",
            "s3:///prefix",
            "s3://user@host/x",
            "s3://bucket/a//b",
            "s3://bucket/../x",
            "ftp://bucket",
            "file://relative",
        ] {
            let error = open(url, TIMES).unwrap_err().to_string();
            assert!(error.contains("s3://BUCKET/PREFIX"), "{url}: {error}");
        }
    }
}
