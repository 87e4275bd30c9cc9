//! Where the tensors of the model are in safetensors files, and how their rows are read. The
//! experts of a layer are one tensor of the model and many of the files.

use std::ops::Range;

use super::files::Files;
use super::packed::{Packed, Part, widen};
use super::{CodedRow, Form, Tensor, WeightsError};

/// Bytes read from a file at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// Where a tensor is.
pub(super) enum Place {
    Plain(Part),
    Packed(Box<Packed>),
    Experts(Experts),
}

/// The matrices of a layer's experts: all of one shape and one form.
pub(super) struct Experts {
    each: Vec<Place>,
    /// Rows of one.
    rows: usize,
    form: Form,
}

impl Experts {
    /// Gives all experts one form. If their codes differ, they are read as plain numbers.
    pub(super) fn new(mut each: Vec<Place>, rows: usize) -> Self {
        let form = |each: &[Place]| {
            let first = each.first().map_or(Form::Plain, Place::form);
            each.iter().all(|place| place.form() == first).then_some(first)
        };
        if form(&each).is_none() {
            // GPTQ leaves out zeros that are all in the middle, for each matrix on its own.
            for place in &mut each {
                if let Place::Packed(packed) = place {
                    packed.add_zeros();
                }
            }
        }
        Self { form: form(&each).unwrap_or_default(), each, rows }
    }

    /// The experts that have some of these rows, each with its first row and its own rows among
    /// them.
    fn of_rows(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, &Place, Range<usize>)> {
        self.each.iter().enumerate().filter_map(move |(expert, place)| {
            let first = expert * self.rows;
            let mine = rows.start.max(first)..rows.end.min(first + self.rows);
            (!mine.is_empty()).then(|| (expert, place, mine.start - first..mine.end - first))
        })
    }
}

/// A tensor of the model, or one expert of it, for messages.
#[derive(Clone, Copy)]
pub(super) struct Named {
    pub(super) tensor: Tensor,
    pub(super) expert: Option<usize>,
}

impl Named {
    fn not_finite(self, row: usize, value: f32) -> WeightsError {
        let name = match self.expert {
            Some(expert) => self.tensor.expert_name(expert),
            None => self.tensor.name(),
        };
        WeightsError::NotFinite { name, row, value }
    }
}

impl Place {
    pub(super) fn form(&self) -> Form {
        match self {
            Self::Plain(_) => Form::Plain,
            Self::Packed(packed) => packed.form(),
            Self::Experts(experts) => experts.form,
        }
    }

    /// Whether some rows can be read without the others.
    pub(super) fn is_shared_by_rows(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Packed(_) => false,
            Self::Experts(experts) => experts.each.iter().all(Self::is_shared_by_rows),
        }
    }

    /// Calls `visit` for each tensor of the files that it consists of, and `settings` for what is
    /// in memory already.
    pub(super) fn for_each_part(
        &self,
        settings: &mut dyn FnMut(String),
        visit: &mut dyn FnMut(&Part) -> Result<(), WeightsError>,
    ) -> Result<(), WeightsError> {
        match self {
            Self::Plain(part) => visit(part),
            Self::Packed(packed) => {
                settings(packed.settings());
                packed.parts().try_for_each(visit)
            }
            Self::Experts(experts) => {
                experts.each.iter().try_for_each(|place| place.for_each_part(settings, visit))
            }
        }
    }

    /// Calls `visit(row, values)` for some rows, in order.
    pub(super) fn read_rows(
        &self,
        files: &Files,
        named: Named,
        rows: Range<usize>,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        match self {
            Self::Plain(part) => {
                read_plain(files, part, named, rows.start..rows.end.min(part.rows), visit)
            }
            Self::Packed(packed) => packed.read(files, &mut |row, values| {
                if rows.contains(&row) {
                    visit(row, values);
                }
            }),
            Self::Experts(experts) => {
                experts.of_rows(rows).try_for_each(|(expert, place, rows)| {
                    let first = expert * experts.rows;
                    let named = Named { expert: Some(expert), ..named };
                    place.read_rows(files, named, rows, &mut |row, values| {
                        visit(first + row, values);
                    })
                })
            }
        }
    }

    /// Calls `visit(row, codes)` for each row of a coded matrix, in order.
    ///
    /// # Panics
    /// If its form is plain.
    pub(super) fn read_coded(
        &self,
        files: &Files,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        match self {
            Self::Packed(packed) if packed.form() != Form::Plain => packed.read_coded(files, visit),
            Self::Experts(experts) if experts.form != Form::Plain => {
                experts.each.iter().enumerate().try_for_each(|(expert, place)| {
                    let first = expert * experts.rows;
                    place.read_coded(files, &mut |row, codes| visit(first + row, codes))
                })
            }
            _ => panic!("the tensor is plain"),
        }
    }
}

fn read_plain(
    files: &Files,
    part: &Part,
    named: Named,
    rows: Range<usize>,
    visit: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), WeightsError> {
    let row_bytes = part.row_bytes();
    let rows_per_block = (BLOCK_BYTES / row_bytes).clamp(1, part.rows);
    let mut bytes = vec![0; rows_per_block * row_bytes];
    let mut values = vec![0.0; part.columns];
    for first in rows.clone().step_by(rows_per_block) {
        let n_rows = rows_per_block.min(rows.end - first);
        let block = &mut bytes[..n_rows * row_bytes];
        files.read(part.file, part.start + (first * row_bytes) as u64, block)?;
        for (i, row) in block.chunks_exact(row_bytes).enumerate() {
            widen(part.dtype, row, &mut values);
            if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                return Err(named.not_finite(first + i, *value));
            }
            visit(first + i, &values);
        }
    }
    Ok(())
}
