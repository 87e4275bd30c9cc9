//! The CUDA device: weights packed for tensor cores, kernels for each op, for few tokens and for
//! blocks of them, and a token as one graph.
//!
//! It runs the plan that [`weft_core::plan`] makes and is compared with [`weft_core::reference`],
//! op by op. Kernels are compiled for its GPU and the model's shape: those of the first step before
//! it, others beside the first steps. Every output is one sum in one order, whatever the number of
//! tokens or lanes, and whichever family of kernels runs it. The device knows steps and spans, but
//! not where they come from.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod ahead;
mod bandwidth;
mod buffers;
mod compile;
mod compile_jobs;
mod constants;
mod device;
mod driver;
mod error;
mod expert_buffers;
mod expert_kernels;
mod experts;
mod graphs;
mod host_experts;
mod in_flight;
mod kernels;
mod kv;
mod layouts;
mod logits;
mod matrices;
mod modules;
mod need;
mod ops;
mod options;
mod pack;
mod persistent;
mod process_end;
mod replay;
mod rows;
mod sampling;
mod shape;
mod start_parts;
mod states;
mod step_launch;
mod tables;
mod test_record;
mod units;
mod weights;

pub use ahead::compile_ahead;
pub use bandwidth::read_bandwidth;
pub use compile::{Compiled, Program, compile, cubin_name};
pub use device::CudaDevice;
pub use driver::GpuFacts;
pub use error::CudaError;
pub use kernels::{DECODE_KERNELS, ModuleSource, Stage, modules, sources};
pub use modules::WHOLE_PLANS;
pub use need::{need, need_without_experts, page_bytes};
pub use options::{Launches, Options};
pub use process_end::leave;
pub use shape::Chip;
pub use test_record::TestRecord;
pub use weights::packed_matrices;

/// The GPU that a device would use, if driver, compiler and GPU are all present.
pub fn probe() -> Result<GpuFacts, CudaError> {
    let gpu = driver::open(0)?;
    compile::version()?;
    Ok(gpu.facts.clone())
}
