//! The core of weft: LLM inference for one user on one machine.
//!
//! This crate contains everything that does not depend on the hardware: configuration and weights,
//! tokens and templates, the [plan](plan::plan) (the model as a list of ops), the
//! [`Device`](device::Device) trait, the reference device that defines every op, sampling, and the
//! [`Engine`](engine::Engine). It uses neither GPUs nor sockets, and prints nothing. Most programs
//! use the crate `weft`, which opens a model in one call.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod cache;
pub mod chunk;
pub mod compare;
pub mod config;
pub mod device;
pub mod dtype;
pub mod engine;
pub mod export;
mod expressions;
pub mod files;
pub mod hub;
pub mod kv;
pub mod model;
pub mod plan;
pub mod prompt;
pub mod reasoning;
pub mod reference;
pub mod retrieval;
pub mod rope;
pub mod routing;
pub mod sampling;
pub mod shapes;
pub mod store;
pub mod tokenizer;
pub mod weights;
