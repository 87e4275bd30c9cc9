//! The device's calls that run the persistent kernel.

use std::ops::ControlFlow;

use weft::config::Config;
use weft::device::{DeviceError, Step};
use weft::plan::Op;

use super::choice::Choice;
use super::split::Split;
use super::{Fault, Parts, Persistent, Run, finish, follow, launch};
use crate::error::CudaError;
use crate::kernels::Kernels;
use crate::shape::Shape;
use crate::tables::{Family, rows_ahead};
use crate::{CudaDevice, Launches};

/// Whether the kernels are compiled: where somebody asks for them, and they can be.
pub(crate) fn is_compiled(config: &Config, shape: &Shape, launches: Launches) -> bool {
    let is_asked = matches!(launches, Launches::Auto | Launches::Persistent);
    is_asked && Split::new(config, shape, 0).holds_norms()
}

/// The kernel where it is asked for, or why `Auto` goes without.
pub(crate) fn make(
    parts: &Parts<'_>,
    kernels: &Kernels,
    plan: &[Op],
    launches: Launches,
) -> Result<(Option<Persistent>, Choice), CudaError> {
    if matches!(launches, Launches::Graph | Launches::Ops) {
        return Ok((None, Choice::default()));
    }
    let made = match is_compiled(parts.config, parts.shape, launches) {
        true => Persistent::new(parts, kernels.persistent()?, plan)?,
        false => Err("the model's rows are too wide for its ring".to_owned()),
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
            Launches::Auto => self.choice.is_persistent(&self.lists.counts),
            launches => launches == Launches::Persistent,
        };
        let takes = |kernel: &Persistent| kernel.takes(&self.lists);
        wanted
            && family == Family::Few
            && self.plan.starts_with(ops)
            && self.persistent.as_ref().is_some_and(takes)
    }

    pub(crate) fn launch_persistent(
        &mut self,
        n_ops: usize,
        bytes: usize,
    ) -> Result<(), (Op, CudaError)> {
        let run = Run { n_ops, n_steps: 1 };
        let launched = self.few.upload(&self.gpu, bytes);
        let launched = launched.and_then(|()| launch(self, run, false));
        let ended = launched.map_err(Fault::from).and_then(|_| finish(self));
        ended.map_err(|fault| fault.in_plan(&self.plan))
    }

    /// Runs a step of one token a lane and, on the GPU, up to `n - 1` steps that follow it, each with the
    /// best logit of the one before; `on_tokens` is handed the tokens of each, and may end it. How many
    /// steps were run and handed out.
    pub fn decode_greedy(
        &mut self,
        step: &Step<'_>,
        n: usize,
        on_tokens: &mut dyn FnMut(&[u32]) -> ControlFlow<()>,
    ) -> Result<usize, DeviceError> {
        step.check(&self.config, &self.limits);
        self.gpu.bind();
        let n = n.min(rows_ahead(step, &self.limits)).min(super::MOST_STEPS);
        assert!(n > 0, "a step that cannot be followed");
        self.in_flight.forget();
        self.lists.fill(step, self.config.group(), n - 1);
        self.logits.forget();
        let takes = self.persistent.as_ref().is_some_and(|kernel| kernel.takes(&self.lists));
        assert!(takes, "a step that the persistent kernel does not take");
        let run = Run { n_ops: self.plan.len(), n_steps: n };
        let bytes = self.few.write(step, &self.lists);
        let ordered = self.mover.order_step(step);
        let launched = ordered.and_then(|()| self.few.upload(&self.gpu, bytes));
        let launched = launched.and_then(|()| launch(self, run, true));
        let followed = launched
            .map_err(Fault::from)
            .and_then(|number| follow(self, run, number, step.lanes.len(), on_tokens));
        followed.map_err(|fault| self.device_error(fault.in_plan(&self.plan)))
    }

    /// From now on launches ops in another way; persistently only where the device was made for it.
    pub fn use_launches(&mut self, launches: Launches) -> Result<(), CudaError> {
        if launches == Launches::Persistent && self.persistent.is_none() {
            return Err(CudaError::Unsupported("it was not made for the persistent kernel".into()));
        }
        self.launches = launches;
        Ok(())
    }

    /// The first block of a persistent kernel keeps the results of an op to itself. For tests.
    pub fn withhold(&mut self, op: Option<usize>) {
        if let Some(persistent) = &mut self.persistent {
            persistent.withhold(op);
        }
    }
}
