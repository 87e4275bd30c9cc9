//! Owned by a later commit.
