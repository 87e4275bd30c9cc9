//! Number formats of files and of devices.
//!
//! The type of a buffer's [`Element`] shows the rounding points: a buffer of `E` rounds every value
//! that is stored in it, and nothing else rounds.

use std::fmt;

use half::bf16;

/// A number format of weights, activations and KV rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// The upper half of an `F32`.
    Bf16,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

impl Dtype {
    /// Elements of this format, from little-endian bytes.
    pub fn numbers(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Self::F32 => numbers::<f32>(bytes),
            Self::Bf16 => numbers::<bf16>(bytes),
        }
    }
}

fn numbers<E: Element>(bytes: &[u8]) -> Vec<f32> {
    let mut elements = vec![E::default(); bytes.len() / E::DTYPE.bytes()];
    E::read_le(bytes, &mut elements);
    elements.into_iter().map(E::to_f32).collect()
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

/// A number as it is stored in memory. Arithmetic is `f32`; storing rounds to nearest even.
pub trait Element: Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The format this type implements.
    const DTYPE: Dtype;
    /// Rounds to this format.
    fn from_f32(value: f32) -> Self;
    /// Widens, without loss.
    fn to_f32(self) -> f32;
    /// Writes elements as little-endian bytes.
    fn write_le(from: &[Self], to: &mut [u8]);
    /// Reads elements from little-endian bytes.
    fn read_le(from: &[u8], to: &mut [Self]);
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    fn write_le(from: &[Self], to: &mut [u8]) {
        to.as_chunks_mut().0.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_le_bytes());
    }
    fn read_le(from: &[u8], to: &mut [Self]) {
        to.iter_mut()
            .zip(from.as_chunks().0)
            .for_each(|(to, from)| *to = Self::from_le_bytes(*from));
    }
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        // `bf16::to_f32` branches on NaN. The shift alone is exact for every value.
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    fn write_le(from: &[Self], to: &mut [u8]) {
        to.as_chunks_mut().0.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_le_bytes());
    }
    fn read_le(from: &[u8], to: &mut [Self]) {
        to.iter_mut()
            .zip(from.as_chunks().0)
            .for_each(|(to, from)| *to = Self::from_le_bytes(*from));
    }
}
