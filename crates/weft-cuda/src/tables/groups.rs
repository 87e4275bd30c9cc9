//! The counts for kernels for few tokens when they run a larger step.

use std::sync::Arc;

use super::{COUNTS, FEW};
use crate::driver::{Address, Gpu, Memory};
use crate::error::CudaError;

/// Up to this many tokens, matrices are streamed past a few tokens at a time: there would be so few
/// blocks of rows that most of the GPU would be idle.
pub(crate) const SEVERAL: usize = 4 * FEW;
/// The most tokens that a matrix is streamed past at once.
pub(crate) const SIXTEEN: usize = 2 * FEW;

/// The counts of steps of one to [`SIXTEEN`] tokens: for kernels that take some tokens of a larger
/// step.
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

    /// The counts of `n` tokens.
    pub(crate) fn of(&self, n: usize) -> Address {
        assert!((1..=SIXTEEN).contains(&n), "{n} tokens");
        self.memory.address().offset((n - 1) * COUNTS * 4)
    }
}
