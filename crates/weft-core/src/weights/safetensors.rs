//! Weights in safetensors files, single or sharded.
//!
//! Opening checks everything that can be checked without reading a tensor: every tensor of the
//! config exists exactly once, in the right shape and a supported format, and there are no others.
//! Memory is allocated only after that. Files are read, never mapped: if a mapped file shrinks, the
//! process crashes.

use std::collections::HashMap;
use std::io::SeekFrom;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use safetensors::Dtype as FileDtype;

use super::header::{self, Header, Source};
use super::shards::weight_files;
use super::{Tensor, Weights, WeightsError, tensors};
use crate::config::Config;

/// Bytes read from a file at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// Bytes per sample of a tensor, for the fingerprint.
const SAMPLE_BYTES: usize = 4096;

/// The weight files of one model, open and checked.
pub struct Safetensors {
    files: Vec<Mutex<Box<dyn Source>>>,
    names: Vec<String>,
    places: HashMap<Tensor, Place>,
    fingerprint: [u8; 32],
}

/// The location of a tensor.
struct Place {
    file: usize,
    /// Offset of its first byte in the file.
    start: u64,
    rows: usize,
    row: usize,
    dtype: FileDtype,
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
        bytes: &'static [u8],
        config: &Config,
    ) -> Result<Self, WeightsError> {
        Self::checked(vec![header::of_bytes(name, bytes)?], config)
    }

    fn checked(headers: Vec<Header>, config: &Config) -> Result<Self, WeightsError> {
        let places = place_all(&headers, config)?;
        let names = headers.iter().map(|header| header.name.clone()).collect();
        let files = headers.into_iter().map(|header| Mutex::new(header.source)).collect();
        let mut opened = Self { files, names, places, fingerprint: [0; 32] };
        opened.fingerprint = opened.sample()?;
        Ok(opened)
    }

    /// A hash of each tensor's name, shape and format, and of its first, middle and last bytes.
    fn sample(&self) -> Result<[u8; 32], WeightsError> {
        let mut places: Vec<_> =
            self.places.iter().map(|(tensor, place)| (tensor.name(), place)).collect();
        places.sort_by(|a, b| a.0.cmp(&b.0));
        let mut hasher = blake3::Hasher::new();
        let mut bytes = vec![0; SAMPLE_BYTES];
        for (name, place) in places {
            let about = format!("{name} {} {} {:?}\0", place.rows, place.row, place.dtype);
            hasher.update(about.as_bytes());
            let failed =
                |source| WeightsError::Read { file: self.names[place.file].clone(), source };
            let mut file = self.files[place.file].lock().unwrap_or_else(PoisonError::into_inner);
            let len = place.rows * place.row * place.dtype.bitsize() / 8;
            let sample = SAMPLE_BYTES.min(len);
            for offset in [0, (len - sample) / 2, len - sample] {
                file.seek(SeekFrom::Start(place.start + offset as u64)).map_err(failed)?;
                file.read_exact(&mut bytes[..sample]).map_err(failed)?;
                hasher.update(&bytes[..sample]);
            }
        }
        Ok(*hasher.finalize().as_bytes())
    }
}

impl Safetensors {
    /// Locks the file only while it reads; the bytes are processed after that.
    fn read_at(&self, file: usize, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        let mut file = self.files[file].lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(bytes)
    }
}

impl Weights for Safetensors {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        let place = self.places.get(&tensor).unwrap_or_else(|| panic!("{tensor:?} was checked"));
        let failed = |source| WeightsError::Read { file: self.names[place.file].clone(), source };
        let row_bytes = place.row * place.dtype.bitsize() / 8;
        let rows_per_block = (BLOCK_BYTES / row_bytes).clamp(1, place.rows);
        let mut bytes = vec![0; rows_per_block * row_bytes];
        let mut values = vec![0.0; place.row];
        for first in (0..place.rows).step_by(rows_per_block) {
            let n_rows = rows_per_block.min(place.rows - first);
            let block = &mut bytes[..n_rows * row_bytes];
            let offset = place.start + (first * row_bytes) as u64;
            self.read_at(place.file, offset, block).map_err(failed)?;
            for (i, row) in block.chunks_exact(row_bytes).enumerate() {
                widen(place.dtype, row, &mut values);
                check_finite(tensor, first + i, &values)?;
                visit(first + i, &values);
            }
        }
        Ok(())
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

fn place_all(headers: &[Header], config: &Config) -> Result<HashMap<Tensor, Place>, WeightsError> {
    let mut expected: HashMap<String, _> =
        tensors(config).into_iter().map(|shape| (shape.tensor.name(), shape)).collect();
    let mut found_in: HashMap<String, usize> = HashMap::new();
    let mut places = HashMap::new();
    for (file, header) in headers.iter().enumerate() {
        for name in header.metadata.offset_keys() {
            let file_name = || header.name.clone();
            if let Some(first) = found_in.insert(name.clone(), file) {
                let first = headers[first].name.clone();
                return Err(WeightsError::Twice { name, first, second: file_name() });
            }
            let Some(shape) = expected.remove(&name) else {
                if is_known_leftover(&name, config) {
                    continue;
                }
                return Err(WeightsError::Surplus { name, file: file_name() });
            };
            let info = header.metadata.info(&name).expect("the name came from this header");
            if info.shape != shape.shape {
                let (found, expected) = (info.shape.clone(), shape.shape);
                return Err(WeightsError::Shape { name, found, expected });
            }
            if !matches!(info.dtype, FileDtype::BF16 | FileDtype::F16 | FileDtype::F32) {
                return Err(WeightsError::Format { name, found: format!("{:?}", info.dtype) });
            }
            let start = header.data_start + info.data_offsets.0 as u64;
            let (rows, row) = (shape.rows(), shape.row());
            places.insert(shape.tensor, Place { file, start, rows, row, dtype: info.dtype });
        }
    }
    // The first by name, so that the same broken folder always gives the same message.
    match expected.into_keys().min() {
        Some(name) => Err(WeightsError::Missing { name }),
        None => Ok(places),
    }
}

/// Tensors that some well-known files contain and that no computation uses.
fn is_known_leftover(name: &str, config: &Config) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || (config.tied_head && name == "lm_head.weight")
}

/// Converts a file's little-endian values to f32, without loss.
fn widen(dtype: FileDtype, bytes: &[u8], values: &mut [f32]) {
    match dtype {
        FileDtype::F32 => {
            let (words, _) = bytes.as_chunks::<4>();
            values.iter_mut().zip(words).for_each(|(v, w)| *v = f32::from_le_bytes(*w));
        }
        FileDtype::F16 => {
            let (words, _) = bytes.as_chunks::<2>();
            values.iter_mut().zip(words).for_each(|(v, w)| *v = f16::from_le_bytes(*w).to_f32());
        }
        _ => {
            let (words, _) = bytes.as_chunks::<2>();
            values.iter_mut().zip(words).for_each(|(v, w)| *v = bf16::from_le_bytes(*w).to_f32());
        }
    }
}

fn check_finite(tensor: Tensor, row: usize, values: &[f32]) -> Result<(), WeightsError> {
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(WeightsError::NotFinite { name: tensor.name(), row, value: *value }),
        None => Ok(()),
    }
}
