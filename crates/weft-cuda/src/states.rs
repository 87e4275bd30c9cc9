//! The states of a step's last tokens: x as the last op of a run left it, normalised by the host.
//!
//! A run that ends before the head leaves x in its buffer, however it was launched: the persistent
//! kernel stores x if the op that writes it is the last of its launch. A state is a few kilobytes,
//! so the host applies the final norm, in the order of the reference.

use half::bf16;
use weft_core::device::Step;
use weft_core::reference::rms_norm;

use crate::CudaDevice;
use crate::error::CudaError;

impl CudaDevice {
    /// rms_norm(x) of each lane's last token.
    pub(crate) fn read_states(&self, step: &Step<'_>) -> Result<Vec<Vec<f32>>, CudaError> {
        let mut weight = vec![bf16::ZERO; self.config.hidden];
        self.weights.final_norm.read(0, &mut weight)?;
        let mut end = 0;
        let mut state = |n_tokens: usize| {
            end += n_tokens;
            let x = self.buffers.x.read_row(end - 1)?;
            let mut norm = vec![0.0; x.len()];
            rms_norm(&x, &weight, self.config.norm_eps, &mut norm);
            Ok(norm)
        };
        step.lanes.iter().map(|lane| state(lane.tokens.len())).collect()
    }
}
