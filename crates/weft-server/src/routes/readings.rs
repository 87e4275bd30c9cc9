//! Reads the last tokens of a request's prompts, a few at a time.
//!
//! A request may have thousands of prompts. Only as many as fill the lanes twice are in the queue,
//! so a chat that arrives meanwhile waits for those and not for all.

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use weft_core::chunk::Composition;
use weft_core::engine::{Reading, Request, Stats};

use crate::api_error::ApiError;
use crate::registry::Lease;
use crate::worker::{ChoiceEvent, Job, JobError, JobEvent, JobHandle, MAX_READINGS};

/// Prompts of one request that run or wait for a lane: while some run, the next ones are there.
const AT_ONCE: usize = 2 * MAX_READINGS;

/// The tokens of a request that reads.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct ReadUsage {
    pub(crate) prompt_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: CachedTokens,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct CachedTokens {
    cached_tokens: usize,
}

impl ReadUsage {
    fn add(&mut self, stats: &Stats) {
        self.prompt_tokens += stats.prompt_tokens;
        self.total_tokens += stats.prompt_tokens;
        self.prompt_tokens_details.cached_tokens += stats.cached_tokens;
    }
}

/// Reads all prompts, and returns what was read in the same order. The first one that fails ends
/// the others; so does a client that leaves.
pub(super) async fn read_all(
    lease: &Lease,
    prompts: Vec<Composition>,
    reading: &Reading,
) -> Result<(Vec<Vec<f32>>, ReadUsage), ApiError> {
    let read = |(index, prompt): (usize, Composition)| async move {
        let job = Job::Read(Box::new(Request::read(prompt, reading.clone())));
        // A full queue refuses a request, but does not break it off.
        let handle = match index {
            0 => lease.submit(vec![job]).await?,
            _ => lease.submit_next(job).await?,
        };
        end(handle).await
    };
    let mut usage = ReadUsage::default();
    let read: Vec<Vec<f32>> = stream::iter(prompts.into_iter().enumerate())
        .map(read)
        .buffered(AT_ONCE)
        .map_ok(|(values, stats)| {
            usage.add(&stats);
            values
        })
        .try_collect()
        .await?;
    Ok((read, usage))
}

/// Waits for what a job reads.
async fn end(mut handle: JobHandle) -> Result<(Vec<f32>, Stats), ApiError> {
    let mut values = Vec::new();
    loop {
        // The channel closes early only if the engine has failed.
        let ChoiceEvent { event, .. } = handle.events.recv().await.ok_or(JobError::Fault)?;
        match event {
            JobEvent::Read(read) => values = read,
            JobEvent::Done(finished) => return Ok((values, finished.stats)),
            JobEvent::Cancelled(_) => return Err(JobError::Ended.into()),
            JobEvent::Failed(error) => return Err(error.into()),
            JobEvent::Admitted
            | JobEvent::Progress(_)
            | JobEvent::Token { .. }
            | JobEvent::Rows(_) => {}
        }
    }
}
