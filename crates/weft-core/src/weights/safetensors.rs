//! Weights in safetensors files, single or sharded.
//!
//! Opening checks everything that can be checked without reading a matrix: every tensor of the
//! config exists exactly once, in the right shape and a supported format, and there are no others.
//! A matrix may be packed; then it has several tensors, which `packed` knows.
//! Memory is allocated only after that. Files are read, never mapped: if a mapped file shrinks, the
//! process crashes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;

use safetensors::Dtype as FileDtype;

use super::files::Files;
use super::header::{self, Header};
use super::packed::{self, Found, Packed, Part, Patterns, Stored, widen};
use super::shards::weight_files;
use super::{CodedRow, Form, Tensor, Weights, WeightsError, tensors};
use crate::config::{Config, Packing};

/// Bytes read from a file at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// Bytes per sample of a tensor, for the fingerprint.
const SAMPLE_BYTES: usize = 4096;

/// The weight files of one model, open and checked.
pub struct Safetensors {
    files: Files,
    places: HashMap<Tensor, Place>,
    fingerprint: [u8; 32],
}

/// Where a tensor is.
enum Place {
    Plain(Part),
    Packed(Box<Packed>),
}

impl Safetensors {
    /// Opens the weight files in a model's folder and checks them against its config.
    pub fn open(folder: &Path, config: &Config) -> Result<Self, WeightsError> {
        let files = weight_files(folder)?;
        let headers = files.iter().map(|path| header::open(path)).collect::<Result<_, _>>()?;
        Self::checked(headers, config)
    }

    /// Opens one file in memory, named `name` in messages.
    pub fn from_bytes(
        name: &str,
        bytes: impl Into<Cow<'static, [u8]>>,
        config: &Config,
    ) -> Result<Self, WeightsError> {
        Self::checked(vec![header::of_bytes(name, bytes.into())?], config)
    }

    fn checked(headers: Vec<Header>, config: &Config) -> Result<Self, WeightsError> {
        let mut files = Files::default();
        let mut found = HashMap::new();
        for (file, header) in headers.into_iter().enumerate() {
            list(file, &header, &files, &mut found)?;
            files.sources.push(Mutex::new(header.source));
            files.names.push(header.name);
        }
        let places = place_all(Found(found), &files, config)?;
        let mut opened = Self { files, places, fingerprint: [0; 32] };
        opened.fingerprint = opened.sample(&config.packing)?;
        Ok(opened)
    }

    /// A hash of each tensor's name, shape and format, and of its first, middle and last bytes.
    /// Scales and zeros are tensors too.
    fn sample(&self, packing: &Packing) -> Result<[u8; 32], WeightsError> {
        let mut places: Vec<_> =
            self.places.iter().map(|(tensor, place)| (tensor.name(), place)).collect();
        places.sort_by(|a, b| a.0.cmp(&b.0));
        let mut hasher = blake3::Hasher::new();
        if *packing != Packing::None {
            hasher.update(format!("{packing:?}\0").as_bytes());
        }
        let mut bytes = vec![0; SAMPLE_BYTES];
        for (name, place) in places {
            let parts = match place {
                Place::Plain(part) => vec![part],
                Place::Packed(packed) => {
                    hasher.update(packed.settings().as_bytes());
                    packed.parts().collect()
                }
            };
            for part in parts {
                let about = format!("{name} {} {} {:?}\0", part.rows, part.columns, part.dtype);
                hasher.update(about.as_bytes());
                let len = part.bytes();
                let sample = SAMPLE_BYTES.min(len);
                for offset in [0, (len - sample) / 2, len - sample] {
                    let bytes = &mut bytes[..sample];
                    self.files.read(part.file, part.start + offset as u64, bytes)?;
                    hasher.update(bytes);
                }
            }
        }
        Ok(*hasher.finalize().as_bytes())
    }

    fn place(&self, tensor: Tensor) -> &Place {
        self.places.get(&tensor).unwrap_or_else(|| panic!("{tensor:?} was checked"))
    }

    fn read_plain(
        &self,
        tensor: Tensor,
        part: &Part,
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
            self.files.read(part.file, part.start + (first * row_bytes) as u64, block)?;
            for (i, row) in block.chunks_exact(row_bytes).enumerate() {
                widen(part.dtype, row, &mut values);
                check_finite(tensor, first + i, &values)?;
                visit(first + i, &values);
            }
        }
        Ok(())
    }
}

