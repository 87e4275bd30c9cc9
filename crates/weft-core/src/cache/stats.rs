//! What the cache holds and what it has done.

use crate::store::StoreStats;

/// One tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Pieces of rows that are there.
    pub nodes: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Bytes they take.
    pub used_bytes: u64,
    /// Bytes they may take.
    pub budget_bytes: u64,
}

/// All tiers, and what happened since the engine was made.
#[derive(Clone, Debug, Default)]
pub struct CacheStats {
    /// The device's pages.
    pub device: TierStats,
    /// Main memory.
    pub ram: TierStats,
    /// Files.
    pub disk: TierStats,
    /// Prompt tokens whose rows were found.
    pub cached_tokens: u64,
    /// Prompt tokens that were computed.
    pub computed_tokens: u64,
    /// Times that rows left the device's pages.
    pub evicted_from_device: u64,
    /// Times that rows left main memory.
    pub evicted_from_ram: u64,
    /// Times that rows were lost, having no place to go.
    pub dropped: u64,
    /// Times that rows were brought back from main memory.
    pub brought_from_ram: u64,
    /// Times that rows were brought back from a file.
    pub brought_from_disk: u64,
    /// What the files tell, where there are any.
    pub store: Option<StoreStats>,
}
