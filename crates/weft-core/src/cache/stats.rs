//! Contents and counters of the cache.

use super::RemoteStats;
use crate::store::StoreStats;

/// One tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Number of nodes.
    pub nodes: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Bytes used.
    pub used_bytes: u64,
    /// Maximum bytes.
    pub budget_bytes: u64,
}

/// All tiers, and counters since the engine was created.
#[derive(Clone, Debug, Default)]
pub struct CacheStats {
    /// The device's pages.
    pub device: TierStats,
    /// Main memory.
    pub ram: TierStats,
    /// Files.
    pub disk: TierStats,
    /// Those of them with rows in 8 bits. `used_bytes` is what the rows take on the device.
    pub coarse: TierStats,
    /// Prompt tokens whose rows were found.
    pub cached_tokens: u64,
    /// Prompt tokens that were computed.
    pub computed_tokens: u64,
    /// Number of evictions from the device's pages.
    pub evicted_from_device: u64,
    /// Number of evictions from main memory.
    pub evicted_from_ram: u64,
    /// Number of nodes lost because no tier had room.
    pub dropped: u64,
    /// Number of nodes that were not filed because too many rows waited for the disk.
    pub unfiled: u64,
    /// Number of nodes loaded from main memory.
    pub brought_from_ram: u64,
    /// Number of nodes loaded from files.
    pub brought_from_disk: u64,
    /// Number of nodes loaded from the remote tier.
    pub brought_from_remote: u64,
    /// Number of nodes loaded from files or the remote tier whose rows are stored in 8 bits.
    pub brought_coarse: u64,
    /// Number of nodes that were computed although a file had them, because that is faster.
    pub computed_again: u64,
    /// Number of nodes that the remote tier was not asked for, because computing them is expected
    /// to be faster.
    pub not_asked: u64,
    /// Bytes of the indexes of chunks that drafts are looked up in.
    pub draft_index_bytes: u64,
    /// Counters of the store, if there is one.
    pub store: Option<StoreStats>,
    /// Counters of the remote tier, if there is one.
    pub remote: Option<RemoteStats>,
}
