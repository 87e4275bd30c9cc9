//! Weight matrices of any form, in blocks of 64 rows.

use half::bf16;
use weft_core::config::Config;
use weft_core::weights::{Form, Tensor, Weights, WeightsError};

use crate::coded::{CodedBlock, CodedMatrix};
use crate::pack::{BLOCK_ROWS, Packed};

/// A matrix \[rows, columns\].
pub(crate) enum Matrix {
    Plain(Packed),
    Coded(Box<CodedMatrix>),
}

/// The weights of 64 rows.
#[derive(Clone, Copy)]
pub(crate) enum Block<'a> {
    /// \[columns/2\]\[64\]\[2\]
    Plain(&'a [bf16]),
    Coded(CodedBlock<'a>),
}

impl Matrix {
    /// Reads a tensor. Plain ones are rounded to bf16.
    pub(crate) fn read(
        config: &Config,
        from: &dyn Weights,
        tensor: Tensor,
    ) -> Result<Self, WeightsError> {
        let shape = tensor.shape(config);
        let (rows, columns) = (shape[0], shape[1]);
        match from.form(tensor) {
            Form::Plain => {
                let mut packed = Packed::zeroed(rows, columns);
                from.read(tensor, &mut |row, values| packed.set_row(row, values))?;
                Ok(Self::Plain(packed))
            }
            Form::Coded(form) => {
                let mut coded = CodedMatrix::zeroed(&form, rows, columns);
                from.read_coded(tensor, &mut |row, codes| coded.set_row(row, codes))?;
                Ok(Self::Coded(Box::new(coded)))
            }
        }
    }

    /// Copies a row out, as bf16.
    pub(crate) fn copy_row(&self, row: usize, to: &mut [bf16]) {
        match self {
            Self::Plain(packed) => packed.copy_row(row, to),
            Self::Coded(coded) => coded.copy_row(row, to),
        }
    }

    fn rows(&self) -> usize {
        match self {
            Self::Plain(packed) => packed.rows(),
            Self::Coded(coded) => coded.rows(),
        }
    }

    /// Whether products need the sums of activations.
    pub(crate) fn needs_sums(&self) -> bool {
        matches!(self, Self::Coded(coded) if coded.has_minimums())
    }

    pub(crate) fn n_blocks(&self) -> usize {
        self.rows().div_ceil(BLOCK_ROWS)
    }

    /// The weights of one block.
    pub(crate) fn block(&self, block: usize) -> Block<'_> {
        match self {
            Self::Plain(packed) => Block::Plain(packed.block(block)),
            Self::Coded(coded) => Block::Coded(coded.block(block)),
        }
    }

    /// Rows of a block without padding.
    pub(crate) fn rows_in(&self, block: usize) -> usize {
        (self.rows() - block * BLOCK_ROWS).min(BLOCK_ROWS)
    }
}
