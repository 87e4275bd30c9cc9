//! Downloads one file into its blob.
//!
//! It resumes, checks length and hash, and keeps the cache valid if the process is killed at any
//! moment: bytes go to `<etag>.incomplete`, are checked there, and only then get the blob's name.
//! URLs and the choice of files are handled elsewhere.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use ureq::Body;
use ureq::http::Response;
use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE};

use super::Pull;
use super::error::PullError;
use super::hash::Hash;
use super::info::FileInfo;
use super::retry::{Failure, classify, with_retries};
use crate::progress::Event;

const BUFFER_BYTES: usize = 256 << 10;

/// One file to fetch.
pub(super) struct Download<'a> {
    pub(super) pull: &'a Pull<'a>,
    pub(super) file: &'a str,
    pub(super) info: FileInfo,
    /// The file's hash, if the hub announces one.
    pub(super) hash: Option<Hash>,
}

impl Download<'_> {
    /// Ensures that the blob exists, complete and checked.
    pub(super) fn run(&self) -> Result<(), PullError> {
        let &Pull { ref layout, limits, progress, .. } = self.pull;
        let (file, etag) = (self.file, self.info.etag.as_str());
        let _lock = layout.lock(etag, || progress.report(Event::Waiting { file }))?;
        let blob = layout.blob(etag);
        if len_of(&blob) == Some(self.info.size_bytes)
            && self.pull.is_sound(file, &blob, self.hash.as_ref())?
        {
            progress.report(Event::Cached { file });
            return Ok(());
        }
        let reached = || len_of(&self.path()).unwrap_or(0);
        with_retries(file, limits, progress, reached, || self.attempt())?;
        self.verify()?;
        layout.publish_blob(etag)?;
        progress.report(Event::Finished { file, size_bytes: self.info.size_bytes });
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.pull.layout.incomplete(&self.info.etag)
    }

    /// One connection: fetches the missing bytes.
    fn attempt(&self) -> Result<(), Failure> {
        let (path, size_bytes) = (self.path(), self.info.size_bytes);
        let open = File::options().create(true).append(true).open(&path);
        let mut out = open.map_err(|e| PullError::write(&path, e))?;
        let mut have_bytes = len_of(&path).unwrap_or(0);
        if have_bytes > size_bytes {
            have_bytes = self.restart(&out)?;
        }
        self.pull.progress.report(Event::Started { file: self.file, size_bytes, have_bytes });
        if have_bytes == size_bytes {
            return Ok(());
        }
        let response = self.pull.client.open(&self.pull.listing.sha, self.file, have_bytes)?;
        match response.status().as_u16() {
            206 => self.check_range(&response, have_bytes, &out)?,
            416 => {
                self.restart(&out)?;
                return Err(Failure::Passing("the server has nothing at this offset".to_owned()));
            }
            // The server sent the whole file, whatever the request asked for.
            _ => {
                self.check_length(&response)?;
                if have_bytes > 0 {
                    have_bytes = self.restart(&out)?;
                    self.pull.progress.report(Event::Received { have_bytes });
                }
            }
        }
        self.copy(response, &mut out, have_bytes)
    }

    /// Discards the bytes on disk; returns how many are left.
    fn restart(&self, out: &File) -> Result<u64, PullError> {
        out.set_len(0).map_err(|e| PullError::write(&self.path(), e))?;
        Ok(0)
    }

    /// Checks that a partial response starts exactly at the end of the file on disk.
    fn check_range(
        &self,
        response: &Response<Body>,
        have_bytes: u64,
        out: &File,
    ) -> Result<(), Failure> {
        let header = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
        match header.and_then(parse_content_range) {
            Some((_, Some(total))) if total != self.info.size_bytes => {
                Err(self.wrong_length(format!("has {total}")).into())
            }
            Some((start, _)) if start == have_bytes => Ok(()),
            _ => {
                self.restart(out)?;
                Err(Failure::Passing(format!("the server answered with range {header:?}")))
            }
        }
    }

    fn check_length(&self, response: &Response<Body>) -> Result<(), PullError> {
        let header = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        match header.and_then(|text| text.parse::<u64>().ok()) {
            Some(length) if length != self.info.size_bytes => {
                Err(self.wrong_length(format!("sends {length}")))
            }
            _ => Ok(()),
        }
    }

    fn wrong_length(&self, actual: String) -> PullError {
        let expected = self.info.size_bytes;
        PullError::WrongLength { file: self.file.to_owned(), expected, actual }
    }

    fn copy(
        &self,
        response: Response<Body>,
        out: &mut File,
        mut have_bytes: u64,
    ) -> Result<(), Failure> {
        let size_bytes = self.info.size_bytes;
        let mut reader = response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let n = reader.read(&mut buffer).map_err(|e| classify(self.file, e.into()))?;
            if n == 0 {
                break;
            }
            if have_bytes + n as u64 > size_bytes {
                self.restart(out)?;
                return Err(self.wrong_length("sends more".to_owned()).into());
            }
            out.write_all(&buffer[..n]).map_err(|e| PullError::write(&self.path(), e))?;
            have_bytes += n as u64;
            self.pull.progress.report(Event::Received { have_bytes });
        }
        if have_bytes < size_bytes {
            let reason = format!("the answer ended at byte {have_bytes} of {size_bytes}");
            return Err(Failure::Passing(reason));
        }
        Ok(())
    }

    /// Checks the received bytes by their hash.
    fn verify(&self) -> Result<(), PullError> {
        let Some(expected) = &self.hash else { return Ok(()) };
        let path = self.path();
        self.pull.progress.report(Event::Verifying { file: self.file });
        let actual = expected.of_file(&path).map_err(|e| PullError::write(&path, e))?;
        if actual == *expected {
            return Ok(());
        }
        // A damaged file would make every later pull fail in the same way.
        fs::remove_file(&path).map_err(|e| PullError::write(&path, e))?;
        let (file, expected, actual) =
            (self.file.to_owned(), expected.to_string(), actual.to_string());
        Err(PullError::WrongHash { file, expected, actual })
    }
}

fn len_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.len())
}

/// `bytes 5-9/10` as (5, Some(10)); the total may be unknown (`*`).
fn parse_content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.parse().ok()?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((start, total))
}
