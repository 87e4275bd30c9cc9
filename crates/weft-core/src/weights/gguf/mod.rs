//! Models in GGUF files, the format of llama.cpp: version 2 or 3, whole or split.
//!
//! [`Gguf::open`] checks the files and reads their metadata, from which the config, the tokenizer
//! and the template are made. [`Gguf::weights`] checks the tensors against the config. Values are
//! read later, row by row, from the files that were checked. Files are read, never mapped.

mod blocks;
mod config;
mod container;
mod encode;
mod kind;
mod metadata;
mod names;
mod parts;
mod reader;
mod writer;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;

pub(crate) use self::config::describe_config;
pub use self::metadata::Metadata;
pub(crate) use self::metadata::Wrong;
pub use self::parts::{GGUF_SUFFIX, PartName};
pub use self::reader::GgufWeights;
pub(crate) use self::writer::{Blocks, NewGguf, NewMetadata};

use self::container::{Container, Stored};
use self::kind::Kind;
use super::files::Files;
use super::{Tensor, WeightsError, tensors};
use crate::config::{Config, Family};
use crate::dtype::Dtype;

/// The GGUF files of one model, open and checked.
pub struct Gguf {
    files: Files,
    metadata: Metadata,
    /// The tensors by name, each with the number of its file.
    tensors: HashMap<String, (usize, Stored)>,
}

impl Gguf {
    /// Opens a model's file. If it is the first part of a split model, the others are opened too.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        Self::joined(parts::open(path)?)
    }

    /// Opens a file in memory, named `name` in messages.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, WeightsError> {
        Self::joined(vec![container::of_bytes(name, bytes)?])
    }

    fn joined(parts: Vec<Container>) -> Result<Self, WeightsError> {
        let mut files = Files::default();
        let mut metadata = None;
        let mut tensors: HashMap<String, (usize, Stored)> = HashMap::new();
        for (file, part) in parts.into_iter().enumerate() {
            files.sources.push(Mutex::new(part.source));
            files.names.push(part.name.clone());
            metadata.get_or_insert(part.metadata);
            for tensor in part.tensors {
                if let Some((first, _)) = tensors.get(&tensor.name) {
                    let (first, second) = (files.names[*first].clone(), part.name);
                    return Err(WeightsError::Twice { name: tensor.name, first, second });
                }
                tensors.insert(tensor.name.clone(), (file, tensor));
            }
        }
        Ok(Self { files, metadata: metadata.unwrap_or_default(), tensors })
    }

    /// The metadata of the model.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The name of the file, for messages; of the first one, if there are several.
    pub fn name(&self) -> &str {
        &self.files.names[0]
    }

    /// Rows of the embedding, if the file has one.
    pub(crate) fn vocab(&self) -> Option<usize> {
        match self.tensors.get(names::EMBEDDING)?.1.shape[..] {
            [rows, _] => Some(rows),
            _ => None,
        }
    }

    /// Whether the output head shares the embedding's weights.
    pub(crate) fn has_tied_head(&self) -> bool {
        !self.tensors.contains_key(names::HEAD)
    }

    /// The number format of the computation: f32 if all matrices are, else bf16.
    pub(crate) fn dtype(&self) -> Dtype {
        let mut matrices = self.tensors.values().filter(|(_, tensor)| tensor.shape.len() > 1);
        match matrices.all(|(_, tensor)| tensor.kind == Kind::F32) {
            true => Dtype::F32,
            false => Dtype::Bf16,
        }
    }

    /// The divisors of the rotary frequencies, f32 \[head_dim / 2\], if the file has them.
    pub(crate) fn rope_factors(&self, head_dim: usize) -> Result<Option<Vec<f32>>, WeightsError> {
        let Some((file, tensor)) = self.tensors.get(names::ROPE_FACTORS) else { return Ok(None) };
        if tensor.shape != [head_dim / 2] || tensor.kind != Kind::F32 {
            let reason = format!(
                "its tensor `{}` has the shape {:?} and is stored as {:?}; weft takes F32 and \
                 half a head, [{}]",
                tensor.name,
                tensor.shape,
                tensor.kind,
                head_dim / 2
            );
            return Err(WeightsError::Gguf { file: self.files.names[*file].clone(), reason });
        }
        let mut bytes = vec![0; tensor.bytes as usize];
        self.files.read(*file, tensor.start, &mut bytes)?;
        let factors: Vec<f32> =
            bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        match factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
            Some(value) => {
                let name = tensor.name.clone();
                Err(WeightsError::NotFinite { name, row: 0, value: *value })
            }
            None => Ok(Some(factors)),
        }
    }

    /// The weights, checked against the config: every tensor exists in the right shape, and there
    /// are no others.
    pub fn weights(self, config: &Config) -> Result<GgufWeights, WeightsError> {
        let Self { files, mut tensors, .. } = self;
        let mut places = HashMap::new();
        for shape in self::tensors(config) {
            let name = names::name(shape.tensor);
            let Some((file, stored)) = tensors.remove(&name) else {
                return Err(WeightsError::Missing { name });
            };
            if stored.shape != shape.shape {
                let (found, expected) = (stored.shape, shape.shape);
                return Err(WeightsError::Shape { name, found, expected });
            }
            places.insert(shape.tensor, (file, stored));
        }
        if config.family == Family::Llama {
            tensors.remove(names::ROPE_FACTORS);
        }
        // The first by name, so that the same broken file always gives the same message.
        match tensors.into_iter().min_by(|a, b| a.0.cmp(&b.0)) {
            Some((name, (file, _))) => {
                Err(WeightsError::Surplus { name, file: files.names[file].clone() })
            }
            None => GgufWeights::new(files, places, config),
        }
    }
}

/// Whether the rows of a tensor are permuted in the file: llama's queries and keys are, because
/// llama.cpp rotates neighbouring pairs there.
fn is_permuted(tensor: Tensor, family: Family) -> bool {
    use super::LayerTensor::{K, Q};
    family == Family::Llama && matches!(tensor, Tensor::Layer(_, Q | K))
}
