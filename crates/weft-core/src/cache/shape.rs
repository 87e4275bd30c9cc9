//! The size of rows: as the device computes them, as files have them, and in main memory, where
//! they lie as they travel.

use super::{Cache, Node};
use crate::config::Config;
use crate::dtype::Dtype;
use crate::store::{PackedRows, RowForm};

/// The dimensions of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowShape {
    pub(crate) layers: usize,
    pub(crate) kv_width: usize,
    pub(crate) dtype: Dtype,
}

impl RowShape {
    pub(crate) fn new(config: &Config, dtype: Dtype) -> Self {
        Self { layers: config.layers, kv_width: config.kv_width(), dtype }
    }

    /// Bytes of the keys, or of the values, of `rows` rows in `layers` layers.
    pub(crate) fn bytes(&self, layers: usize, rows: usize) -> usize {
        layers * rows * self.kv_width * self.dtype.bytes()
    }

    /// Bytes of all rows of a node.
    pub(super) fn node_bytes(&self, node: &Node) -> u64 {
        2 * self.bytes(self.layers, node.len()) as u64
    }

    /// Rows of a node as a device packs them, if they are stored in 8 bits.
    pub(super) fn packed(&self, node: &Node) -> Option<PackedRows> {
        match node.form {
            // Pairs with a scale have the size of full rows, which could be taken for them.
            RowForm::Int8 { group } if self.dtype == Dtype::Bf16 && group > 2 => {
                Some(PackedRows { kv_width: self.kv_width, group })
            }
            _ => None,
        }
    }

    /// Bytes of all rows of a node in a file.
    pub(super) fn stored_bytes(&self, node: &Node) -> u64 {
        let row_bytes = node.form.row_bytes(self.kv_width, self.dtype).expect("it was checked");
        2 * (self.layers * node.len() * row_bytes) as u64
    }
}

impl Cache {
    /// Tells whether the device packs rows ([`Device::packs_rows`]). Before there are any.
    pub(crate) fn packs(&mut self, packs: bool) {
        self.packs = packs;
    }

    /// The form of a node's rows in main memory, if it is packed.
    pub(super) fn packed(&self, node: &Node) -> Option<PackedRows> {
        self.shape.packed(node).filter(|_| self.packs)
    }

    /// Bytes of a node's rows in main memory.
    pub(super) fn ram_bytes_of(&self, node: &Node) -> u64 {
        match self.packed(node) {
            Some(_) => self.shape.stored_bytes(node),
            None => self.shape.node_bytes(node),
        }
    }
}
