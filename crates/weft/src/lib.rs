//! weft runs a language model on this machine's GPU or CPU. It reads each document once: later
//! questions reuse what it computed.
//!
//! ```
//! # fn main() -> Result<(), weft::Error> {
//! let mut llm = weft::open_bundled()?; // or weft::open("Qwen/Qwen3-0.6B")?
//! let document = llm.document("Piranul has 49 bridges. The flag of Piranul shows a cat.")?;
//! let question = weft::Question::new("How many bridges does Piranul have?")
//!     .system("Answer in one word.")
//!     .document(&document);
//! assert_eq!(llm.ask(question)?.text, "49");
//! # Ok(())
//! # }
//! ```
//!
//! [`open`] takes a folder, a GGUF file or a name on the Hugging Face hub
//! (`org/name[:TAG][@revision]`), and returns an [`Llm`].
//! Its methods are [`ask`](Llm::ask), [`stream`](Llm::stream), [`chat`](Llm::chat), and
//! [`ask_all`](Llm::ask_all) for several questions at once; [`embed`](Llm::embed) and
//! [`rerank`](Llm::rerank) are for search. [`Options`] sets the device, the length of the context,
//! and the memory and the folder for KV rows.
//!
//! A KV row holds the keys and values of one token. weft computes the rows of a document with the
//! first question about it, and keeps them in memory. [`Options::disk_cache`] and [`Llm::save`]
//! keep them for later processes too.
//!
//! Build with `--release`: without optimisation the CPU device is very slow. The default features
//! are `cpu`, `cuda`, `hub` (downloads) and `bundled` (the demo model). The folder `examples` has
//! four short programs.
//!
//! [`Llm::into_parts`] gives access to the engine in [`weft_core`], for programs that need custom
//! sampling, their own scheduling of lanes, or chunks on disk.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod answer;
#[cfg(feature = "bundled")]
mod bundled;
mod chat;
pub mod device;
mod error;
mod llm;
pub mod memory;
mod open;
mod progress;
#[cfg(feature = "hub")]
pub mod pull;
mod question;
mod retrieval;
pub mod self_test;

pub use weft_core;
pub use weft_core::chunk::{Repair, Report, Reuse};
pub use weft_core::engine::{FinishReason, Speculate, Stats};
pub use weft_core::retrieval::embedding;
pub use weft_core::store::StoredRows;

pub use self::answer::{Answer, Stream};
#[cfg(feature = "bundled")]
pub use self::bundled::bundled_model;
pub use self::chat::Chat;
#[doc(inline)]
pub use self::device::{DeviceChoice, ExpertsPlace};
pub use self::error::Error;
pub use self::llm::Llm;
pub use self::open::Options;
pub use self::progress::{Event, Progress};
pub use self::question::{Document, Question};

/// Opens a model: a folder, a GGUF file, or a name on the Hugging Face hub. A model that is not in
/// the hub's cache is downloaded. Use [`Options`] to change the defaults.
///
/// # Errors
/// See [`Error`].
pub fn open(name: &str) -> Result<Llm, Error> {
    Options::new().open(name)
}

/// Opens the bundled model. It is small, and answers only questions about documents in its prompt.
///
/// # Errors
/// See [`Error`].
#[cfg(feature = "bundled")]
pub fn open_bundled() -> Result<Llm, Error> {
    Options::new().load(bundled_model()?)
}
