//! Waits for the rows of a lane, while other lanes run.
//!
//! A device orders steps and copies by itself: a step waits for copies of its pages. But all lanes
//! of the step would wait with it, so a lane joins only when its pages are settled. Rows from a
//! file or the remote tier come later: until then, the lane computes what it can without them.

use std::time::{Duration, Instant};

use super::Sequence;
use crate::cache::Cache;
use crate::chunk::Tier;
use crate::device::Device;
use crate::engine::held::HeldNode;
use crate::kv::PageId;

/// The copies that a new lane waits for.
pub(in crate::engine) struct Settling {
    since: Instant,
    pages: Vec<PageId>,
}

impl Settling {
    pub(in crate::engine) fn new(nodes: &[HeldNode]) -> Self {
        let pages = nodes.iter().flat_map(|held| held.pages.iter().copied()).collect();
        Self { since: Instant::now(), pages }
    }
}

impl Sequence {
    /// Notes which rows have come since the last step. Copies of them to the device have just
    /// begun.
    pub(in crate::engine) fn check_arrived(&mut self, cache: &Cache) {
        let mut has_come = false;
        for held in self.nodes.iter_mut().filter(|held| held.awaits.is_some()) {
            let node = cache.node(held.node);
            if node.awaits().is_some() {
                continue;
            }
            let tier = held.awaits.take();
            held.time += node.read_time;
            // Otherwise there were none, and this lane or another one computes them.
            if node.filled >= held.range.len() {
                held.source = tier;
                held.is_rounded = node.is_rounded;
                held.count_saved(node);
                has_come = true;
            }
        }
        if has_come {
            self.settling = Some(Settling::new(&self.nodes));
        }
    }

    /// Whether rows are on their way to it.
    pub(in crate::engine) fn is_awaiting(&self) -> bool {
        self.nodes.iter().any(|held| held.awaits.is_some())
    }

    /// Starts the lane if its pages are settled.
    pub(in crate::engine) fn check_settled(&mut self, device: &dyn Device) {
        if self.settling.as_ref().is_some_and(|wait| device.is_settled(&wait.pages)) {
            self.end_settling();
        }
    }

    /// Waits until its pages are settled, or lets its next step wait for them.
    pub(in crate::engine) fn settle(&mut self, device: &mut dyn Device) {
        let Some(wait) = &self.settling else { return };
        if device.starts_early() {
            self.settles_in_step = self.settling.take();
        } else {
            device.settle(&wait.pages);
            self.end_settling();
        }
    }

    /// The time of waiting counts as loading its rows.
    fn end_settling(&mut self) {
        if let Some(wait) = self.settling.take() {
            self.count_loading(wait.since.elapsed());
        }
    }

    /// The part of a step's time that was spent on computing its tokens. If the step also waited
    /// for copies, that is an estimate, and the rest counts as loading rows.
    pub(super) fn computing_time(&mut self, cache: &mut Cache, time: Duration) -> Duration {
        let n_tokens = self.step.tokens.len();
        if self.settles_in_step.take().is_none() {
            cache.count_computed(n_tokens, time);
            return time;
        }
        let n_tokens = u32::try_from(n_tokens).unwrap_or(u32::MAX);
        let computing = cache.mean_cost().saturating_mul(n_tokens).min(time);
        self.count_loading(time - computing);
        computing
    }

    /// Counts time for the rows that come from other tiers.
    fn count_loading(&mut self, time: Duration) {
        let is_brought = |held: &&mut HeldNode| held.source.is_some_and(|tier| tier > Tier::Device);
        let rows: usize = self.nodes.iter_mut().filter(is_brought).map(|p| p.range.len()).sum();
        for held in self.nodes.iter_mut().filter(is_brought) {
            held.time += time.mul_f64(held.range.len() as f64 / rows as f64);
        }
    }
}
