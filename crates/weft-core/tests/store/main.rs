//! Chunks on disk: the store returns exactly the rows that were written, whatever happens to disk
//! and processes.
//!
//! Each module tests one kind of fault. Tests that need another process start this program again,
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

/// The test ends if more than this is allocated: no file may make the store allocate it, whatever
/// sizes it claims.
const MEMORY_LIMIT: usize = 96 << 20;

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, MEMORY_LIMIT);
