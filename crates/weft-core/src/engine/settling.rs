//! Lanes whose pages are still copied to, or from: they wait, and those beside them go on.
//!
//! A device keeps the order by itself: a step that uses such a page waits for the copy. But all lanes of
//! a step would wait with it, so a new lane joins in when its pages are settled.

use std::time::Instant;

use super::Engine;
use super::parts::Part;
use super::sequence::Sequence;
use crate::chunk::Tier;
use crate::device::Device;
use crate::kv::PageId;

/// What a new lane waits for.
pub(super) struct Settling {
    since: Instant,
    pages: Vec<PageId>,
}

impl Settling {
    pub(super) fn new(parts: &[Part]) -> Self {
        let pages = parts.iter().flat_map(|part| part.pages.iter().copied()).collect();
        Self { since: Instant::now(), pages }
    }
}

impl Sequence {
    /// Goes on if its pages are settled.
    fn check_settled(&mut self, device: &dyn Device) {
        if self.settling.as_ref().is_some_and(|wait| device.is_settled(&wait.pages)) {
            self.end_settling();
        }
    }

    /// Waits until its pages are settled.
    fn settle(&mut self, device: &mut dyn Device) {
        if let Some(wait) = &self.settling {
            device.settle(&wait.pages);
            self.end_settling();
        }
    }

    /// What was waited for is what bringing its rows took.
    fn end_settling(&mut self) {
        let Some(wait) = self.settling.take() else { return };
        let is_brought = |part: &&mut Part| matches!(part.source, Some(Tier::Ram | Tier::Disk));
        let rows: usize = self.parts.iter_mut().filter(is_brought).map(|p| p.range.len()).sum();
        for part in self.parts.iter_mut().filter(is_brought) {
            part.time += wait.since.elapsed().mul_f64(part.range.len() as f64 / rows as f64);
        }
    }
}

impl Engine {
    /// Has lanes wait whose pages are not settled. Where no other can go on, the first is waited for.
    pub(super) fn await_copies(&mut self) {
        let Self { lanes, device, cache, .. } = self;
        lanes.iter_mut().for_each(|lane| lane.check_settled(&**device));
        // A lane may also wait for one that waits.
        if lanes.iter_mut().any(|lane| lane.pending(cache) > 0) {
            return;
        }
        let waits = |lane: &&mut Sequence| !lane.paused && lane.settling.is_some();
        if let Some(lane) = lanes.iter_mut().find(waits) {
            lane.settle(&mut **device);
        }
    }
}