impl Weights for Safetensors {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        match self.place(tensor) {
            Place::Plain(part) => self.read_plain(tensor, part, 0..part.rows, visit),
            Place::Packed(packed) => packed.read(&self.files, visit),
        }
    }

    fn read_rows(
        &self,
        tensor: Tensor,
        rows: Range<usize>,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        match self.place(tensor) {
            Place::Plain(part) => {
                self.read_plain(tensor, part, rows.start..rows.end.min(part.rows), visit)
            }
            Place::Packed(packed) => packed.read(&self.files, &mut |row, values| {
                if rows.contains(&row) {
                    visit(row, values);
                }
            }),
        }
    }

    fn is_shared_by_rows(&self, tensor: Tensor) -> bool {
        matches!(self.places.get(&tensor), Some(Place::Plain(_)))
    }

    fn form(&self, tensor: Tensor) -> Form {
        match self.places.get(&tensor) {
            Some(Place::Packed(packed)) => packed.form(),
            _ => Form::Plain,
        }
    }

    fn read_coded(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        match self.place(tensor) {
            Place::Packed(packed) if packed.form() != Form::Plain => {
                packed.read_coded(&self.files, visit)
            }
            _ => panic!("{tensor:?} is plain"),
        }
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

/// Lists the tensors of one file; `files` are those before it.
fn list(
    file: usize,
    header: &Header,
    files: &Files,
    found: &mut HashMap<String, Stored>,
) -> Result<(), WeightsError> {
    for name in header.metadata.offset_keys() {
        let info = header.metadata.info(&name).expect("the name came from this header");
        // A shape that the model does not have may be absurd; it is compared before it is used.
        let (columns, outer) = info.shape.split_last().unwrap_or((&1, &[]));
        let (columns, rows) = (*columns, outer.iter().fold(1_usize, |n, d| n.saturating_mul(*d)));
        let start = header.data_start + info.data_offsets.0 as u64;
        let part = Part { file, start, dtype: info.dtype, rows, columns };
        let stored = Stored { part, shape: info.shape.clone() };
        if let Some(first) = found.insert(name.clone(), stored) {
            let (first, second) = (files.names[first.part.file].clone(), header.name.clone());
            return Err(WeightsError::Twice { name, first, second });
        }
    }
    Ok(())
}

fn place_all(
    mut found: Found,
    files: &Files,
    config: &Config,
) -> Result<HashMap<Tensor, Place>, WeightsError> {
    let patterns = Patterns::new(&config.packing)?;
    let is_packed = config.packing != Packing::None;
    let mut places = HashMap::new();
    let mut missing: Option<String> = None;
    for shape in tensors(config) {
        let may_be_packed = is_packed && shape.shape.len() == 2 && shape.tensor != Tensor::Embed;
        if may_be_packed && let Some(packed) = packed::pack(&patterns, &mut found, files, &shape)? {
            places.insert(shape.tensor, Place::Packed(Box::new(packed)));
            continue;
        }
        let name = shape.tensor.name();
        let Some(Stored { part, shape: found }) = found.0.remove(&name) else {
            missing = Some(missing.map_or(name.clone(), |first| first.min(name)));
            continue;
        };
        if found != shape.shape {
            return Err(WeightsError::Shape { name, found, expected: shape.shape });
        }
        if !matches!(part.dtype, FileDtype::BF16 | FileDtype::F16 | FileDtype::F32) {
            return Err(WeightsError::Format { name, found: format!("{:?}", part.dtype) });
        }
        places.insert(shape.tensor, Place::Plain(part));
    }
    packed::drop_zero_biases(&patterns, &mut found, files)?;
    found.0.retain(|name, _| {
        !(is_known_leftover(name, config) || is_packed && packed::is_for_activations(name))
    });
    // The first by name, so that the same broken folder always gives the same message.
    match (found.0.into_iter().min_by(|a, b| a.0.cmp(&b.0)), missing) {
        (Some((name, stored)), _) => {
            Err(WeightsError::Surplus { name, file: files.names[stored.part.file].clone() })
        }
        (None, Some(name)) => Err(WeightsError::Missing { name }),
        (None, None) => Ok(places),
    }
}

/// Tensors that some well-known files contain and that no computation uses.
fn is_known_leftover(name: &str, config: &Config) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || (config.tied_head && name == "lm_head.weight")
}

fn check_finite(tensor: Tensor, row: usize, values: &[f32]) -> Result<(), WeightsError> {
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(WeightsError::NotFinite { name: tensor.name(), row, value: *value }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Each row of a matrix, read in bands of `at_once` rows.
    fn rows(opened: &Safetensors, packed: &Packed, at_once: usize) -> Vec<String> {
        let mut rows = Vec::new();
        let mut visit = |row: usize, coded: &CodedRow<'_>| rows.push(format!("{row} {coded:?}"));
        packed.bands(&opened.files, at_once, 1.0, &mut visit).unwrap();
        rows
    }

    #[test]
    fn bands_of_any_height_give_the_same_rows() {
        let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packed");
        let mut matrices = 0;
        for entry in fs::read_dir(packed).unwrap() {
            let folder = entry.unwrap().path();
            let config = Config::from_file(&folder.join("config.json")).unwrap();
            let opened = Safetensors::open(&folder, &config).unwrap();
            for (tensor, place) in &opened.places {
                let Place::Packed(packed) = place else { continue };
                let whole = rows(&opened, packed, 1 << 10);
                for at_once in [32, 96] {
                    let bands = rows(&opened, packed, at_once);
                    assert!(whole == bands, "{} {tensor:?} {at_once}", folder.display());
                }
                matrices += 1;
            }
        }
        assert!(matrices > 100);
    }
}
