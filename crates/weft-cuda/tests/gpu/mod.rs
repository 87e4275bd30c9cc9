//! Whether tests of the GPU can run.

use weft_cuda::{CudaError, probe};
use weft_testing::{Missing, skip};

/// Whether there is a GPU to test; if not, the test counts as skipped.
pub fn gpu_is_there() -> bool {
    match probe() {
        Ok(_) => true,
        Err(CudaError::Unavailable(reason)) => {
            skip(Missing::Gpu, &reason);
            false
        }
        Err(error) => panic!("{error}"),
    }
}
