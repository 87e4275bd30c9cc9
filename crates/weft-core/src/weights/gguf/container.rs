//! Reads and checks everything of one GGUF file except the values of its tensors.
//!
//! Nothing in the file is trusted. A length is compared with what is left of the file, and of a
//! limit for all headers, before memory is taken. Every tensor lies inside the file, and no two
//! share a byte.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;

use super::kind::{INSTEAD, Kind};
use super::metadata::{Metadata, Scalar, Texts, Value};
use crate::weights::WeightsError;
use crate::weights::header::Source;

/// Bytes of metadata and tensor descriptions. Vocabularies make up most of them: real files have
/// up to 20 MB.
const HEADER_LIMIT: u64 = 64 << 20;
/// Real files have fewer than 100 keys.
const KEY_LIMIT: u64 = 1 << 14;
/// The largest models have some thousand tensors.
const TENSOR_LIMIT: u64 = 1 << 16;
/// Bytes of a key or of a tensor's name.
const NAME_LIMIT: u64 = 1 << 10;
/// Sizes of a tensor's shape.
const DIMENSION_LIMIT: u32 = 4;
const ALIGNMENT_LIMIT: u64 = 1 << 16;
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;

/// What a file begins with.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// The version that weft writes.
pub(super) const VERSION: u32 = 3;

pub(super) const TYPE_TEXT: u32 = 8;
pub(super) const TYPE_LIST: u32 = 9;

/// One file, open and checked.
pub(super) struct Container {
    /// Its name in messages.
    pub(super) name: String,
    pub(super) source: Box<dyn Source>,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<Stored>,
}

/// A tensor as the file describes it.
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Its shape as Hugging Face writes it: the length of a row comes last.
    pub(super) shape: Vec<usize>,
    /// Offset of its first byte in the file.
    pub(super) start: u64,
    pub(super) bytes: u64,
}

/// Opens a file.
pub(super) fn open(path: &Path) -> Result<Container, WeightsError> {
    let name = path.display().to_string();
    let failed = |source| WeightsError::Read { file: name.clone(), source };
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    read(name, Box::new(file), bytes)
}

/// Opens a file in memory.
pub(super) fn of_bytes(name: &str, bytes: Vec<u8>) -> Result<Container, WeightsError> {
    let length = bytes.len() as u64;
    read(name.to_owned(), Box::new(Cursor::new(bytes)), length)
}

fn read(name: String, mut source: Box<dyn Source>, bytes: u64) -> Result<Container, WeightsError> {
    let reader = Reader {
        source: BufReader::with_capacity(1 << 16, &mut source),
        at: 0,
        end: bytes.min(HEADER_LIMIT),
    };
    match parse(reader, bytes) {
        Ok((metadata, tensors)) => Ok(Container { name, source, metadata, tensors }),
        Err(Fault::Read(source)) => Err(WeightsError::Read { file: name, source }),
        Err(Fault::Broken(reason)) => Err(WeightsError::Gguf {
            file: name,
            reason: format!("it is not a valid GGUF file: {reason}; download it again"),
        }),
        Err(Fault::Unsupported(reason)) => Err(WeightsError::Gguf { file: name, reason }),
    }
}

enum Fault {
    Read(io::Error),
    Broken(String),
    Unsupported(String),
}

fn broken<T>(reason: String) -> Result<T, Fault> {
    Err(Fault::Broken(reason))
}

/// Reads the header, and never beyond its limit.
struct Reader<'s> {
    source: BufReader<&'s mut Box<dyn Source>>,
    at: u64,
    end: u64,
}

impl Reader<'_> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Fault> {
        let left = self.end - self.at;
        if bytes.len() as u64 > left {
            return broken(format!("its header does not fit {} bytes", self.end));
        }
        self.source.read_exact(bytes).map_err(Fault::Read)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn bytes(&mut self, count: u64) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        self.append(count, &mut bytes)?;
        Ok(bytes)
    }

    fn append(&mut self, count: u64, bytes: &mut Vec<u8>) -> Result<(), Fault> {
        let left = self.end - self.at;
        if count > left {
            return broken(format!("a value claims {count} bytes, at most {left} fit"));
        }
        let start = bytes.len();
        bytes.resize(start + count as usize, 0);
        self.fill(&mut bytes[start..])
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A count with a limit.
    fn count(&mut self, what: &str, limit: u64) -> Result<u64, Fault> {
        match self.u64()? {
            count if count > limit => {
                broken(format!("it claims {count} {what}, and the limit is {limit}"))
            }
            count => Ok(count),
        }
    }

    /// A key, or the name of a tensor.
    fn name(&mut self) -> Result<String, Fault> {
        let length = self.count("bytes for a name", NAME_LIMIT)?;
        String::from_utf8(self.bytes(length)?)
            .map_err(|error| Fault::Broken(format!("a name is not UTF-8: {error}")))
    }

    fn value(&mut self, key: &str) -> Result<Value, Fault> {
        match self.u32()? {
            TYPE_TEXT => {
                let length = self.u64()?;
                Ok(Value::Text(self.bytes(length)?))
            }
            TYPE_LIST => self.list(key),
            id => {
                let kind = scalar(key, id)?;
                let mut bytes = [0; 8];
                let bytes = &mut bytes[..kind.bytes()];
                self.fill(bytes)?;
                Ok(match kind {
                    Scalar::Bool => Value::Bool(bytes[0] != 0),
                    _ => Value::Number(kind.number(bytes)),
                })
            }
        }
    }

    fn list(&mut self, key: &str) -> Result<Value, Fault> {
        let id = self.u32()?;
        let count = self.u64()?;
        if id == TYPE_TEXT {
            // A text takes at least the 8 bytes of its length.
            let left = (self.end - self.at) / 8;
            if count > left {
                return broken(format!("`{key}` claims {count} texts, at most {left} fit"));
            }
            let mut texts = Texts::default();
            for _ in 0..count {
                let length = self.u64()?;
                self.append(length, &mut texts.bytes)?;
                texts.ends.push(texts.bytes.len() as u32);
            }
            return Ok(Value::Texts(texts));
        }
        let kind = scalar(key, id)?;
        let bytes = count.saturating_mul(kind.bytes() as u64);
        Ok(Value::Numbers { kind, bytes: self.bytes(bytes)? })
    }
}

