//! The counts that kernels for few tokens see of a larger step.

use std::sync::Arc;

use super::{COUNTS, FEW};
use crate::driver::{Address, Gpu, Memory};
use crate::error::CudaError;

/// The most tokens whose matrices are still streamed past them, a few at a time: blocks of rows would be so
/// few that most of the GPU had nothing to do.
pub(crate) const SEVERAL: usize = 4 * FEW;
/// The most tokens that a matrix is streamed past at once.
pub(crate) const SIXTEEN: usize = 2 * FEW;

/// The counts of steps of one to [`SIXTEEN`] tokens: for kernels that take some tokens of a larger step.
pub(crate) struct GroupCounts {
    memory: Memory,
}

impl GroupCounts {
    pub(crate) const BYTES: usize = SIXTEEN * COUNTS * 4;

    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        let memory = Memory::new(gpu, "counts of tokens", Self::BYTES)?;
        let mut words = [[0_u32; COUNTS]; SIXTEEN];
        (1..).zip(&mut words).for_each(|(n, counts)| counts[0] = n);
        memory.write(0, &words)?;
        Ok(Self { memory })
    }

    /// Those of `n` tokens.
    pub(crate) fn of(&self, n: usize) -> Address {
        assert!((1..=SIXTEEN).contains(&n), "{n} tokens");
        self.memory.address().offset((n - 1) * COUNTS * 4)
    }
}
