//! Open weight files, read by several threads.

use std::io::SeekFrom;
use std::sync::{Mutex, PoisonError};

use super::WeightsError;
use super::header::Source;

/// Open files and their names.
#[derive(Default)]
pub(super) struct Files {
    pub(super) sources: Vec<Mutex<Box<dyn Source>>>,
    pub(super) names: Vec<String>,
}

impl Files {
    /// Locks the file only while it reads.
    pub(super) fn read(
        &self,
        file: usize,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), WeightsError> {
        let mut source = self.sources[file].lock().unwrap_or_else(PoisonError::into_inner);
        source
            .seek(SeekFrom::Start(offset))
            .and_then(|_| source.read_exact(bytes))
            .map_err(|source| WeightsError::Read { file: self.names[file].clone(), source })
    }
}
