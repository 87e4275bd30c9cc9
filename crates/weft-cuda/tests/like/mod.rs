//! The GPU that tests compute like.

use weft_core::device::Limits;
use weft_cuda::{Chip, Options};

/// What a GPU of 82 multiprocessors with 99 KiB of shared memory would run.
pub const SMALL: Chip = Chip { n_sms: 82, shared_bytes: 99 << 10, has_warpgroups: false };

/// The options of a device. With `WEFT_TEST_GPU=small` its kernels are those of an older, smaller
/// GPU, compiled for `compute_80`, wherever the tests run: no warpgroups, no bulk copies, shorter
/// rings. Such a device has no persistent kernel.
pub fn options(limits: Limits) -> Options {
    match std::env::var("WEFT_TEST_GPU") {
        Err(_) => Options::new(limits),
        Ok(name) if name == "small" => {
            Options { chip: Some(SMALL), arch: Some("compute_80"), ..Options::new(limits) }
        }
        Ok(name) => panic!("WEFT_TEST_GPU is {name}; it may only be `small`"),
    }
}
