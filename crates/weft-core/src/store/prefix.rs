//! The key of the context that rows attended to.
//!
//! A prefix is a hash of everything before some rows: the model, the device's family, and all
//! tokens from the first. It does not depend on how the tokens were cut into pieces. Approximate
//! pieces are marked in the hash, because the rows after them attended to them.

use std::fmt::Display;

use super::KvKey;

/// A context as a running hash. Cheap to copy.
#[derive(Clone)]
pub(crate) struct Prefix(blake3::Hasher);

/// Delimit approximate pieces. No vocabulary has these tokens.
const BEGIN: u32 = u32::MAX;
const END: u32 = u32::MAX - 1;
/// Begins the contexts of a group.
const GROUP: u32 = u32::MAX - 2;

impl Prefix {
    /// The empty context of a model on a device.
    pub(crate) fn root(fingerprint: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"weft kv rows 1\0").update(fingerprint.as_bytes());
        Self(hasher)
    }

    /// Adds tokens that attend to everything before them.
    pub(crate) fn add(&mut self, tokens: &[u32]) {
        for token in tokens {
            self.0.update(&token.to_le_bytes());
        }
    }

    /// Sets the contexts of a group apart from all others.
    pub(crate) fn add_group(&mut self, id: u64) {
        self.add(&[GROUP, id as u32, (id >> 32) as u32]);
    }

    /// Adds rows that were computed after `parent`, moved here and repaired in some way.
    pub(crate) fn add_moved(&mut self, parent: &KvKey, repair: impl Display, tokens: &[u32]) {
        self.add(&[BEGIN]);
        self.0.update(parent.as_bytes()).update(repair.to_string().as_bytes());
        self.add(tokens);
        self.add(&[END]);
    }

    /// The key of this context.
    pub(crate) fn key(&self) -> KvKey {
        KvKey::from_bytes(*self.0.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_do_not_show_and_moves_do() {
        let key = |add: &dyn Fn(&mut Prefix)| {
            let mut prefix = Prefix::root("model");
            add(&mut prefix);
            prefix.key()
        };
        let whole = key(&|prefix| prefix.add(&[1, 2, 3]));
        let cut = key(&|prefix| {
            prefix.add(&[1]);
            prefix.add(&[2, 3]);
        });
        assert_eq!(whole, cut);
        let root = Prefix::root("model").key();
        let moved = |repair: &str| key(&|prefix| prefix.add_moved(&root, repair, &[1, 2, 3]));
        assert_ne!(whole, moved("none"));
        assert_ne!(moved("link:8"), moved("none"));
        let after = |parent: &KvKey, moved: &[u32], then: &[u32]| {
            key(&|prefix| {
                prefix.add_moved(parent, "none", moved);
                prefix.add(then);
            })
        };
        assert_ne!(after(&root, &[1, 2], &[]), after(&whole, &[1, 2], &[]));
        assert_ne!(after(&root, &[1, 2], &[3]), after(&root, &[1, 2, 3], &[]));
        assert_ne!(root, Prefix::root("other").key());
    }
}
