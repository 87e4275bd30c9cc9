//! Experts that lie in main memory: rows of the residual stream and the choice of experts go to the
//! host, which computes the experts, and the rows come back.
//!
//! The host must know the choice before it can begin, and the next op needs the result, so both
//! processors take turns. Ops are launched one by one, because a recorded graph does not wait for the
//! host.

use std::cell::RefCell;
use std::sync::Arc;

use half::bf16;
use half::slice::HalfBitsSliceExt;
use weft_core::config::Config;
use weft_core::device::{HostExperts, Limits};
use weft_core::plan::Op;
use weft_core::routing::Route;

use crate::CudaDevice;
use crate::driver::{Gpu, Pinned, Stream};
use crate::error::CudaError;
use crate::expert_buffers::ROUTE_BYTES;
use crate::ops::Pass;
use crate::shape::{Shape, padded};

/// The experts, and pinned memory for a step.
pub(crate) struct OnHost(RefCell<Own>);

struct Own {
    experts: Box<dyn HostExperts>,
    /// bf16 \[tokens\]\[hidden, padded\]
    x: Pinned,
    /// As kernels store them.
    stored: Pinned,
    routes: Vec<Route>,
}

impl OnHost {
    /// None if there are none on the host.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        config: &Config,
        limits: &Limits,
        experts: Option<Box<dyn HostExperts>>,
    ) -> Result<Option<Self>, CudaError> {
        let Some(experts) = experts else { return Ok(None) };
        let n_routes = config.experts.as_ref().map_or(0, |e| e.chosen) * limits.step_tokens;
        Ok(Some(Self(RefCell::new(Own {
            experts,
            x: Pinned::new(gpu, limits.step_tokens * padded(config.hidden) * size_of::<bf16>())?,
            stored: Pinned::new(gpu, n_routes * ROUTE_BYTES)?,
            routes: Vec::with_capacity(n_routes),
        }))))
    }

    /// Where experts are computed, for users.
    pub(crate) fn describe(&self) -> String {
        self.0.borrow().experts.describe()
    }

    /// What determines the bits of their results.
    pub(crate) fn family(&self) -> String {
        self.0.borrow().experts.family()
    }

    /// Runs an op of experts. Both of a layer are one here, so they must follow one another; the
    /// second then has nothing to do.
    pub(crate) fn run(&self, pass: &Pass<'_>, ops: &[Op], i: usize) -> Result<(), CudaError> {
        let before = i.checked_sub(1).map(|i| ops[i]);
        match (ops[i], ops.get(i + 1).copied()) {
            (Op::ExpertGateUp { layer }, Some(Op::ExpertDownAdd { layer: next }))
                if layer == next =>
            {
                self.add(pass, layer)
            }
            (Op::ExpertDownAdd { layer }, _) if before == Some(Op::ExpertGateUp { layer }) => {
                Ok(())
            }
            _ => Err(CudaError::Unsupported(
                "experts in main memory run both of their ops at once, and no op alone".to_owned(),
            )),
        }
    }

    fn add(&self, pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
        let CudaDevice { gpu, buffers, config, .. } = pass.device;
        let Own { experts, x, stored, routes } = &mut *self.0.borrow_mut();
        let of_model = config.experts.as_ref().expect("the plan is that of a model with experts");
        let (n_tokens, stride) = (pass.counts.n_tokens, buffers.x.stride());
        let (n_routes, bytes) = (n_tokens * of_model.chosen, n_tokens * stride * size_of::<bf16>());
        let chosen = buffers.experts().stored_routes();
        gpu.download(Stream::Compute, (x, 0), (buffers.x.memory(), 0), bytes)?;
        gpu.download(Stream::Compute, (stored, 0), (chosen, 0), n_routes * ROUTE_BYTES)?;
        gpu.synchronize()?;
        routes.clear();
        routes.extend(stored.bytes().chunks_exact(ROUTE_BYTES).take(n_routes).map(|bytes| {
            let word = |at: usize| [0, 1, 2, 3].map(|i| bytes[at + i]);
            Route { expert: u32::from_ne_bytes(word(0)), weight: f32::from_ne_bytes(word(4)) }
        }));
        if let Some(wrong) = routes.iter().find(|route| route.expert as usize >= of_model.count) {
            return Err(CudaError::Driver {
                call: "choosing experts",
                reason: format!("the GPU chose expert {} of {}", wrong.expert, of_model.count),
            });
        }
        let rows: &mut [bf16] = x.halves().reinterpret_cast_mut();
        experts.add(layer, &mut rows[..n_tokens * stride], stride, routes);
        gpu.upload(Stream::Compute, buffers.x.memory(), x, bytes)
    }
}

impl Shape {
    /// The same if a model's experts lie in main memory, or if they do not.
    pub(crate) fn with_experts_on_host(mut self, on_host: bool) -> Self {
        self.experts.iter_mut().for_each(|experts| experts.on_host = on_host);
        self
    }
}
