//! Reads the rows of tensors in GGUF files.

use std::collections::HashMap;

use half::{bf16, f16};

use super::blocks::Unpacked;
use super::container::Stored;
use super::kind::Kind;
use super::{is_permuted, names};
use crate::config::Config;
use crate::weights::files::Files;
use crate::weights::output::permuted;
use crate::weights::{CodedRow, Form, Tensor, Weights, WeightsError};

/// Bytes read from a file at a time, unless a row or a permuted head has more.
const BLOCK_BYTES: usize = 1 << 20;

/// Bytes per sample of a tensor, for the fingerprint.
const SAMPLE_BYTES: u64 = 4096;

/// The weights of a model in GGUF files.
pub struct GgufWeights {
    files: Files,
    places: HashMap<Tensor, Place>,
    fingerprint: [u8; 32],
}

/// The location of a tensor.
struct Place {
    file: usize,
    start: u64,
    bytes: u64,
    kind: Kind,
    form: Form,
    rows: usize,
    columns: usize,
    /// Rows of a head, if the rows of each head are permuted.
    head: Option<usize>,
}

impl Place {
    fn row_bytes(&self) -> usize {
        self.kind.row_bytes(self.columns)
    }
}

impl GgufWeights {
    pub(super) fn new(
        files: Files,
        stored: HashMap<Tensor, (usize, Stored)>,
        config: &Config,
    ) -> Result<Self, WeightsError> {
        let place = |(tensor, (file, stored)): (Tensor, (usize, Stored))| {
            let columns = *stored.shape.last().expect("every tensor has a shape");
            let form = match stored.shape.len() {
                1 => Form::Plain,
                _ if tensor.is_always_plain() => Form::Plain,
                _ => stored.kind.form(),
            };
            let place = Place {
                file,
                start: stored.start,
                bytes: stored.bytes,
                kind: stored.kind,
                form,
                rows: stored.shape.iter().product::<usize>() / columns,
                columns,
                head: is_permuted(tensor, config.family).then_some(config.head_dim),
            };
            (tensor, place)
        };
        let places = stored.into_iter().map(place).collect();
        let mut weights = Self { files, places, fingerprint: [0; 32] };
        weights.fingerprint = weights.sample()?;
        Ok(weights)
    }

    /// A hash of each tensor's name, shape and format, and of its first, middle and last bytes.
    fn sample(&self) -> Result<[u8; 32], WeightsError> {
        let mut places: Vec<_> =
            self.places.iter().map(|(tensor, place)| (names::name(*tensor), place)).collect();
        places.sort_by(|a, b| a.0.cmp(&b.0));
        let mut hasher = blake3::Hasher::new();
        let mut bytes = vec![0; SAMPLE_BYTES as usize];
        for (name, place) in places {
            let about = format!("{name} {} {} {:?}\0", place.rows, place.columns, place.kind);
            hasher.update(about.as_bytes());
            let sample = SAMPLE_BYTES.min(place.bytes);
            for offset in [0, (place.bytes - sample) / 2, place.bytes - sample] {
                let bytes = &mut bytes[..sample as usize];
                self.files.read(place.file, place.start + offset, bytes)?;
                hasher.update(bytes);
            }
        }
        Ok(*hasher.finalize().as_bytes())
    }

    fn place(&self, tensor: Tensor) -> Result<&Place, WeightsError> {
        let missing = || WeightsError::Missing { name: names::name(tensor) };
        self.places.get(&tensor).ok_or_else(missing)
    }

    /// Calls `visit(row, bytes)` for each row, in the model's order.
    fn rows(
        &self,
        place: &Place,
        mut visit: impl FnMut(usize, &[u8]) -> Result<(), WeightsError>,
    ) -> Result<(), WeightsError> {
        let row_bytes = place.row_bytes();
        let at_once = match place.head {
            Some(head) => head,
            None => (BLOCK_BYTES / row_bytes).clamp(1, place.rows),
        };
        let mut block = vec![0; at_once * row_bytes];
        for first in (0..place.rows).step_by(at_once) {
            let rows = at_once.min(place.rows - first);
            let block = &mut block[..rows * row_bytes];
            self.files.read(place.file, place.start + (first * row_bytes) as u64, block)?;
            for i in 0..rows {
                let from = match place.head {
                    Some(head) => permuted(i, head),
                    None => i,
                };
                visit(first + i, &block[from * row_bytes..][..row_bytes])?;
            }
        }
        Ok(())
    }

    /// Unpacks each row of a tensor that is stored in blocks.
    fn unpacked(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        let place = self.place(tensor)?;
        let Form::Coded(coded) = place.kind.form() else { panic!("{tensor:?} is plain") };
        let mut unpacked = Unpacked::new(place.kind, &coded, place.columns);
        self.rows(place, |row, bytes| {
            unpacked.unpack(bytes).map_err(|value| not_finite(tensor, row, value))?;
            visit(row, &unpacked.row());
            Ok(())
        })
    }
}

impl Weights for GgufWeights {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        let place = self.place(tensor)?;
        let mut values = vec![0.0; place.columns];
        if let Form::Coded(coded) = place.kind.form() {
            let codes = coded.code.values();
            return self.unpacked(tensor, &mut |row, coded_row| {
                coded_row.widen(coded.group, &codes, &mut values);
                visit(row, &values);
            });
        }
        self.rows(place, |row, bytes| {
            widen(place.kind, bytes, &mut values);
            match values.iter().find(|value| !value.is_finite()) {
                Some(value) => Err(not_finite(tensor, row, *value)),
                None => {
                    visit(row, &values);
                    Ok(())
                }
            }
        })
    }

    fn form(&self, tensor: Tensor) -> Form {
        self.places.get(&tensor).map_or(Form::Plain, |place| place.form)
    }

    fn read_coded(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        assert!(self.form(tensor) != Form::Plain, "{tensor:?} is plain");
        self.unpacked(tensor, visit)
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

/// Converts a file's little-endian values to f32, without loss.
fn widen(kind: Kind, bytes: &[u8], values: &mut [f32]) {
    let (words, _) = bytes.as_chunks::<2>();
    match kind {
        Kind::F16 => {
            values.iter_mut().zip(words).for_each(|(v, w)| *v = f16::from_le_bytes(*w).to_f32());
        }
        Kind::Bf16 => {
            values.iter_mut().zip(words).for_each(|(v, w)| *v = bf16::from_le_bytes(*w).to_f32());
        }
        _ => {
            let (words, _) = bytes.as_chunks::<4>();
            values.iter_mut().zip(words).for_each(|(v, w)| *v = f32::from_le_bytes(*w));
        }
    }
}

fn not_finite(tensor: Tensor, row: usize, value: f32) -> WeightsError {
    WeightsError::NotFinite { name: names::name(tensor), row, value }
}
