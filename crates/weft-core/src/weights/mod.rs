//! Weights: the tensors of a model, and the sources of their values.
//!
//! A device reads each tensor once, row by row, and stores it in its own layout. Nothing here holds
//! a whole model. The sources are [`Safetensors`] files, [`Gguf`] files and [`RandomWeights`].

mod files;
mod form;
mod forms;
mod gguf;
mod header;
mod output;
mod packed;
mod place;
mod quantise;
mod random;
mod safetensors;
mod shards;
mod tensor;

use std::ops::Range;

use thiserror::Error;

pub use self::form::{
    Code, Coded, CodedRow, Form, Offset, Offsets, Scale, Scales, Table, UNIT_COLUMNS, fp8,
};
pub use self::forms::Forms;
pub(crate) use self::gguf::{Blocks, NewGguf, NewMetadata, Wrong, describe_config};
pub use self::gguf::{GGUF_SUFFIX, Gguf, GgufWeights, Metadata, PartName};
pub(crate) use self::output::Meter;
pub use self::output::WriteError;
pub(crate) use self::packed::NewFolder;
pub use self::quantise::{Quantised, Quantiser};
pub use self::random::RandomWeights;
pub use self::safetensors::Safetensors;
pub(crate) use self::shards::other_weight_files;
pub use self::shards::{INDEX_FILE, SINGLE_WEIGHTS_FILE, is_plain_file_name, shards_of_index};
pub use self::tensor::{LayerTensor, Tensor, TensorShape, active_parameters, parameters, tensors};

/// A source of weights. Several threads may read different tensors at once.
pub trait Weights: Sync {
    /// Calls `visit(row, values)` for each row of the tensor, in order. A vector is one row. The
    /// rows of a coded matrix are widened to f32.
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError>;

    /// Like [`Weights::read`], for some rows of a tensor. The default reads all rows.
    fn read_rows(
        &self,
        tensor: Tensor,
        rows: Range<usize>,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        self.read(tensor, &mut |row, values| {
            if rows.contains(&row) {
                visit(row, values);
            }
        })
    }

    /// Whether [`Weights::read_rows`] reads only the rows that it is asked for, so that several
    /// threads can share the rows of a tensor.
    fn is_shared_by_rows(&self, _tensor: Tensor) -> bool {
        false
    }

    /// The form of a tensor. Vectors are plain.
    fn form(&self, _tensor: Tensor) -> Form {
        Form::Plain
    }

    /// Calls `visit(row, codes)` for each row of a coded matrix, in order.
    ///
    /// # Panics
    /// If the tensor's form is plain.
    fn read_coded(
        &self,
        tensor: Tensor,
        _visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        panic!("{tensor:?} is plain");
    }

    /// A hash that differs if any tensor differs.
    fn fingerprint(&self) -> [u8; 32];
}

impl<W: Weights + ?Sized> Weights for Box<W> {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        (**self).read(tensor, visit)
    }

    fn read_rows(
        &self,
        tensor: Tensor,
        rows: Range<usize>,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        (**self).read_rows(tensor, rows, visit)
    }

    fn is_shared_by_rows(&self, tensor: Tensor) -> bool {
        (**self).is_shared_by_rows(tensor)
    }

    fn form(&self, tensor: Tensor) -> Form {
        (**self).form(tensor)
    }

    fn read_coded(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        (**self).read_coded(tensor, visit)
    }

    fn fingerprint(&self) -> [u8; 32] {
        (**self).fingerprint()
    }
}

/// Why weights cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// A file cannot be read.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// There are no weight files.
    #[error(
        "{folder} has no safetensors files; if it holds a GGUF file, name that file, otherwise \
         convert the weights first"
    )]
    NoFiles {
        /// The model's folder.
        folder: String,
    },
    /// The list of shards is invalid.
    #[error("{file} is not a list of shards: {reason}; download it again")]
    Index {
        /// The index file.
        file: String,
        /// Why it is invalid.
        reason: String,
    },
    /// A safetensors header is invalid.
    #[error("{file} is not a valid safetensors file: {reason}; download it again")]
    Header {
        /// The file.
        file: String,
        /// Why it is invalid.
        reason: String,
    },
    /// A GGUF file cannot be used.
    #[error("{file}: {reason}")]
    Gguf {
        /// The file.
        file: String,
        /// Why, and what to do.
        reason: String,
    },
    /// A tensor of a packed matrix cannot be used.
    #[error("tensor `{name}`: {reason}")]
    Packed {
        /// Its name.
        name: String,
        /// Why, and what to do.
        reason: String,
    },
    /// A regular expression in the model's config cannot be used.
    #[error("the regular expression `{text}` in quantization_config: {reason}")]
    Expression {
        /// The expression.
        text: String,
        /// Why.
        reason: String,
    },
    /// The length of a file is wrong.
    #[error("{file} has {found} bytes, but its header says {expected}; download it again")]
    Length {
        /// The file.
        file: String,
        /// Length according to header and tensors.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
    /// A required tensor is in no file.
    #[error(
        "tensor `{name}` is missing: the model's config requires it, and no weight file has it"
    )]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor does not belong to the model.
    #[error(
        "tensor `{name}` in {file} is not part of this model; the model's config does not match it"
    )]
    Surplus {
        /// Its name.
        name: String,
        /// The file that has it.
        file: String,
    },
    /// Two files contain the same tensor.
    #[error("tensor `{name}` is in {first} and in {second}; remove the outdated file")]
    Twice {
        /// Its name.
        name: String,
        /// One file.
        first: String,
        /// The other.
        second: String,
    },
    /// The shape of a tensor differs from the config's.
    #[error("tensor `{name}` has shape {found:?}; the model's config requires {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape according to the config.
        expected: Vec<usize>,
    },
    /// weft does not support a tensor's number format.
    #[error("tensor `{name}` is stored as {found}; weft reads BF16, F16 and F32")]
    Format {
        /// Its name.
        name: String,
        /// The number format in the file.
        found: String,
    },
    /// A weight is NaN or infinite.
    #[error(
        "tensor `{name}` holds {value} in row {row}; the file is damaged, so download it again"
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
