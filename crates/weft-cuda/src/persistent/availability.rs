//! Decides whether there is a persistent kernel, when it takes over, and whether a step runs in it.
//!
//! If the kernel is chosen by speed (`Launches::Auto`), a device does not wait for its compilers.
//! Steps run as graphs; the compilers begin after the first step, on other threads; and between two
//! steps the kernel takes over, once it is compiled and has passed its test (`choice.rs`). Both
//! ways give the same bits. If the cache has the kernels, they take over before the first step.

use weft_core::config::Config;
use weft_core::plan::Op;

use super::choice::{self, Choice};
use super::shared_memory::SharedMemory;
use super::{Parts, Persistent};
use crate::error::CudaError;
use crate::modules::{Modules, WholePlans, plan_for};
use crate::shape::Shape;
use crate::tables::{Family, Lists};
use crate::{CudaDevice, Launches};

/// The compilers of a kernel that is chosen by speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Coming {
    /// The kernel is here, or never comes.
    #[default]
    Settled,
    /// They wait for the first step.
    Later,
    /// They run.
    Soon,
}

/// Whether the kernels are compiled: only if they are requested and can be compiled.
pub(crate) fn is_compiled(config: &Config, shape: &Shape, launches: Launches) -> bool {
    let is_asked = matches!(launches, Launches::Auto | Launches::Persistent);
    is_asked && refusal(config, shape).is_none()
}

fn refusal(config: &Config, shape: &Shape) -> Option<String> {
    if shape.experts.as_ref().is_some_and(|own| own.on_host) {
        return Some("the model's experts lie in main memory".to_owned());
    }
    let shared = SharedMemory::new(config, shape, shape.chip.shared_bytes);
    let too_few = shape.chip.n_sms < config.kv_heads;
    shared.refusal().or_else(|| too_few.then(|| "fewer multiprocessors than KV heads".to_owned()))
}

/// The kernel's memory if it is requested, or the reason why `Auto` does not use it. If it must be
/// used, waits until it is compiled.
pub(crate) fn make(
    parts: &Parts<'_>,
    modules: &Modules,
    plan: &[Op],
    launches: Launches,
) -> Result<(Option<Persistent>, Choice), CudaError> {
    match (refusal(parts.config, parts.shape), launches) {
        (_, Launches::Graph | Launches::Ops) => Ok((None, Choice::default())),
        (Some(reason), Launches::Auto) => Ok((None, Choice::refuse(reason))),
        (None, Launches::Auto) => Ok((Some(Persistent::new(parts, plan)?), Choice::default())),
        (Some(reason), Launches::Persistent) => Err(CudaError::Unsupported(reason)),
        (None, Launches::Persistent) => {
            let mut persistent = Persistent::new(parts, plan)?;
            let taken = persistent.take(&modules.whole_plans(), parts.config, parts.shape)?;
            taken.map_err(CudaError::Unsupported)?;
            Ok((Some(persistent), Choice::default()))
        }
    }
}

impl Persistent {
    /// Takes the kernels, which are loaded here; returns the reason if the GPU cannot run them.
    fn take(
        &mut self,
        kernels: &WholePlans,
        config: &Config,
        shape: &Shape,
    ) -> Result<Result<(), String>, CudaError> {
        let own_bytes = kernels.static_shared_bytes()?;
        let free_bytes = shape.chip.shared_bytes.saturating_sub(own_bytes);
        let shared = SharedMemory::new(config, shape, free_bytes);
        if let Some(reason) = shared.refusal() {
            return Ok(Err(reason));
        }
        let kernels = kernels.with_shared(shared.dynamic_bytes);
        kernels.ready()?;
        self.kernels = Some((kernels, shared));
        Ok(Ok(()))
    }
}

impl CudaDevice {
    /// Whether ops on the lists run in the persistent kernel.
    pub(crate) fn is_persistent(&self, ops: &[Op], family: Family) -> bool {
        let wanted = match self.launches {
            Launches::Auto => {
                let Lists { counts, .. } = &self.lists;
                let plan = plan_for(counts, self.lists.most_queries());
                plan.is_some_and(|plan| self.choice.is_persistent(counts, plan))
            }
            launches => launches == Launches::Persistent,
        };
        let takes = |kernel: &Persistent| kernel.takes(&self.lists);
        wanted
            && family == Family::Few
            && self.plan.starts_with(ops)
            && self.persistent.as_ref().is_some_and(takes)
    }

    /// Called once, when the device is complete: takes kernels that the cache has.
    pub(crate) fn expect_persistent(&mut self) {
        if self.launches == Launches::Auto && self.persistent.is_some() {
            self.coming = Coming::Later;
            if self.modules.look_up_persistent() {
                self.take_over();
            }
        }
    }

    /// Called before a step of the whole plan: the kernel takes over if it has been compiled since
    /// the last one.
    pub(crate) fn before_step(&mut self, ops: &[Op]) {
        if self.coming == Coming::Settled || ops != self.plan {
            return;
        }
        if self.delay > 0 {
            self.delay -= 1;
        } else if self.coming == Coming::Soon && self.modules.has_persistent() {
            self.take_over();
        }
    }

    /// Takes the kernel away, as if it were being compiled, until some steps of the whole plan have
    /// run. Then it takes over again, with the times that are on disk or with new ones. For tests.
    pub fn delay_persistent(&mut self, n_steps: usize, measures: bool) {
        self.await_persistent();
        let Some(persistent) = &mut self.persistent else { return };
        persistent.kernels = None;
        self.choice = Choice::default();
        (self.coming, self.delay) = (Coming::Soon, n_steps);
        if measures {
            choice::forget(self);
        }
    }

    /// Called after a step. The first one is no longer delayed by compilers that begin now.
    pub(crate) fn after_step(&mut self) {
        self.has_rows = true;
        if self.coming == Coming::Later {
            self.modules.begin_persistent();
            self.coming = Coming::Soon;
        }
    }

    /// Waits until the persistent kernel has taken over, if it is to come. A step that is in flight
    /// is forgotten.
    pub(crate) fn await_persistent(&mut self) {
        if self.coming == Coming::Settled {
            return;
        }
        if self.coming == Coming::Later {
            self.modules.begin_persistent();
        }
        self.gpu.bind();
        // Loading the kernels waits for their compilers.
        self.take_over();
    }

    /// Loads and tests the kernels. If that fails, steps go on as graphs, and the reason is kept.
    fn take_over(&mut self) {
        self.coming = Coming::Settled;
        self.in_flight.forget();
        self.logits.forget();
        let Some(persistent) = &mut self.persistent else { return };
        let kernels = self.modules.whole_plans();
        self.choice = match persistent.take(&kernels, &self.config, &self.shape) {
            Ok(Ok(())) => choice::decide(self),
            Ok(Err(reason)) => Choice::refuse(reason),
            Err(error) => Choice::refuse(error.to_string()),
        };
        self.in_flight.forget();
        self.logits.forget();
    }

    /// Changes how ops are launched. The persistent kernel is available only if the device was
    /// created with it.
    pub fn use_launches(&mut self, launches: Launches) -> Result<(), CudaError> {
        if launches == Launches::Persistent && self.persistent.is_none() {
            return Err(CudaError::Unsupported(
                "the device was not created with the persistent kernel".into(),
            ));
        }
        if launches == Launches::Persistent {
            self.await_persistent();
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
