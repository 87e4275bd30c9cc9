//! The targets of `weft-hostile`, with a bound on the memory that an input may take.

use std::alloc::System;

use cap::Cap;
pub use weft_hostile::*;

/// A larger allocation fails, which aborts.
const MEMORY_BYTES: usize = 1 << 30;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_BYTES);
