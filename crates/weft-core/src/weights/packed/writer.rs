//! Writes models in the format of compressed-tensors, `pack-quantized`: the matrices of layers as
//! codes in words with bf16 scales, the embedding, the head, norms and biases as plain numbers.

use std::collections::{BTreeMap, HashMap};
use std::mem::replace;
use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::json;

use super::compressed::{PACKED, SCALE, SHAPE};
use crate::config::Config;
use crate::weights::output::{Meter, Output, WriteError, for_each_tensor};
use crate::weights::shards::{SINGLE_WEIGHTS_FILE, shard_name};
use crate::weights::{Coded, LayerTensor, Quantiser, Tensor, TensorShape, Weights};

/// Bytes of a shard, as other tools choose them.
const SHARD_BYTES: u64 = 5_000_000_000;

/// The weight files of a new model.
pub(crate) struct NewFolder {
    form: Coded,
    plain: Dtype,
    tensors: Vec<TensorShape>,
    /// The shard of each tensor of the model.
    shard_of: Vec<usize>,
    shards: Vec<Shard>,
}

struct Shard {
    name: String,
    header: Vec<u8>,
    /// Where each tensor of the file starts, counted from the start of the file.
    starts: HashMap<String, u64>,
    bytes: u64,
}

/// A tensor of a file.
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

impl NewFolder {
    /// Lays the files of a model out. Plain tensors are stored as `plain`.
    pub(crate) fn new(config: &Config, form: Coded, plain: Dtype) -> Self {
        Self::with_shards(config, form, plain, SHARD_BYTES)
    }

    fn with_shards(config: &Config, form: Coded, plain: Dtype, shard_bytes: u64) -> Self {
        let tensors = crate::weights::tensors(config);
        let mut groups: Vec<Vec<Entry>> = vec![Vec::new()];
        let mut shard_of = Vec::new();
        let mut filled = 0;
        for shape in &tensors {
            let entries = entries(shape, form, plain);
            let bytes: u64 = entries.iter().map(|entry| entry.bytes() as u64).sum();
            if filled > 0 && filled + bytes > shard_bytes {
                groups.push(Vec::new());
                filled = 0;
            }
            filled += bytes;
            shard_of.push(groups.len() - 1);
            let last = groups.len() - 1;
            groups[last].extend(entries);
        }
        let count = groups.len();
        let name = |number: usize| match count {
            1 => SINGLE_WEIGHTS_FILE.to_owned(),
            _ => shard_name(number + 1, count),
        };
        let shards =
            groups.into_iter().enumerate().map(|(i, group)| Shard::new(name(i), group)).collect();
        Self { form, plain, tensors, shard_of, shards }
    }

    /// Bytes of all weight files.
    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes).sum()
    }

    /// The list of shards, if there are several.
    pub(crate) fn index(&self) -> Option<serde_json::Value> {
        if self.shards.len() == 1 {
            return None;
        }
        let files: BTreeMap<&str, &str> = self
            .shards
            .iter()
            .flat_map(|shard| shard.starts.keys().map(|name| (&**name, &*shard.name)))
            .collect();
        let headers: usize = self.shards.iter().map(|shard| shard.header.len()).sum();
        let total = self.bytes() - headers as u64;
        Some(json!({ "metadata": { "total_size": total }, "weight_map": files }))
    }

    /// Writes the files, with the values of these weights.
    pub(crate) fn write(
        &self,
        folder: &Path,
        weights: &dyn Weights,
        meter: &Meter<'_>,
    ) -> Result<(), WriteError> {
        let create =
            |shard: &Shard| Output::create(&folder.join(&shard.name), &shard.header, meter);
        let outputs = self.shards.iter().map(create).collect::<Result<Vec<_>, _>>()?;
        for_each_tensor(&self.tensors, |i, shape| {
            let shard = self.shard_of[i];
            self.write_tensor(shape, &self.shards[shard], &outputs[shard], weights)
        })?;
        let mut files = outputs.into_iter().zip(&self.shards);
        files.try_for_each(|(output, shard)| output.finish(shard.bytes))
    }

    fn write_tensor(
        &self,
        shape: &TensorShape,
        shard: &Shard,
        output: &Output<'_>,
        weights: &dyn Weights,
    ) -> Result<(), WriteError> {
        let rows_of = |name: &str, row_bytes| output.rows(shard.starts[name], row_bytes, None);
        let name = shape.tensor.name();
        if !is_packed(shape) {
            let mut rows = rows_of(&name, shape.row() * self.plain.bitsize() / 8);
            weights.read(shape.tensor, &mut |_, values| {
                rows.push(|to| narrow(self.plain, values, to));
            })?;
            return rows.finish();
        }
        // A matrix of each expert.
        let matrices = shape.in_files();
        let rows_of_one = shape.rows() / matrices.len();
        let begin = |matrix: usize| {
            let part = |suffix| name_of(&matrices[matrix].0, suffix);
            let packed = rows_of(&part(PACKED), shape.row() * self.form.code.bits() / 8);
            (packed, rows_of(&part(SCALE), 2 * self.form.n_groups(shape.row())))
        };
        let sizes = [rows_of_one, shape.row()].map(|size| (size as u64).to_le_bytes());
        for (name, _) in &matrices {
            output.write(shard.starts[&name_of(name, SHAPE)], sizes.as_flattened())?;
        }
        let (mut packed, mut scales) = begin(0);
        let mut finished = Ok(());
        let mut quantiser = Quantiser::new(self.form);
        weights.read(shape.tensor, &mut |row, values| {
            if row > 0 && row.is_multiple_of(rows_of_one) && finished.is_ok() {
                let (next_packed, next_scales) = begin(row / rows_of_one);
                let (last_packed, last_scales) =
                    (replace(&mut packed, next_packed), replace(&mut scales, next_scales));
                finished = last_packed.finish().and_then(|()| last_scales.finish());
            }
            let row = quantiser.quantise(values);
            packed.push(|to| match self.form.code.bits() {
                8 => to.copy_from_slice(row.codes),
                // The first code is in the lowest bits of a word, so of its first byte.
                _ => {
                    let pairs = row.codes.as_chunks::<2>().0;
                    to.iter_mut().zip(pairs).for_each(|(to, [low, high])| *to = low | high << 4);
                }
            });
            scales.push(|to| narrow(Dtype::BF16, row.scales.units, to));
        })?;
        finished?;
        packed.finish()?;
        scales.finish()
    }
}

