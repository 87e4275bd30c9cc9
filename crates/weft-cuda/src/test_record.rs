//! A note on disk, beside the cubins, that a test of the device has passed.

use std::path::PathBuf;

use sha2::{Digest, Sha256};
use weft_core::config::Config;
use weft_core::weights::Forms;

use crate::compile;
use crate::driver;
use crate::error::CudaError;
use crate::kernels::modules;

/// What a note says.
const PASSED: &[u8] = b"passed";

/// A note that a test with a model has passed. It holds for the same GPU, driver and kernels: any
/// other has another name.
pub struct TestRecord {
    entry: Option<PathBuf>,
}

impl TestRecord {
    /// The note about a test with this model, on the GPU that a device would use.
    ///
    /// # Errors
    /// If there is no GPU or no compiler.
    pub fn new(config: &Config, forms: &Forms) -> Result<Self, CudaError> {
        let gpu = driver::open(0)?;
        let arch = gpu.facts.arch();
        let mut facts = vec![env!("CARGO_PKG_VERSION").to_owned(), gpu.facts.identity()];
        for module in modules(config, forms, gpu.facts.chip, false)? {
            facts.push(compile::cubin_name(&module.program, &arch)?);
        }
        let hash = compile::hex(&Sha256::digest(facts.join("\n")));
        Ok(Self { entry: compile::entry(&format!("{hash}.tested")) })
    }

    /// Whether the test has passed before.
    pub fn has_passed(&self) -> bool {
        let read = self.entry.as_deref().and_then(compile::read_entry);
        read.is_some_and(|said| said == PASSED)
    }

    /// Notes that the test has passed. If it cannot be written, the next start tests again.
    pub fn keep(&self) {
        if let Some(entry) = &self.entry {
            let _ = compile::write_entry(entry, PASSED);
        }
    }
}
