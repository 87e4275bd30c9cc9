//! The large parts of `tokenizer.json`, borrowed from the file if possible.
//!
//! It parses the vocabulary and the merges, including older spellings. All other checks are in
//! [`super::file`].

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// A string, borrowed from the file if it has no escapes.
pub(super) struct Str<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Str<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StrVisitor;
        impl<'de> Visitor<'de> for StrVisitor {
            type Value = Str<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Str(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Str(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(StrVisitor)
    }
}

/// Token to id, as listed.
pub(super) struct Vocab<'a>(pub(super) Vec<(Str<'a>, u32)>);

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabVisitor;
        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = Vocab<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map of tokens to ids")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Vocab(entries))
            }
        }
        deserializer.deserialize_map(VocabVisitor)
    }
}

/// A merge, written `["a", "b"]` or, in older files, `"a b"`.
pub(super) struct Merge<'a>(pub(super) Cow<'a, str>, pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a merge: two strings, or one with a space between them")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let (left, right) = text
                    .split_once(' ')
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))?;
                Ok(Merge(Cow::Owned(left.to_owned()), Cow::Owned(right.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let missing = || A::Error::custom("a merge has two parts");
                let left: Str = seq.next_element()?.ok_or_else(missing)?;
                let right: Str = seq.next_element()?.ok_or_else(missing)?;
                match seq.next_element::<serde::de::IgnoredAny>()? {
                    None => Ok(Merge(left.0, right.0)),
                    Some(_) => Err(missing()),
                }
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}
