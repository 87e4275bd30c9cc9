//! Which sets of kernels have passed the tests of `compile.rs`, so that unchanged kernels are not
//! compiled again. A line of `passed.txt` has the name of a set, and a hash of everything that the
//! result depends on: sources, options, the compiler's version, and the tests themselves. A set
//! whose hash is another one is compiled. `make kernels` compiles such sets and writes their lines.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use sha2::{Digest, Sha256};
use weft_cuda::{CudaError, ModuleSource, cubin_name};

/// Ignores the record: every set is compiled, with every kernel.
pub fn every() -> bool {
    env::var_os("WEFT_EVERY_KERNEL").is_some()
}

/// A hash of all that the result of a test of these modules depends on.
pub fn hash_of(modules: &[ModuleSource], arch: &str) -> Result<String, CudaError> {
    let mut hash = Sha256::new();
    hash.update(include_str!("../compile.rs"));
    for module in modules {
        hash.update(&module.name);
        hash.update(cubin_name(&module.program, arch)?);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The record of the sets that passed, in a file.
pub struct Record<'a>(pub &'a Path);

impl Record<'_> {
    /// Set and hash of every line.
    fn read(&self) -> BTreeMap<String, String> {
        let text = fs::read_to_string(self.0).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        lines.map(|(set, hash)| (set.to_owned(), hash.to_owned())).collect()
    }

    /// Whether a set passed as it is now.
    pub fn has(&self, set: &str, hash: &str) -> bool {
        self.read().get(set).is_some_and(|passed| passed == hash)
    }

    /// Writes down that a set passed.
    pub fn add(&self, set: &str, hash: &str) {
        static WRITING: Mutex<()> = Mutex::new(());
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut passed = self.read();
        passed.insert(set.to_owned(), hash.to_owned());
        let lines: String = passed.iter().map(|(set, hash)| format!("{set} {hash}\n")).collect();
        fs::write(self.0, lines).unwrap();
    }
}
