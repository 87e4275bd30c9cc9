//! weft answers prompts with a language model on this machine's GPU or CPU, and remembers the
//! documents that it has read.
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
//! [`open`] takes a folder, or a name on the Hugging Face hub. [`Llm`] is what it returns: it
//! [`ask`](Llm::ask)s, [`stream`](Llm::stream)s, [`chat`](Llm::chat)s, and answers
//! [several questions at once](Llm::ask_all). [`Options`] sets the device, the context and where
//! rows are kept. A document that was read is not computed again: questions about it start with the
//! rows that are kept.
//!
//! Programs that need more (their own sampling, lanes, chunks on disk) find the engine below in
//! [`weft_core`], by way of [`Llm::into_parts`].
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
pub mod self_test;

pub use weft_core;
pub use weft_core::chunk::{Repair, Report, Reuse};
pub use weft_core::engine::{FinishReason, Stats};

pub use self::answer::{Answer, Stream};
#[cfg(feature = "bundled")]
pub use self::bundled::bundled_model;
pub use self::chat::Chat;
pub use self::device::DeviceChoice;
pub use self::error::Error;
pub use self::llm::Llm;
pub use self::open::Options;
pub use self::progress::{Event, Progress, Silent};
pub use self::question::{Document, Question};

/// Opens a model: a folder, or a name on the Hugging Face hub, downloaded if it is not in the hub's
/// cache. [`Options`] has the settings.
///
/// # Errors
/// See [`Error`].
pub fn open(name: &str) -> Result<Llm, Error> {
    Options::new().open(name)
}

/// Opens the bundled model. It is small, and answers only questions about documents that it is given.
///
/// # Errors
/// See [`Error`].
#[cfg(feature = "bundled")]
pub fn open_bundled() -> Result<Llm, Error> {
    Options::new().load(bundled_model()?)
}
