//! Chooses the entries to evict.
//!
//! Least recently used first, weighted by the cost of recomputing: an entry's age is multiplied by
//! its bytes per microsecond of prefill saved. Of two entries of the same age and size, the cheaper
//! one is evicted; an expensive one stays until it has been idle for proportionally longer.

use std::time::SystemTime;

use super::KvKey;
use super::index::Entry;

/// The keys to evict so that `need` bytes are freed, worst first. If all entries together are
/// smaller, all of them.
pub(super) fn victims<'a>(
    entries: impl Iterator<Item = (&'a KvKey, &'a Entry)>,
    need: u64,
    now: SystemTime,
) -> Vec<KvKey> {
    let mut ranked: Vec<(f64, SystemTime, KvKey, u64)> = entries
        .map(|(key, entry)| (weighted_age(entry, now), entry.last_use, *key, entry.bytes))
        .collect();
    // Ties are broken by time, then by key, so that the same folder always gives the same order.
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    let mut freed = 0;
    ranked
        .into_iter()
        .take_while(|(_, _, _, bytes)| {
            let is_needed = freed < need;
            freed += bytes;
            is_needed
        })
        .map(|(_, _, key, _)| key)
        .collect()
}

/// Seconds since the last use, times bytes, per microsecond of prefill.
fn weighted_age(entry: &Entry, now: SystemTime) -> f64 {
    // A time in the future, after the clock was set back, counts as now.
    let age = now.duration_since(entry.last_use).unwrap_or_default();
    age.as_secs_f64() * entry.bytes as f64 / entry.header.prefill_us.max(1) as f64
}
