//! One file per command.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod list;
pub(crate) mod pull;
pub(crate) mod run;
pub(crate) mod sampling;
pub(crate) mod show;
pub(crate) mod welcome;
