//! The remote tier: KV rows and registered chunks in an object store that several machines share.
//!
//! The object store is the distributed system: this crate adds no protocol and elects no leader.
//! Objects are immutable and named by content; readers find rows by a manifest, which is written
//! last. Rows that arrive are checked against the manifest, the key and, if there is a signing key,
//! the signature. A failing or lying store is a counted miss, never an error of a request
//! (docs/store.md).
//!
//! The crate knows no device, and only the trait `RemoteTier` of the engine: rows are bytes, as in
//! `weft_core::store`.

#![forbid(unsafe_code)]

mod absent;
mod breaker;
mod gc;
mod get;
mod http;
mod limits;
mod list;
mod manifest;
mod miss;
mod names;
mod put;
mod seal;
mod service;
mod shelf;
mod url;
mod warnings;

pub use gc::{Sweep, Swept};
pub use limits::Limits;
pub use miss::Miss;
pub use put::Written;
pub use seal::Trust;
pub use service::Remote;
pub use shelf::{Label, Labels, Pulled};
pub use url::RemoteError;
pub use weft_core::engine::{BreakerState, Latency, RemoteStats};