impl Shard {
    fn new(name: String, mut entries: Vec<Entry>) -> Self {
        // The widest numbers first, so that every tensor is aligned.
        entries.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
        let mut at = 0;
        let mut infos = Vec::new();
        let mut starts = HashMap::new();
        for entry in entries {
            let end = at + entry.bytes();
            let info =
                TensorInfo { dtype: entry.dtype, shape: entry.shape, data_offsets: (at, end) };
            starts.insert(entry.name.clone(), at as u64);
            infos.push((entry.name, info));
            at = end;
        }
        // transformers asks for the format.
        let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let metadata = Metadata::new(Some(about), infos).expect("the tensors follow one another");
        let mut json = serde_json::to_vec(&metadata).expect("names and numbers");
        json.resize(json.len().next_multiple_of(8), b' ');
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.extend(json);
        starts.values_mut().for_each(|start| *start += header.len() as u64);
        Self { name, bytes: (header.len() + at) as u64, header, starts }
    }
}

/// Whether a tensor is packed: the matrices of layers are, but for routers.
fn is_packed(shape: &TensorShape) -> bool {
    match shape.tensor {
        Tensor::Layer(_, LayerTensor::Router) => false,
        Tensor::Layer(..) => shape.shape.len() > 1,
        _ => false,
    }
}

fn entries(shape: &TensorShape, form: Coded, plain: Dtype) -> Vec<Entry> {
    let name = shape.tensor.name();
    if !is_packed(shape) {
        return vec![Entry { name, dtype: plain, shape: shape.shape.clone() }];
    }
    let columns = shape.row();
    let words = columns * form.code.bits() / 32;
    let of_matrix = |(name, sizes): (String, Vec<usize>)| {
        let entry = |suffix, dtype, sizes: &[usize]| Entry {
            name: name_of(&name, suffix),
            dtype,
            shape: sizes.to_vec(),
        };
        [
            entry(PACKED, Dtype::I32, &[sizes[0], words]),
            entry(SCALE, Dtype::BF16, &[sizes[0], form.n_groups(columns)]),
            entry(SHAPE, Dtype::I64, &[2]),
        ]
    };
    shape.in_files().into_iter().flat_map(of_matrix).collect()
}

/// The name of a part of a matrix, from the name of its plain tensor.
fn name_of(weight: &str, suffix: &str) -> String {
    let module = weight.strip_suffix("weight").unwrap_or(weight);
    format!("{module}{suffix}")
}

/// Rounds values to the file's number format.
fn narrow(dtype: Dtype, values: &[f32], to: &mut [u8]) {
    let words = to.as_chunks_mut::<2>().0;
    match dtype {
        Dtype::BF16 => {
            words.iter_mut().zip(values).for_each(|(to, v)| *to = bf16::from_f32(*v).to_le_bytes());
        }
        Dtype::F16 => {
            words.iter_mut().zip(values).for_each(|(to, v)| *to = f16::from_f32(*v).to_le_bytes());
        }
        _ => {
            let words = to.as_chunks_mut::<4>().0;
            words.iter_mut().zip(values).for_each(|(to, v)| *to = v.to_le_bytes());
        }
    }
}
