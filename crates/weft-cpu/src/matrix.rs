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

/// Two matrices of the same shape that are read together, such as gate and up. For experts, the two
/// of one are followed by the two of the next, each in whole blocks.
pub(crate) enum Twins {
    /// Of one form: blocks of the first and of the second in turn, one stream from memory.
    Joined {
        matrix: Matrix,
        rows: usize,
    },
    Apart {
        matrices: [Matrix; 2],
        rows: usize,
    },
}

/// The shape of a tensor as some matrices, one for each expert.
struct Stack {
    count: usize,
    rows: usize,
    columns: usize,
}

impl Stack {
    fn of(config: &Config, tensor: Tensor) -> Self {
        match tensor.shape(config)[..] {
            [rows, columns] => Self { count: 1, rows, columns },
            [count, rows, columns] => Self { count, rows, columns },
            _ => unreachable!("{tensor:?} is no matrix"),
        }
    }
}

/// Where row `row` of some matrices of `rows` rows lies if each begins with a block.
fn in_blocks(row: usize, rows: usize) -> usize {
    row / rows * rows.next_multiple_of(BLOCK_ROWS) + row % rows
}

impl Twins {
    pub(crate) fn read(
        config: &Config,
        from: &dyn Weights,
        tensors: [Tensor; 2],
    ) -> Result<Self, WeightsError> {
        let [a, b] = tensors;
        if from.form(a) != from.form(b) {
            let rows = Stack::of(config, a).rows;
            let [a, b] = tensors.map(|tensor| Matrix::read(config, from, tensor));
            return Ok(Self::Apart { matrices: [a?, b?], rows });
        }
        let Stack { count, rows, columns } = Stack::of(config, a);
        let n_blocks = count * rows.div_ceil(BLOCK_ROWS);
        let mut matrix = Matrix::zeroed(from.form(a), 2 * n_blocks * BLOCK_ROWS, columns);
        for (nth, tensor) in tensors.into_iter().enumerate() {
            matrix.set_rows(from, tensor, |row| {
                let row = in_blocks(row, rows);
                (2 * (row / BLOCK_ROWS) + nth) * BLOCK_ROWS + row % BLOCK_ROWS
            })?;
        }
        Ok(Self::Joined { matrix, rows })
    }

    fn matrices(&self) -> [&Matrix; 2] {
        match self {
            Self::Joined { matrix, .. } => [matrix, matrix],
            Self::Apart { matrices: [a, b], .. } => [a, b],
        }
    }

    /// Rows of each, of one expert.
    fn rows(&self) -> usize {
        match self {
            Self::Joined { rows, .. } | Self::Apart { rows, .. } => *rows,
        }
    }

    /// Blocks of each, of one expert.
    pub(crate) fn n_blocks(&self) -> usize {
        self.rows().div_ceil(BLOCK_ROWS)
    }

    /// Rows of a block without padding.
    pub(crate) fn rows_in(&self, block: usize) -> usize {
        (self.rows() - block * BLOCK_ROWS).min(BLOCK_ROWS)
    }

    /// Whether products need the sums of activations.
    pub(crate) fn needs_sums(&self) -> bool {
        self.matrices().iter().any(|matrix| matrix.needs_sums())
    }

    /// A block of each.
    pub(crate) fn blocks(&self, block: usize) -> [Block<'_>; 2] {
        let [a, b] = self.matrices();
        match self {
            Self::Joined { .. } => [a.block(2 * block), b.block(2 * block + 1)],
            Self::Apart { .. } => [a.block(block), b.block(block)],
        }
    }
}

/// The weights of 64 rows.
#[derive(Clone, Copy)]
pub(crate) enum Block<'a> {
    /// \[columns/2\]\[64\]\[2\]
    Plain(&'a [bf16]),
    Coded(CodedBlock<'a>),
}

impl Matrix {
    /// Reads a tensor. Plain ones are rounded to bf16. The matrices of several experts follow one
    /// another, each in whole blocks.
    pub(crate) fn read(
        config: &Config,
        from: &dyn Weights,
        tensor: Tensor,
    ) -> Result<Self, WeightsError> {
        let Stack { count, rows, columns } = Stack::of(config, tensor);
        let all = (count - 1) * rows.next_multiple_of(BLOCK_ROWS) + rows;
        let mut matrix = Self::zeroed(from.form(tensor), all, columns);
        matrix.set_rows(from, tensor, |row| in_blocks(row, rows))?;
        Ok(matrix)
    }

    fn zeroed(form: Form, rows: usize, columns: usize) -> Self {
        match form {
            Form::Plain => Self::Plain(Packed::zeroed(rows, columns)),
            Form::Coded(form) => Self::Coded(Box::new(CodedMatrix::zeroed(&form, rows, columns))),
        }
    }

    /// Reads a tensor of this form; its row r becomes row `place(r)`.
    fn set_rows(
        &mut self,
        from: &dyn Weights,
        tensor: Tensor,
        place: impl Fn(usize) -> usize,
    ) -> Result<(), WeightsError> {
        match self {
            Self::Plain(packed) => {
                from.read(tensor, &mut |row, values| packed.set_row(place(row), values))
            }
            Self::Coded(coded) => {
                from.read_coded(tensor, &mut |row, codes| coded.set_row(place(row), codes))
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
