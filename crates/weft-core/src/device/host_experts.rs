//! Experts in main memory, for a device that has no room for them: the border between both.
//!
//! The device runs everything else, the choice of experts included, and hands the rows of the
//! residual stream over in every sparse layer. It knows nothing of how the experts are computed.

use half::bf16;

use crate::routing::Route;

/// The experts of a model, in main memory.
pub trait HostExperts: Send {
    /// Where they are computed, for users: `CPU (avx512-bf16, 16 threads)`.
    fn describe(&self) -> String;

    /// Everything that determines the bits of a result besides model, rows and routes; see
    /// [`Device::kv_family`](super::Device::kv_family).
    fn family(&self) -> String;

    /// Runs [`Op::ExpertGateUp`](crate::plan::Op::ExpertGateUp) and
    /// [`Op::ExpertDownAdd`](crate::plan::Op::ExpertDownAdd) of a layer on some tokens.
    ///
    /// `x` has a row of `stride` numbers for each token, of which the first `hidden` are used, and
    /// `routes` the chosen experts of each token. A token's result has the same bits alone and
    /// beside others.
    ///
    /// # Panics
    /// If there are more tokens than the experts were made for, or if the layer has no experts.
    fn add(&mut self, layer: u16, x: &mut [bf16], stride: usize, routes: &[Route]);
}
