//! Decides whether there is a persistent kernel and whether a step runs in it.

use weft_core::config::Config;
use weft_core::plan::Op;

use super::choice::Choice;
use super::shared_memory::SharedMemory;
use super::{Parts, Persistent};
use crate::error::CudaError;
use crate::kernels::{Kernels, plan_for};
use crate::shape::Shape;
use crate::tables::{Family, Lists};
use crate::{CudaDevice, Launches};

/// Whether the kernels are compiled: only if they are requested and can be compiled.
pub(crate) fn is_compiled(config: &Config, shape: &Shape, launches: Launches) -> bool {
    let is_asked = matches!(launches, Launches::Auto | Launches::Persistent);
    is_asked && SharedMemory::new(config, shape, shape.chip.shared_bytes).refusal().is_none()
}

/// The kernel if it is requested, or the reason why `Auto` does not use it.
pub(crate) fn make(
    parts: &Parts<'_>,
    kernels: &Kernels,
    plan: &[Op],
    launches: Launches,
) -> Result<(Option<Persistent>, Choice), CudaError> {
    if matches!(launches, Launches::Graph | Launches::Ops) {
        return Ok((None, Choice::default()));
    }
    let made = match SharedMemory::new(parts.config, parts.shape, parts.shape.chip.shared_bytes)
        .refusal()
    {
        None => Persistent::new(parts, kernels.persistent()?, plan)?,
        Some(reason) => Err(reason),
    };
    match (made, launches) {
        (Ok(persistent), _) => Ok((Some(persistent), Choice::default())),
        (Err(reason), Launches::Auto) => Ok((None, Choice::refuse(reason))),
        (Err(reason), _) => Err(CudaError::Unsupported(reason)),
    }
}

impl CudaDevice {
    /// Whether ops on the lists run in the persistent kernel.
    pub(crate) fn is_persistent(&self, ops: &[Op], family: Family) -> bool {
        let wanted = match self.launches {
            Launches::Auto => {
                let Lists { counts, .. } = &self.lists;
                self.choice.is_persistent(counts, plan_for(counts, self.lists.most_queries()))
            }
            launches => launches == Launches::Persistent,
        };
        let takes = |kernel: &Persistent| kernel.takes(&self.lists);
        wanted
            && family == Family::Few
            && self.plan.starts_with(ops)
            && self.persistent.as_ref().is_some_and(takes)
    }

    /// Changes how ops are launched. The persistent kernel is available only if the device was
    /// created with it.
    pub fn use_launches(&mut self, launches: Launches) -> Result<(), CudaError> {
        if launches == Launches::Persistent && self.persistent.is_none() {
            return Err(CudaError::Unsupported(
                "the device was not created with the persistent kernel".into(),
            ));
        }
        self.launches = launches;
        Ok(())
    }

    /// Makes the first block of a persistent kernel withhold the results of an op. For tests.
    pub fn withhold(&mut self, op: Option<usize>) {
        if let Some(persistent) = &mut self.persistent {
            persistent.withhold(op);
        }
    }
}