fn scalar(key: &str, id: u32) -> Result<Scalar, Fault> {
    Scalar::of(id).ok_or_else(|| {
        Fault::Broken(format!("the value of `{key}` has the type {id}, which weft cannot read"))
    })
}

fn parse(mut reader: Reader<'_>, bytes: u64) -> Result<(Metadata, Vec<Stored>), Fault> {
    let mut magic = [0; 4];
    reader.fill(&mut magic)?;
    if magic != MAGIC {
        return broken(format!("it begins with {magic:?}, not with \"GGUF\""));
    }
    match reader.u32()? {
        2 | 3 => {}
        version if version.swap_bytes() <= 3 => {
            return Err(Fault::Unsupported(
                "it is a GGUF file for big-endian machines; take a little-endian one".to_owned(),
            ));
        }
        version => {
            return Err(Fault::Unsupported(format!(
                "it is a GGUF file of version {version}; weft reads the versions 2 and 3, so take \
                 a file that was converted again"
            )));
        }
    }
    let n_tensors = reader.count("tensors", TENSOR_LIMIT)?;
    let n_keys = reader.count("keys", KEY_LIMIT)?;
    let mut metadata = Metadata::default();
    for _ in 0..n_keys {
        let key = reader.name()?;
        let value = reader.value(&key)?;
        if !metadata.insert(key.clone(), value) {
            return broken(format!("the key `{key}` is there twice"));
        }
    }
    let alignment = alignment(&metadata)?;
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..n_tensors {
        let tensor = tensor(&mut reader, alignment)?;
        if !names.insert(tensor.name.clone()) {
            return broken(format!("the tensor `{}` is there twice", tensor.name));
        }
        tensors.push(tensor);
    }
    place(&mut tensors, reader.at.next_multiple_of(alignment), bytes)?;
    Ok((metadata, tensors))
}

fn alignment(metadata: &Metadata) -> Result<u64, Fault> {
    let found = metadata.count("general.alignment").map_err(|wrong| {
        Fault::Broken(format!("`general.alignment` is {}, not a number", wrong.found))
    })?;
    let alignment = found.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > ALIGNMENT_LIMIT {
        return broken(format!(
            "`general.alignment` is {alignment}, not a power of two up to {ALIGNMENT_LIMIT}"
        ));
    }
    Ok(alignment)
}

/// The description of a tensor. Its `start` counts from the beginning of the data.
fn tensor(reader: &mut Reader<'_>, alignment: u64) -> Result<Stored, Fault> {
    let name = reader.name()?;
    let n_dimensions = reader.u32()?;
    if !(1..=DIMENSION_LIMIT).contains(&n_dimensions) {
        return broken(format!(
            "the tensor `{name}` has {n_dimensions} dimensions, not 1 to {DIMENSION_LIMIT}"
        ));
    }
    let mut shape = Vec::new();
    for _ in 0..n_dimensions {
        shape.push(reader.u64()?);
    }
    let id = reader.u32()?;
    let start = reader.u64()?;
    let kind = Kind::of(id).map_err(|found| {
        Fault::Unsupported(format!("its tensor `{name}` is stored as {found}; {INSTEAD}"))
    })?;
    let elements = shape.iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
    let elements = elements.filter(|elements| (1..=u64::MAX >> 8).contains(elements));
    let Some(elements) = elements else {
        return broken(format!("the tensor `{name}` has the impossible shape {shape:?}"));
    };
    let block = kind.block() as u64;
    if !shape[0].is_multiple_of(block) {
        return broken(format!(
            "the tensor `{name}` has rows of {} elements, not of whole blocks of {block}",
            shape[0]
        ));
    }
    if !start.is_multiple_of(alignment) {
        return broken(format!("the tensor `{name}` starts at {start}, which is not aligned"));
    }
    let bytes = elements / block * kind.block_bytes() as u64;
    // All sizes are at most `elements`, which is below 2^56.
    let shape = shape.iter().rev().map(|size| *size as usize).collect();
    Ok(Stored { name, kind, shape, start, bytes })
}

/// Turns offsets in the data into offsets in the file, and checks that the file has the data.
fn place(tensors: &mut [Stored], data: u64, file_bytes: u64) -> Result<(), Fault> {
    for tensor in tensors.iter_mut() {
        let start = tensor.start.checked_add(data);
        let end = start.and_then(|start| start.checked_add(tensor.bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_bytes => tensor.start = start,
            _ => {
                return broken(format!(
                    "the tensor `{}` of {} bytes does not lie inside its {file_bytes} bytes",
                    tensor.name, tensor.bytes
                ));
            }
        }
    }
    let mut order: Vec<&Stored> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.start);
    match order.windows(2).find(|pair| pair[0].start + pair[0].bytes > pair[1].start) {
        Some(pair) => {
            broken(format!("the tensors `{}` and `{}` overlap", pair[0].name, pair[1].name))
        }
        None => Ok(()),
    }
}
