//! weft: LLM inference for one user on one machine.
//!
//! The library owns everything that is true of a model whatever runs it: its configuration and
//! weights, its tokens and templates, the [plan](plan::plan) (the list of ops that *is* the model),
//! the [`Device`](device::Device) trait, the reference device that defines every op, sampling, and
//! the [`Engine`](engine::Engine). It knows neither GPUs nor sockets and prints nothing.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod cache;
pub mod chunk;
pub mod config;
pub mod device;
pub mod dtype;
pub mod engine;
mod files;
pub mod hub;
pub mod kv;
pub mod model;
pub mod plan;
pub mod prompt;
pub mod reasoning;
pub mod reference;
pub mod rope;
pub mod sampling;
pub mod shapes;
pub mod store;
pub mod tokenizer;
pub mod weights;
