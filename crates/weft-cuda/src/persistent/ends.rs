//! How launches of the persistent kernel end: by themselves, because the host stops them, or because
//! a block timed out.
//!
//! Other work that is launched after one runs when it has ended, so the host need not wait for that.
//! It looks at how a launch ended when results of later work are there.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

use weft_core::plan::Op;

use super::{Mailbox, NOBODY, PATIENCE, Persistent};
use crate::CudaDevice;
use crate::driver::Address;
use crate::error::CudaError;

/// What the host knows of the last launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastLaunch {
    /// It has ended.
    Ended,
    /// It runs, or nobody has seen yet that it ended.
    Runs,
    /// It was asked to end, and other work was launched after it.
    Passed,
}

/// Why a launch ended early.
pub(crate) enum Fault {
    /// A block timed out; the first one did so in this op of the plan.
    Stuck(usize),
    /// The driver failed.
    Driver(CudaError),
}

impl Fault {
    /// The op of a plan that failed, and why.
    pub(crate) fn in_plan(self, plan: &[Op]) -> (Op, CudaError) {
        match self {
            Self::Driver(error) => (plan[0], error),
            Self::Stuck(op) => (
                plan[op],
                CudaError::Driver {
                    call: "the persistent kernel",
                    reason: format!(
                        "a block waited {} s for another block's results",
                        PATIENCE.as_secs()
                    ),
                },
            ),
        }
    }
}

impl From<CudaError> for Fault {
    fn from(error: CudaError) -> Self {
        Self::Driver(error)
    }
}

impl Persistent {
    /// Launches take turns with two mailboxes: one that was requested to stop may still read its own
    /// when the next begins.
    pub(super) fn take_mailbox(&mut self) -> Address {
        self.turn ^= 1;
        self.stop_word().store(0, Ordering::Relaxed);
        self.mailboxes.address().offset(self.turn * size_of::<Mailbox>())
    }

    fn stop_word(&self) -> &AtomicU32 {
        self.word(self.turn, offset_of!(Mailbox, stop))
    }

    fn word(&self, turn: usize, offset: usize) -> &AtomicU32 {
        self.mailboxes.shared_word((turn * size_of::<Mailbox>() + offset) / 4)
    }

    /// Ends a launch after its current token.
    pub(crate) fn stop(&self) {
        self.stop_word().store(1, Ordering::Relaxed);
    }

    /// Whether the last launch may still publish tokens, and no other work was launched after it.
    pub(crate) fn is_running(&self) -> bool {
        self.last == LastLaunch::Runs
    }

    /// Whether a launch was requested to stop; it may already have ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_running() && self.stop_word().load(Ordering::Relaxed) != 0
    }

    /// Whether a block timed out in a launch that has ended.
    fn check_fault(&self) -> Result<(), Fault> {
        let fault = |turn| self.word(turn, offset_of!(Mailbox, fault)).swap(0, Ordering::Relaxed);
        if [0, 1].map(fault) == [0; 2] {
            return Ok(());
        }
        let mut op = [0_u32];
        self.given_up.read(0, &mut op)?;
        self.given_up.write(0, &[NOBODY])?;
        Err(Fault::Stuck(op[0] as usize))
    }
}

/// Waits for the end of a launch, if there is one, and checks whether a block timed out.
pub(crate) fn finish(device: &mut CudaDevice) -> Result<(), Fault> {
    let is_over = |kernel: &Persistent| kernel.last == LastLaunch::Ended;
    let Some(persistent) = device.persistent.as_mut().filter(|kernel| !is_over(kernel)) else {
        return Ok(());
    };
    device.gpu.synchronize()?;
    persistent.last = LastLaunch::Ended;
    persistent.check_fault()
}

/// Called before work is launched after a launch that was requested to stop. The GPU keeps the
/// order, so nobody waits here unless an earlier call has failed.
pub(crate) fn make_way(device: &mut CudaDevice, for_kernel: bool) -> Result<(), Fault> {
    let Some(persistent) = &mut device.persistent else { return Ok(()) };
    match persistent.last {
        LastLaunch::Runs if !for_kernel => persistent.last = LastLaunch::Passed,
        LastLaunch::Passed if for_kernel => return finish(device),
        _ => {}
    }
    Ok(())
}

/// Called when results of the latest work are there. A launch before it has ended.
pub(crate) fn finish_passed(device: &mut CudaDevice) -> Result<(), Fault> {
    match &mut device.persistent {
        Some(persistent) if persistent.last == LastLaunch::Passed => {
            persistent.last = LastLaunch::Ended;
            persistent.check_fault()
        }
        _ => Ok(()),
    }
}
