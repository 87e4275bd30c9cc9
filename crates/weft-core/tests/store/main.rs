//! Chunks on disk: what is served is what was written, whatever happens to disk and processes.
//!
//! Each module takes one kind of mishap. Tests that need another process start this program again,
//! with the name of the test and a folder in the environment.

#![cfg(unix)]

mod budget;
mod damage;
mod disk;
mod entries;
mod model;
mod processes;
mod samples;
mod transfer;

use cap::Cap;

/// More than this at once, and the whole test ends: no file may make the store take it, whatever
/// sizes it claims.
const MEMORY_LIMIT: usize = 96 << 20;

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, MEMORY_LIMIT);
