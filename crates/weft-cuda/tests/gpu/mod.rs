//! Whether tests of the GPU can run.

use weft_cuda::{CudaError, probe};

/// Whether there is a GPU to test. Where one is required and missing, the test fails.
pub fn gpu_is_there() -> bool {
    match probe() {
        Ok(_) => true,
        Err(CudaError::Unavailable(reason)) => {
            let required = std::env::var("WEFT_REQUIRE_GPU").is_ok_and(|value| value == "1");
            assert!(!required, "a GPU is required: {reason}");
            println!("skipped: no CUDA device ({reason})");
            false
        }
        Err(error) => panic!("{error}"),
    }
}
