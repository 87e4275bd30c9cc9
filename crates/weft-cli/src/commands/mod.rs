//! One file per command. `weft bench` has its own module, [`crate::bench`].

pub(crate) mod ask;
pub(crate) mod chat;
pub(crate) mod chunk;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod list;
pub(crate) mod ps;
pub(crate) mod pull;
pub(crate) mod quantize;
pub(crate) mod reply;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod sampling;
pub(crate) mod serve;
pub(crate) mod show;
pub(crate) mod stop;
pub(crate) mod verify;
