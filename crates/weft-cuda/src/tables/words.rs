//! Structs of words, written as words into the lists of a step.

/// Converts structs of words to words.
pub(super) trait Words: Copy {
    const LEN: usize = size_of::<Self>() / 4;
    fn put(&self, to: &mut [u32]);
}

macro_rules! words {
    ($($name:ty),*) => {
        $(impl Words for $name {
            fn put(&self, to: &mut [u32]) {
                assert_eq!(to.len(), Self::LEN);
                // SAFETY: the struct is `repr(C)` of words alone, and as many as `to` has.
                unsafe { to.as_mut_ptr().cast::<Self>().write(*self) };
            }
        })*
    };
}

pub(super) use words;
