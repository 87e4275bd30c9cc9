//! The metadata of a GGUF file: keys with numbers, texts, or lists of them.

use std::collections::HashMap;

/// The metadata of a file.
#[derive(Debug, Default)]
pub struct Metadata {
    values: HashMap<String, Value>,
}

/// A value of the metadata. Lists stay as the file stores them, so that they take no more memory
/// than the file has.
#[derive(Debug)]
pub(super) enum Value {
    Number(Number),
    Bool(bool),
    Text(Vec<u8>),
    Numbers { kind: Scalar, bytes: Vec<u8> },
    Texts(Texts),
}

/// A number of the metadata.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Whole(i128),
    Real(f64),
}

/// The type of a number, or of a truth value, in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

/// A list of texts: their bytes in a row, and where each one ends.
#[derive(Debug, Default)]
pub(super) struct Texts {
    pub(super) bytes: Vec<u8>,
    pub(super) ends: Vec<u32>,
}

impl Texts {
    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start as usize..*end as usize])
    }
}

impl Scalar {
    /// The type with this number in files.
    pub(super) fn of(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// The number of the type in files.
    pub(super) fn id(self) -> u32 {
        (0..).find(|id| Self::of(*id) == Some(self)).expect("every type has a number")
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The number in `bytes`, which are as many as the type has.
    pub(super) fn number(self, bytes: &[u8]) -> Number {
        let mut raw = [0; 8];
        raw[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(raw);
        Number::Whole(match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 | Self::Bool => i128::from(word),
            Self::I8 => i128::from(word as u8 as i8),
            Self::I16 => i128::from(word as u16 as i16),
            Self::I32 => i128::from(word as u32 as i32),
            Self::I64 => i128::from(word as i64),
            Self::F32 => return Number::Real(f64::from(f32::from_bits(word as u32))),
            Self::F64 => return Number::Real(f64::from_bits(word)),
        })
    }
}

/// Why a key's value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// The key.
    pub(crate) key: String,
    /// Its value, shortened.
    pub(crate) found: String,
    /// The values that weft takes.
    pub(crate) expected: &'static str,
}

impl Metadata {
    /// Adds a value; `false` if the key is there already.
    pub(super) fn insert(&mut self, key: String, value: Value) -> bool {
        self.values.insert(key, value).is_none()
    }

    /// A number from 0. A list counts as one number if all its numbers are equal.
    pub(crate) fn count(&self, key: &str) -> Result<Option<u64>, Wrong> {
        const EXPECTED: &str = "a whole number from 0, the same in every layer";
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let whole = |number| match number {
            Number::Whole(whole) => u64::try_from(whole).ok(),
            Number::Real(_) => None,
        };
        let found = match value {
            Value::Number(number) => whole(*number),
            Value::Numbers { .. } => {
                let mut numbers = value.numbers().filter_map(whole);
                let first = numbers.next();
                let same = numbers.all(|number| Some(number) == first);
                first.filter(|_| same)
            }
            _ => None,
        };
        found.map(Some).ok_or_else(|| self.wrong(key, EXPECTED))
    }

    /// A real number; whole ones count too.
    pub(crate) fn real(&self, key: &str) -> Result<Option<f64>, Wrong> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Number(Number::Real(real))) => Ok(Some(*real)),
            Some(Value::Number(Number::Whole(whole))) => Ok(Some(*whole as f64)),
            Some(_) => Err(self.wrong(key, "a number")),
        }
    }

    /// A number, or a truth value as 0 or 1.
    pub(crate) fn real_or_flag(&self, key: &str) -> Result<Option<f64>, Wrong> {
        match self.values.get(key) {
            Some(Value::Bool(flag)) => Ok(Some(f64::from(*flag))),
            _ => self.real(key),
        }
    }

    /// A truth value.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, Wrong> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, Wrong> {
        const EXPECTED: &str = "a text in UTF-8";
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Text(bytes)) => {
                std::str::from_utf8(bytes).map(Some).map_err(|_| self.wrong(key, EXPECTED))
            }
            Some(_) => Err(self.wrong(key, EXPECTED)),
        }
    }

    /// A list of texts.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, Wrong> {
        const EXPECTED: &str = "a list of texts in UTF-8";
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Texts(texts)) => {
                let texts: Result<_, _> = texts.iter().map(std::str::from_utf8).collect();
                texts.map(Some).map_err(|_| self.wrong(key, EXPECTED))
            }
            Some(_) => Err(self.wrong(key, EXPECTED)),
        }
    }

    /// A list of whole numbers; numbers outside of i64 are refused.
    pub(crate) fn whole_numbers(&self, key: &str) -> Result<Option<Vec<i64>>, Wrong> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let whole = |number| match number {
            Number::Whole(whole) => i64::try_from(whole).ok(),
            Number::Real(_) => None,
        };
        let numbers = matches!(value, Value::Numbers { .. })
            .then(|| value.numbers().map(whole).collect::<Option<Vec<_>>>());
        numbers.flatten().map(Some).ok_or_else(|| self.wrong(key, "a list of whole numbers"))
    }

    fn wrong(&self, key: &str, expected: &'static str) -> Wrong {
        let found = self.values.get(key).map_or("absent".to_owned(), Value::shown);
        Wrong { key: key.to_owned(), found, expected }
    }
}

impl Value {
    fn numbers(&self) -> impl Iterator<Item = Number> {
        let (kind, bytes) = match self {
            Self::Numbers { kind, bytes } => (*kind, &bytes[..]),
            _ => (Scalar::U8, &[][..]),
        };
        bytes.chunks_exact(kind.bytes()).map(move |bytes| kind.number(bytes))
    }

    /// The value for a message, shortened.
    fn shown(&self) -> String {
        const MOST: usize = 40;
        match self {
            Self::Number(Number::Whole(whole)) => whole.to_string(),
            Self::Number(Number::Real(real)) => real.to_string(),
            Self::Bool(flag) => flag.to_string(),
            Self::Text(bytes) => {
                let text: String = String::from_utf8_lossy(bytes).chars().take(MOST).collect();
                format!("{text:?}")
            }
            Self::Numbers { kind, bytes } => {
                format!("a list of {} numbers", bytes.len() / kind.bytes())
            }
            Self::Texts(texts) => format!("a list of {} texts", texts.ends.len()),
        }
    }
}
