//! Reads the last tokens of a request's prompts, in groups that fill the lanes.
//!
//! A request may have thousands of prompts. Only as many as fill the lanes twice are in the queue,
//! so a chat that arrives meanwhile waits for those and not for all. The prompts of a group are
//! queued together, so that they share steps from the first one on and the engine is woken once.
//! Prompts that are the same are read once.

use std::collections::HashMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use weft_core::chunk::Composition;
use weft_core::engine::{Reading, Request, Stats};

use crate::api_error::ApiError;
use crate::registry::Lease;
use crate::worker::{ChoiceEvent, Job, JobError, JobEvent, JobHandle, MAX_READINGS};

/// Groups of one request that run or wait for lanes: while one runs, the next is there.
const AT_ONCE: usize = 2;

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
    let (prompts, places) = distinct(prompts);
    let job = |prompt| Job::Read(Box::new(Request::read(prompt, reading.clone())));
    let mut jobs = prompts.into_iter().map(job);
    let groups = std::iter::from_fn(|| {
        let group: Vec<Job> = jobs.by_ref().take(MAX_READINGS).collect();
        (!group.is_empty()).then_some(group)
    });
    let read = |(index, group): (usize, Vec<Job>)| async move {
        let n = group.len();
        // A full queue refuses a request, but does not break it off.
        let handle = match index {
            0 => lease.submit(group).await?,
            _ => lease.submit_next(group).await?,
        };
        Ok::<_, ApiError>((index, end(handle, n).await?))
    };
    let groups = stream::iter(groups.enumerate()).map(read).buffer_unordered(AT_ONCE);
    let mut groups: Vec<(usize, Vec<Read>)> = groups.try_collect().await?;
    groups.sort_unstable_by_key(|(index, _)| *index);
    let mut read: Vec<Read> = groups.into_iter().flat_map(|(_, group)| group).collect();
    let mut usage = ReadUsage::default();
    let values = places.into_iter().map(|place| {
        let (values, stats) = &mut read[place];
        usage.add(stats);
        // The next one of the same prompt costs nothing.
        stats.cached_tokens = stats.prompt_tokens;
        values.clone()
    });
    Ok((values.collect(), usage))
}

/// The prompts without those that are the same as an earlier one, and the place of each among them.
fn distinct(prompts: Vec<Composition>) -> (Vec<Composition>, Vec<usize>) {
    let mut places: HashMap<Vec<u32>, usize> = HashMap::new();
    let mut kept = Vec::new();
    let mut place = |prompt: Composition| {
        *places.entry(prompt.tokens()).or_insert_with(|| {
            kept.push(prompt);
            kept.len() - 1
        })
    };
    let order = prompts.into_iter().map(&mut place).collect();
    (kept, order)
}

/// What was read of a prompt, and what it cost.
type Read = (Vec<f32>, Stats);

/// Waits for what a group of jobs reads.
async fn end(mut handle: JobHandle, n: usize) -> Result<Vec<Read>, ApiError> {
    let mut read: Vec<Read> = vec![<_>::default(); n];
    let mut left = n;
    while left > 0 {
        // The channel closes early only if the engine has failed.
        let ChoiceEvent { choice, event } = handle.events.recv().await.ok_or(JobError::Fault)?;
        match event {
            JobEvent::Read(values) => read[choice].0 = values,
            JobEvent::Done(finished) => {
                read[choice].1 = finished.stats;
                left -= 1;
            }
            JobEvent::Cancelled(_) => return Err(JobError::Ended.into()),
            JobEvent::Failed(error) => return Err(error.into()),
            JobEvent::Admitted
            | JobEvent::Progress(_)
            | JobEvent::Token { .. }
            | JobEvent::Prompt(_)
            | JobEvent::Rows(_) => {}
        }
    }
    Ok(read)
}
