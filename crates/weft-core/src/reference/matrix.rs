//! Matrices of every form: the product of a row, and a row itself.
//!
//! A plain matrix is rounded to `E`. The codes of a coded one stay codes; the numbers that they
//! stand for are rounded to `E`, which changes none of an integer or an 8-bit float.

use super::math::dot;
use crate::config::Config;
use crate::dtype::Element;
use crate::weights::{Coded, CodedRow, Form, Offsets, Tensor, TensorShape, Weights, WeightsError};

/// A matrix \[rows\]\[width\]; row i gives output i.
pub(super) enum Matrix<E> {
    Plain { values: Vec<E>, width: usize },
    Coded(CodedMatrix<E>),
}

pub(super) struct CodedMatrix<E> {
    form: Coded,
    width: usize,
    /// What each code stands for.
    values: Vec<E>,
    /// \[rows\]\[width\]
    codes: Vec<u8>,
    /// \[rows\]\[groups\]
    scales: Vec<f32>,
    /// What is added to each weight of a group, \[rows\]\[groups\]; empty if nothing is.
    minimums: Vec<f32>,
}

impl<E: Element> Matrix<E> {
    pub(super) fn read(
        config: &Config,
        from: &dyn Weights,
        tensor: Tensor,
    ) -> Result<Self, WeightsError> {
        let width = TensorShape::new(tensor, config).row();
        match from.form(tensor) {
            Form::Plain => Ok(Self::Plain { values: read_plain(config, from, tensor)?, width }),
            Form::Coded(form) => {
                let mut matrix = CodedMatrix::new(form, width);
                from.read_coded(tensor, &mut |_, row| matrix.push(row))?;
                Ok(Self::Coded(matrix))
            }
        }
    }

    /// Row `row` · x, in f32.
    pub(super) fn dot(&self, row: usize, x: &[f32]) -> f32 {
        match self {
            Self::Plain { values, width } => dot(x, &values[row * width..][..*width]),
            Self::Coded(matrix) => matrix.dot(row, x),
        }
    }

    /// Row `row`, rounded to `E`.
    pub(super) fn copy_row(&self, row: usize, to: &mut [E]) {
        match self {
            Self::Plain { values, width } => to.copy_from_slice(&values[row * width..][..*width]),
            Self::Coded(matrix) => matrix.copy_row(row, to),
        }
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Plain { values, width } => values.len() / width,
            Self::Coded(matrix) => matrix.codes.len() / matrix.width,
        }
    }
}

impl<E: Element> CodedMatrix<E> {
    fn new(form: Coded, width: usize) -> Self {
        let values = form.code.values().into_iter().map(E::from_f32).collect();
        let (codes, scales, minimums) = (Vec::new(), Vec::new(), Vec::new());
        Self { form, width, values, codes, scales, minimums }
    }

    fn push(&mut self, row: &CodedRow<'_>) {
        let group = self.form.group;
        self.codes.extend_from_slice(row.codes);
        for g in 0..self.form.n_groups(self.width) {
            let scale = row.scales.of(g, group);
            self.scales.push(scale);
            match row.offsets {
                Offsets::None => {}
                Offsets::Zeros(zeros) => self.minimums.push(-scale * f32::from(zeros[g])),
                Offsets::Minimums(minimums) => self.minimums.push(minimums.of(g, group)),
            }
        }
    }

    /// The sum over runs, in order, of scale · Σ value · x, plus minimum · Σ x.
    fn dot(&self, row: usize, x: &[f32]) -> f32 {
        let codes = &self.codes[row * self.width..][..self.width];
        let first_group = row * self.form.n_groups(self.width);
        let run = self.form.run();
        let mut total = 0.0;
        let mut numbers = [E::default(); 32];
        let ones = [E::from_f32(1.0); 32];
        for (r, (codes, x)) in codes.chunks(run).zip(x.chunks(run)).enumerate() {
            let group = first_group + r * run / self.form.group;
            let numbers = &mut numbers[..x.len()];
            numbers.iter_mut().zip(codes).for_each(|(n, c)| *n = self.values[usize::from(*c)]);
            total += self.scales[group] * dot(x, numbers);
            if let Some(minimum) = self.minimums.get(group) {
                total += minimum * dot(x, &ones[..x.len()]);
            }
        }
        total
    }

    fn copy_row(&self, row: usize, to: &mut [E]) {
        let codes = &self.codes[row * self.width..][..self.width];
        let first_group = row * self.form.n_groups(self.width);
        for (column, (to, code)) in to.iter_mut().zip(codes).enumerate() {
            let group = first_group + column / self.form.group;
            let minimum = self.minimums.get(group).copied().unwrap_or(0.0);
            let value = self.values[usize::from(*code)].to_f32();
            *to = E::from_f32(self.scales[group] * value + minimum);
        }
    }
}

/// out\[i\] = row i of the matrix · x, handed to `store` in f32.
pub(super) fn project<E: Element>(
    matrix: &Matrix<E>,
    x: &[f32],
    mut store: impl FnMut(usize, f32),
) {
    for row in 0..matrix.rows() {
        store(row, matrix.dot(row, x));
    }
}

/// Reads a tensor row by row, rounded to `E`.
pub(super) fn read_plain<E: Element>(
    config: &Config,
    from: &dyn Weights,
    tensor: Tensor,
) -> Result<Vec<E>, WeightsError> {
    let mut values = Vec::with_capacity(tensor.shape(config).iter().product());
    from.read(tensor, &mut |_, row| values.extend(row.iter().map(|value| E::from_f32(*value))))?;
    Ok(values)
}
