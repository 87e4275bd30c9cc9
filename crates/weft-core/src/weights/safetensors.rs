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
use super::packed::{self, Found, Part, Patterns, Stored};
use super::place::{Experts, Named, Place};
use super::shards::weight_files;
use super::{CodedRow, Form, LayerTensor, Tensor, TensorShape, Weights, WeightsError, tensors};
use crate::config::{Config, Packing};

/// Bytes per sample of a tensor, for the fingerprint.
const SAMPLE_BYTES: usize = 4096;

/// The weight files of one model, open and checked.
pub struct Safetensors {
    files: Files,
    places: HashMap<Tensor, Place>,
    fingerprint: [u8; 32],
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
            let (mut settings, mut about) = (String::new(), Vec::new());
            place.for_each_part(&mut |own| settings += &own, &mut |part| {
                about.push(part.clone());
                Ok(())
            })?;
            hasher.update(settings.as_bytes());
            for part in &about {
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
}

impl Weights for Safetensors {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        self.read_rows(tensor, 0..usize::MAX, visit)
    }

    fn read_rows(
        &self,
        tensor: Tensor,
        rows: Range<usize>,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        self.place(tensor).read_rows(&self.files, Named { tensor, expert: None }, rows, visit)
    }

    fn is_shared_by_rows(&self, tensor: Tensor) -> bool {
        self.places.get(&tensor).is_some_and(Place::is_shared_by_rows)
    }

    fn form(&self, tensor: Tensor) -> Form {
        match self.places.get(&tensor) {
            Some(place) if !tensor.is_always_plain() => place.form(),
            _ => Form::Plain,
        }
    }

    fn read_coded(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        self.place(tensor).read_coded(&self.files, visit)
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
    found: Found,
    files: &Files,
    config: &Config,
) -> Result<HashMap<Tensor, Place>, WeightsError> {
    let patterns = Patterns::new(&config.packing)?;
    let is_packed = config.packing != Packing::None;
    let mut places = HashMap::new();
    let mut placing = Placing { found, files, patterns: &patterns, missing: None };
    for shape in tensors(config) {
        let place = match shape.shape[..] {
            [count, rows, columns] => placing.experts(&shape, [count, rows, columns])?,
            _ => placing.one(shape.tensor.name(), &shape.shape, shape.tensor != Tensor::Embed)?,
        };
        if let Some(place) = place {
            places.insert(shape.tensor, place);
        }
    }
    let Placing { mut found, missing, .. } = placing;
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

/// Takes the tensors of the model out of those that were found.
struct Placing<'a> {
    found: Found,
    files: &'a Files,
    patterns: &'a Patterns,
    /// The first by name that is missing.
    missing: Option<String>,
}

impl Placing<'_> {
    /// Takes a vector or a matrix; `None` if it is missing.
    fn one(
        &mut self,
        name: String,
        shape: &[usize],
        may_be_packed: bool,
    ) -> Result<Option<Place>, WeightsError> {
        if let [rows, columns] = *shape
            && may_be_packed
            && let Some(packed) =
                packed::pack(self.patterns, &mut self.found, self.files, &name, [rows, columns])?
        {
            return Ok(Some(Place::Packed(Box::new(packed))));
        }
        let Some(Stored { part, shape: found }) = self.found.0.remove(&name) else {
            self.missing = Some(self.missing.take().map_or(name.clone(), |first| first.min(name)));
            return Ok(None);
        };
        check_plain(&name, &part, found, shape)?;
        Ok(Some(Place::Plain(part)))
    }

    /// Takes a matrix of each expert, or all from one tensor.
    fn experts(
        &mut self,
        shape: &TensorShape,
        [count, rows, columns]: [usize; 3],
    ) -> Result<Option<Place>, WeightsError> {
        if let Some(fused) = self.fused(shape, [count, rows, columns])? {
            return Ok(Some(Place::Experts(Experts::new(fused, rows))));
        }
        let mut each = Vec::new();
        for expert in 0..count {
            each.extend(self.one(shape.tensor.expert_name(expert), &[rows, columns], true)?);
        }
        Ok((each.len() == count).then(|| Place::Experts(Experts::new(each, rows))))
    }

    /// The experts in the layout that transformers computes with: one tensor for gate and up, one
    /// for down, \[experts, rows, columns\] each.
    fn fused(
        &mut self,
        shape: &TensorShape,
        [count, rows, columns]: [usize; 3],
    ) -> Result<Option<Vec<Place>>, WeightsError> {
        let Tensor::Layer(layer, kind) = shape.tensor else { return Ok(None) };
        let (name, nth, n) = match kind {
            LayerTensor::ExpertGate => ("gate_up_proj", 0, 2),
            LayerTensor::ExpertUp => ("gate_up_proj", 1, 2),
            _ => ("down_proj", 0, 1),
        };
        let name = format!("model.layers.{layer}.mlp.experts.{name}");
        let Some(stored) = self.found.0.get(&name) else { return Ok(None) };
        let part = stored.part.clone();
        check_plain(&name, &part, stored.shape.clone(), &[count, n * rows, columns])?;
        if nth + 1 == n {
            self.found.0.remove(&name);
        }
        let of_expert = |expert: usize| {
            let first = (expert * n + nth) * rows;
            let start = part.start + (first * part.row_bytes()) as u64;
            Place::Plain(Part { start, rows, ..part.clone() })
        };
        Ok(Some((0..count).map(of_expert).collect()))
    }
}

/// A plain tensor has the right shape and a number format that can be read.
fn check_plain(
    name: &str,
    part: &Part,
    found: Vec<usize>,
    expected: &[usize],
) -> Result<(), WeightsError> {
    let name = name.to_owned();
    if found != expected {
        return Err(WeightsError::Shape { name, found, expected: expected.to_vec() });
    }
    if !matches!(part.dtype, FileDtype::BF16 | FileDtype::F16 | FileDtype::F32) {
        return Err(WeightsError::Format { name, found: format!("{:?}", part.dtype) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::packed::Packed;
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
