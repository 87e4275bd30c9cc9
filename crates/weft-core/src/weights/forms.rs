//! The forms of all matrices of a model, and the bytes that they take.

use std::collections::HashMap;

use super::{Form, Tensor, TensorShape, Weights, tensors};
use crate::config::Config;
use crate::dtype::Dtype;

/// The form of each matrix of a model.
#[derive(Clone, Debug, Default)]
pub struct Forms {
    /// Those that are not plain.
    coded: HashMap<Tensor, Form>,
}

impl Forms {
    /// The forms of a source.
    pub fn of(weights: &dyn Weights, config: &Config) -> Self {
        let forms = tensors(config).into_iter().map(|s| (s.tensor, weights.form(s.tensor)));
        Self { coded: forms.filter(|(_, form)| *form != Form::Plain).collect() }
    }

    /// Whether all matrices are plain.
    pub fn all_plain(&self) -> bool {
        self.coded.is_empty()
    }

    /// The form of a tensor.
    pub fn of_tensor(&self, tensor: Tensor) -> Form {
        self.coded.get(&tensor).copied().unwrap_or_default()
    }

    /// Bytes of a tensor, without padding; plain ones are stored as `dtype`.
    pub fn bytes(&self, tensor: &TensorShape, dtype: Dtype) -> u64 {
        self.of_tensor(tensor.tensor).bytes(tensor.rows(), tensor.row(), dtype)
    }

    /// Bytes of all tensors, the tied head counted once.
    pub fn total_bytes(&self, config: &Config, dtype: Dtype) -> u64 {
        tensors(config).iter().map(|tensor| self.bytes(tensor, dtype)).sum()
    }
}
