//! Makes room for a model before it is loaded: plans its memory, and unloads those that have not
//! been used for the longest time until it fits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use super::source::LoadFailure;
use super::{Entry, EntryState, MemoryNeed, OpenModel, Registry, Served, Stage};

/// The memory that was planned for a model; none before its turn to load, and while it is loaded
/// again after a fault.
#[derive(Default)]
pub(super) struct Planned(Mutex<Option<MemoryNeed>>);

impl Planned {
    pub(super) fn get(&self) -> Option<MemoryNeed> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces it; returns what was planned before.
    pub(super) fn set(&self, need: Option<MemoryNeed>) -> Option<MemoryNeed> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), need)
    }
}

/// A model that has memory, and how much.
fn loaded(slot: &EntryState) -> Option<(&Arc<Served>, MemoryNeed)> {
    let Stage::Loaded(served) = &slot.stage else { return None };
    Some((served, served.need.get()?))
}

/// Bytes that loaded models have reserved on the CPU and not taken from the system yet.
fn outstanding<'s>(others: impl Iterator<Item = &'s EntryState>) -> u64 {
    let left = |slot: &EntryState| {
        let (_, need) = loaded(slot)?;
        Some(need.lazy_bytes.saturating_sub(slot.entry.metrics.cache().device.used_bytes))
    };
    others.filter_map(left).sum()
}

impl MemoryNeed {
    /// Whether the memory is there, beside what others will still take.
    pub(super) fn fits(&self, outstanding: u64) -> bool {
        let outstanding = if self.on_gpu { 0 } else { outstanding };
        self.free_bytes.is_none_or(|free| self.bytes <= free.saturating_sub(outstanding))
    }
}

impl Registry {
    /// Plans a model's memory and unloads others until it fits, as long as somebody waits for it.
    /// If none are left to unload, it is loaded as it is, or fails with the reason. Blocks the
    /// thread that will load it: a model in use is waited for, and gets no new requests meanwhile.
    pub(super) fn make_room(
        &self,
        entry: &Arc<Entry>,
        open: &dyn OpenModel,
    ) -> Result<MemoryNeed, LoadFailure> {
        let made = self.unload_until_it_fits(entry, open);
        for slot in self.slots().iter_mut() {
            slot.is_leaving = false;
        }
        self.notify();
        made
    }

    fn unload_until_it_fits(
        &self,
        entry: &Arc<Entry>,
        open: &dyn OpenModel,
    ) -> Result<MemoryNeed, LoadFailure> {
        loop {
            let need = open.plan()?;
            let mut slots = self.slots();
            if self.is_closing() {
                return Err(LoadFailure::hidden("the server is shutting down"));
            }
            let is_other = |slot: &&EntryState| !Arc::ptr_eq(&slot.entry, entry);
            let others = || slots.iter().filter(is_other);
            let n_loaded = others().filter(|slot| loaded(slot).is_some()).count();
            let is_one_ending = others().any(|slot| matches!(slot.stage, Stage::Unloading(_)));
            let may_be_one_more = self.settings.max_loaded.is_none_or(|most| n_loaded < most);
            let has_room = may_be_one_more && need.fits(outstanding(others()));
            if !is_one_ending && (has_room || n_loaded == 0) {
                return Ok(need);
            }
            let own = slots.iter_mut().find(|slot| Arc::ptr_eq(&slot.entry, entry));
            if let Some(slot) = own.filter(|slot| slot.users == 0)
                && let Some(served) = slot.served()
            {
                // Nobody who comes now finds this load; its thread ends.
                served.is_unwanted.store(true, Ordering::Relaxed);
                slot.stage = Stage::Unloading(served);
                return Err(LoadFailure::hidden("nobody waits for it any more"));
            }
            let others = slots.iter_mut().filter(|slot| !Arc::ptr_eq(&slot.entry, entry));
            // Those that are idle before those in use, then the longest unused.
            let victim = others
                .filter(|slot| !is_one_ending && loaded(slot).is_some())
                .min_by_key(|slot| (slot.idle().is_none(), slot.last_used));
            if let Some(slot) = victim {
                if let Some(served) = Self::take_idle(slot) {
                    let victim = Arc::clone(&slot.entry);
                    drop(slots);
                    (self.settings.log)(&format!(
                        "{} is unloaded: {} needs its room",
                        victim.name.id, entry.name.id
                    ));
                    self.end(&victim, served);
                    continue;
                }
                slot.is_leaving = true;
            }
            drop(self.changed.wait(slots).unwrap_or_else(PoisonError::into_inner));
        }
    }
}
