//! Broken and hostile model files, read by a process whose memory is bounded.

mod configs;
mod loading;
mod packed;

use std::alloc::System;

use cap::Cap;

/// The program ends if more than this is allocated: nothing in it may need more, whatever a file
/// claims.
const MEMORY_LIMIT: usize = 96 << 20;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_LIMIT);
