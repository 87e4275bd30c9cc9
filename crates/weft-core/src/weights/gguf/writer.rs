//! Writes GGUF files: the header with its metadata, and where each tensor lies.

use std::path::Path;

use super::container::{DEFAULT_ALIGNMENT, MAGIC, TYPE_LIST, TYPE_TEXT, VERSION};
use super::encode::encode;
use super::kind::Kind;
use super::metadata::Scalar;
use super::{is_permuted, names};
use crate::config::Config;
use crate::weights::output::{Meter, Output, WriteError, for_each_tensor};
use crate::weights::{TensorShape, Weights};

/// The metadata of a new file, as the file stores it.
#[derive(Default)]
pub(crate) struct NewMetadata {
    bytes: Vec<u8>,
    count: u64,
}

impl NewMetadata {
    fn begin(&mut self, key: &str, kind: u32) {
        self.count += 1;
        put_text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
    }

    pub(crate) fn count(&mut self, key: &str, value: u32) {
        self.begin(key, Scalar::U32.id());
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn real(&mut self, key: &str, value: f32) {
        self.begin(key, Scalar::F32.id());
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) {
        self.begin(key, Scalar::Bool.id());
        self.bytes.push(u8::from(value));
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.begin(key, TYPE_TEXT);
        put_text(&mut self.bytes, value);
    }

    pub(crate) fn texts(&mut self, key: &str, values: &[String]) {
        self.begin_list(key, TYPE_TEXT, values.len());
        values.iter().for_each(|value| put_text(&mut self.bytes, value));
    }

    pub(crate) fn numbers(&mut self, key: &str, values: &[i32]) {
        self.begin_list(key, Scalar::I32.id(), values.len());
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn begin_list(&mut self, key: &str, kind: u32, count: usize) {
        self.begin(key, TYPE_LIST);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((count as u64).to_le_bytes());
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// The blocks of a new file's matrices.
#[derive(Clone, Copy)]
pub(crate) enum Blocks {
    Q8_0,
    Q4_0,
}

impl Blocks {
    /// The number of this mix of formats in files.
    pub(crate) fn file_type(self) -> u32 {
        match self {
            Self::Q8_0 => 7,
            Self::Q4_0 => 2,
        }
    }

    /// The format of a tensor: vectors are F32, as llama.cpp needs them. The head keeps 8 bits, and
    /// so does an embedding that is the head too: errors there reach the logits directly.
    fn kind(self, shape: &TensorShape, config: &Config) -> Kind {
        use crate::weights::LayerTensor;
        use crate::weights::Tensor::{Embed, Head, Layer};
        match (self, shape.tensor) {
            _ if shape.shape.len() == 1 => Kind::F32,
            // llama.cpp computes with routers in f32.
            (_, Layer(_, LayerTensor::Router)) => Kind::F32,
            (Self::Q4_0, Head) => Kind::Q8_0,
            (Self::Q4_0, Embed) if config.tied_head => Kind::Q8_0,
            (Self::Q4_0, _) => Kind::Q4_0,
            (Self::Q8_0, _) => Kind::Q8_0,
        }
    }
}

/// A new file: its header, and the places of its tensors.
pub(crate) struct NewGguf<'a> {
    config: &'a Config,
    tensors: Vec<TensorShape>,
    places: Vec<(Kind, u64)>,
    /// Everything before the first tensor of the model.
    header: Vec<u8>,
    bytes: u64,
}

impl<'a> NewGguf<'a> {
    /// Lays a file out. `rope_factors` divide the rotary frequencies, f32 \[head_dim / 2\].
    pub(crate) fn new(
        metadata: &NewMetadata,
        config: &'a Config,
        blocks: Blocks,
        rope_factors: Option<&[f32]>,
    ) -> Self {
        let tensors = crate::weights::tensors(config);
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        let n_tensors = tensors.len() + usize::from(rope_factors.is_some());
        header.extend((n_tensors as u64).to_le_bytes());
        header.extend(metadata.count.to_le_bytes());
        header.extend(&metadata.bytes);
        let mut at = 0_u64;
        let mut describe = |name: &str, shape: &[usize], kind: Kind| {
            put_text(&mut header, name);
            header.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|size| header.extend((*size as u64).to_le_bytes()));
            header.extend(kind.id().to_le_bytes());
            let start = at;
            header.extend(start.to_le_bytes());
            let row_bytes = kind.row_bytes(shape[shape.len() - 1]);
            let rows: usize = shape[..shape.len() - 1].iter().product();
            at = (at + (rows * row_bytes) as u64).next_multiple_of(DEFAULT_ALIGNMENT);
            start
        };
        if let Some(factors) = rope_factors {
            describe(names::ROPE_FACTORS, &[factors.len()], Kind::F32);
        }
        let mut places: Vec<_> = tensors
            .iter()
            .map(|shape| {
                let kind = blocks.kind(shape, config);
                (kind, describe(&names::name(shape.tensor), &shape.shape, kind))
            })
            .collect();
        let data = (header.len() as u64).next_multiple_of(DEFAULT_ALIGNMENT);
        header.resize(data as usize, 0);
        places.iter_mut().for_each(|(_, start)| *start += data);
        let factors = rope_factors.into_iter().flatten();
        header.extend(factors.flat_map(|factor| factor.to_le_bytes()));
        Self { config, tensors, places, header, bytes: data + at }
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes the file, with the values of these weights.
    pub(crate) fn write(
        &self,
        path: &Path,
        weights: &dyn Weights,
        meter: &Meter<'_>,
    ) -> Result<(), WriteError> {
        let output = Output::create(path, &self.header, meter)?;
        for_each_tensor(&self.tensors, |i, shape| {
            let (kind, start) = self.places[i];
            let head =
                is_permuted(shape.tensor, self.config.family).then_some(self.config.head_dim);
            let mut rows = output.rows(start, kind.row_bytes(shape.row()), head);
            weights.read(shape.tensor, &mut |_, values| {
                rows.push(|to| encode(kind, values, to));
            })?;
            rows.finish()
        })?;
        output.finish(self.bytes)
    }
}
