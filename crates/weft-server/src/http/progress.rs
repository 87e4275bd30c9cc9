//! How far the model is loaded: set by the caller who loads it, read by `/health`.

use std::sync::{Arc, Mutex, PoisonError};

/// What is done before the server can answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadStage {
    /// A file is being downloaded.
    Downloading,
    /// The weights are being read.
    #[default]
    Loading,
}

impl LoadStage {
    /// The stage as a word.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Downloading => "downloading",
            Self::Loading => "loading",
        }
    }
}

/// How far the model is loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadProgress(Arc<Mutex<(LoadStage, f64)>>);

impl LoadProgress {
    /// Sets the stage, and the share of it that is done, from 0 to 1.
    pub fn set(&self, stage: LoadStage, done: f64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (stage, done.clamp(0.0, 1.0));
    }

    /// Nothing is done yet.
    pub(crate) fn reset(&self) {
        self.set(LoadStage::default(), 0.0);
    }

    pub(crate) fn get(&self) -> (LoadStage, f64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
