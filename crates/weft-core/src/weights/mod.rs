//! Weights: which tensors a model has, and where their values come from.
//!
//! A device asks for each tensor once, row by row, and keeps it in whatever layout it computes
//! from; nothing here holds a whole model. Sources are [`Safetensors`] files and [`RandomWeights`].

mod header;
mod random;
mod safetensors;
mod shards;
mod tensor;

use thiserror::Error;

pub use self::random::RandomWeights;
pub use self::safetensors::Safetensors;
pub(crate) use self::shards::other_weight_files;
pub use self::shards::{INDEX_FILE, SINGLE_WEIGHTS_FILE, is_plain_file_name, shards_of_index};
pub use self::tensor::{LayerTensor, Tensor, TensorShape, parameters, tensors};

/// A source of weights. Several threads may read from it, each a tensor of its own.
pub trait Weights: Sync {
    /// Calls `visit(row, values)` for each row of the tensor, in order. A vector is one row.
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError>;

    /// Tells these weights from others: differs where any tensor differs as a whole.
    fn fingerprint(&self) -> [u8; 32];
}

/// Why weights cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The system failed to read a file.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// There are no weight files.
    #[error(
        "{folder} has no safetensors files; weft reads no other weights, so convert them first"
    )]
    NoFiles {
        /// The model's folder.
        folder: String,
    },
    /// The list of shards is broken.
    #[error("{file} is not a list of shards: {reason}")]
    Index {
        /// The index file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A safetensors header is broken.
    #[error("{file} is not a valid safetensors file: {reason}; download it again")]
    Header {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A file ends early or late.
    #[error("{file} has {found} bytes where its header says {expected}; download it again")]
    Length {
        /// The file.
        file: String,
        /// Length that header and tensors add up to.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
    /// A tensor the model needs is in no file.
    #[error("tensor `{name}` is missing: config.json asks for it, no weight file has it")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor that the model has no place for.
    #[error("tensor `{name}` in {file} has no place in this model; config.json does not fit it")]
    Surplus {
        /// Its name.
        name: String,
        /// The file that has it.
        file: String,
    },
    /// A tensor that two files have.
    #[error("tensor `{name}` is in {first} and in {second}; one of them is left over")]
    Twice {
        /// Its name.
        name: String,
        /// One file.
        first: String,
        /// The other.
        second: String,
    },
    /// A tensor of another shape than the config says.
    #[error("tensor `{name}` has shape {found:?}; config.json makes it {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape the config asks for.
        expected: Vec<usize>,
    },
    /// A tensor in a format weft does not read.
    #[error("tensor `{name}` is stored as {found}; weft reads BF16, F16 and F32")]
    Format {
        /// Its name.
        name: String,
        /// The format in the file.
        found: String,
    },
    /// The weights hold a value no computation survives.
    #[error(
        "tensor `{name}` holds {value} in row {row}; the file is damaged or was never finished"
    )]
    NotFinite {
        /// Its name.
        name: String,
        /// The row.
        row: usize,
        /// The value.
        value: f32,
    },
}
