//! The description of stored rows, and its comparison with the requested rows.
//!
//! `format.rs` defines the encoding of a header in a file.

use super::reason::Reason;
use super::{KvKey, RowBytes, RowForm};
use crate::dtype::Dtype;

/// The description of a file's rows. Everything except `prefill_us` must equal the reader's
/// expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Model and device family, as named by the caller.
    pub fingerprint: String,
    /// The number format of every element, as devices have it.
    pub dtype: Dtype,
    /// How the elements are stored.
    pub form: RowForm,
    /// Layers of the model.
    pub layers: usize,
    /// Elements of one row of one layer: KV heads times head size.
    pub kv_width: usize,
    /// How the rows may be reused: `exact`, or `coarse` if they are stored in 8 bits.
    pub reuse: String,
    /// The key of the rows that these rows attended to.
    pub parent: KvKey,
    /// The position that the first key was rotated for.
    pub home_position: usize,
    /// The tokens, one row each.
    pub tokens: Vec<u32>,
    /// The time to compute the rows: the cost of losing them.
    pub prefill_us: u64,
}

/// Keys and values of a chunk as little-endian bytes, each `[layers][rows][kv_width]` of `dtype`;
/// or as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRows {
    /// The keys, rotated for their home positions.
    pub k: RowBytes,
    /// The values.
    pub v: RowBytes,
}

impl Header {
    /// The key of the rows.
    pub fn key(&self) -> KvKey {
        KvKey::of_rows(&self.form.place(&self.parent), &self.tokens)
    }

    /// Bytes of `k`, and of `v`, as they are stored. `None` if the product does not fit a file.
    pub fn tensor_bytes(&self) -> Option<usize> {
        self.full_bytes()?;
        self.bytes_in(self.form)
    }

    /// Bytes of `k`, and of `v`, as devices have them.
    pub fn full_bytes(&self) -> Option<usize> {
        self.bytes_in(RowForm::Full)
    }

    fn bytes_in(&self, form: RowForm) -> Option<usize> {
        let n_rows = self.layers.checked_mul(self.tokens.len())?;
        let bytes = n_rows.checked_mul(form.row_bytes(self.kv_width, self.dtype)?)?;
        // The total of both tensors and their header must not overflow.
        (bytes < usize::MAX / 4).then_some(bytes)
    }

    /// The first field in which `found` differs from `self`. `prefill_us` may differ.
    pub fn mismatch(&self, found: &Self) -> Option<Reason> {
        let differs = |field, expected: String, found: String| {
            (expected != found).then_some(Reason::Mismatch { field, expected, found })
        };
        let shape = |header: &Self| format!("{} x {}", header.layers, header.kv_width);
        differs("fingerprint", self.fingerprint.clone(), found.fingerprint.clone())
            .or_else(|| differs("dtype", self.dtype.to_string(), found.dtype.to_string()))
            .or_else(|| {
                let form = |header: &Self| format!("{:?}", header.form);
                differs("form", form(self), form(found))
            })
            .or_else(|| differs("layers_x_width", shape(self), shape(found)))
            .or_else(|| differs("reuse", self.reuse.clone(), found.reuse.clone()))
            .or_else(|| differs("parent", self.parent.to_string(), found.parent.to_string()))
            .or_else(|| {
                let home = |header: &Self| header.home_position.to_string();
                differs("home_position", home(self), home(found))
            })
            .or_else(|| self.token_mismatch(found))
    }

    /// Reports only the first token that differs: whole lists would fill the log.
    fn token_mismatch(&self, found: &Self) -> Option<Reason> {
        let (ours, theirs) = (&self.tokens, &found.tokens);
        if ours == theirs {
            return None;
        }
        let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
        let describe = |tokens: &[u32]| match tokens.get(at) {
            Some(token) => format!("{token} at {at} of {}", tokens.len()),
            None => format!("the end after {at}"),
        };
        Some(Reason::Mismatch {
            field: "tokens",
            expected: describe(ours),
            found: describe(theirs),
        })
    }
}
