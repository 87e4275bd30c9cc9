//! Measures ops alone: they are recorded once, and replayed with a cold cache and without the host.
//! Nothing here is part of an answer's step.

use weft_core::device::{Device, Step};
use weft_core::plan::Op;

use crate::device::CudaDevice;
use crate::driver::Memory;
use crate::error::CudaError;
use crate::ops::Pass;
use crate::sampling::Chosen;
use crate::tables::Family;

/// Writing this many bytes evicts everything else from the L2 cache of any GPU.
const COLD_BYTES: usize = 256 << 20;

impl CudaDevice {
    /// The time in µs that the GPU takes for ops on a step, without the host. The ops are recorded
    /// once and replayed `repeats` times, each time with a cold L2 cache. Steps of few tokens
    /// overlap their kernels as decoding does.
    pub fn replay_us(
        &mut self,
        ops: &[Op],
        step: &Step<'_>,
        repeats: usize,
    ) -> Result<Vec<f64>, CudaError> {
        self.run(ops, step).map_err(|error| CudaError::Driver {
            call: "the first run",
            reason: error.to_string(),
        })?;
        let family = Family::of(step.n_tokens());
        let (step, counts) = match family {
            Family::Few => (self.few.addresses(), self.lists.counts),
            Family::Many => (self.many.addresses(), self.lists.counts),
        };
        let pass = Pass {
            device: self,
            step,
            family,
            counts,
            joined: true,
            chosen: Chosen::ByHost,
            coming: None,
        };
        let _turn = self.gpu.turn()?;
        let graph = self.gpu.capture(|| pass.run(ops).map_err(|(_, error)| error))?;
        let other = Memory::new(&self.gpu, "emptying the cache", COLD_BYTES)?;
        graph.launch()?;
        let time = || {
            self.gpu.clear(&other, 0..other.bytes)?;
            Ok(self.gpu.time_ms(|| graph.launch())? * 1e3)
        };
        (0..repeats).map(|_| time()).collect()
    }
}
