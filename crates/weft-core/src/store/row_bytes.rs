//! Bytes of rows in main memory: plain ones, or memory that a device lends because it copies from
//! there faster.
//!
//! Whoever reads or writes rows sees bytes. Only the device that lent them knows more
//! ([`RowBytes::lent`]). Lent memory goes back to its device when the bytes are dropped.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Where bytes of rows are allocated, from any thread.
pub trait RowMemory: Send + Sync {
    /// So many bytes, of any content.
    fn take(&self, bytes: usize) -> RowBytes;
}

/// Memory that no device lends: zeros.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainMemory;

impl RowMemory for PlainMemory {
    fn take(&self, bytes: usize) -> RowBytes {
        vec![0; bytes].into()
    }
}

/// Memory of a device, lent for rows.
pub trait LentMemory: Any + Send + Sync {
    /// What it holds.
    fn bytes(&self) -> &[u8];
    /// What it holds, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// What it is, for people.
    fn kind(&self) -> &'static str {
        "of a device"
    }
}

/// Bytes of rows.
pub struct RowBytes(Place);

enum Place {
    Plain(Vec<u8>),
    Lent(Box<dyn LentMemory>),
}

impl RowBytes {
    /// Bytes in memory that a device lends.
    pub fn of_device(memory: Box<dyn LentMemory>) -> Self {
        Self(Place::Lent(memory))
    }

    /// The memory that holds them, if a device has lent it and it is of this type.
    pub fn lent<T: LentMemory>(&self) -> Option<&T> {
        match &self.0 {
            Place::Plain(_) => None,
            Place::Lent(memory) => (&**memory as &dyn Any).downcast_ref(),
        }
    }
}

impl Deref for RowBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Plain(bytes) => bytes,
            Place::Lent(memory) => memory.bytes(),
        }
    }
}

impl DerefMut for RowBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Place::Plain(bytes) => bytes,
            Place::Lent(memory) => memory.bytes_mut(),
        }
    }
}

impl From<Vec<u8>> for RowBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Place::Plain(bytes))
    }
}

impl FromIterator<u8> for RowBytes {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Self {
        Vec::from_iter(bytes).into()
    }
}

/// A copy is plain.
impl Clone for RowBytes {
    fn clone(&self) -> Self {
        self.to_vec().into()
    }
}

impl PartialEq for RowBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for RowBytes {}

impl fmt::Debug for RowBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Place::Plain(_) => "of the process",
            Place::Lent(memory) => memory.kind(),
        };
        write!(f, "{} bytes {kind}", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Own([u8; 4]);

    impl LentMemory for Own {
        fn bytes(&self) -> &[u8] {
            &self.0
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    struct Other;

    impl LentMemory for Other {
        fn bytes(&self) -> &[u8] {
            &[]
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut []
        }
    }

    #[test]
    fn only_the_type_that_was_lent_is_found_again() {
        let mut lent = RowBytes::of_device(Box::new(Own([1, 2, 3, 4])));
        assert!(lent.lent::<Own>().is_some() && lent.lent::<Other>().is_none());
        lent[1] = 9;
        assert_eq!(lent.lent::<Own>().unwrap().0, [1, 9, 3, 4]);
        let plain: RowBytes = vec![1, 9, 3, 4].into();
        assert!(plain == lent && plain.lent::<Own>().is_none());
        assert!(lent.clone() == lent && lent.clone().lent::<Own>().is_none(), "a copy is plain");
        assert!(RowBytes::of_device(Box::new(Other)).is_empty());
        assert_eq!(&*PlainMemory.take(3), [0; 3]);
    }
}
