//! Devices of one process take turns on a GPU.
//!
//! The blocks of `attend`, of draws among all ranks and of the persistent kernel wait for one
//! another, so all blocks of a launch must be resident. Two such launches that ran at the same time
//! could each have some of the multiprocessors, and wait until they give up. A device therefore
//! takes a turn before it launches a step: if another device launched last, the stream of this one
//! first waits for everything in the stream of the other. The host does not wait. A device that is
//! alone pays for a lock that nobody else wants.
//!
//! Launches of other processes need no turns: the driver runs one process at a time, unless a
//! server (MPS) shares the GPU among them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};

use super::{Gpu, failed};
use crate::error::CudaError;

/// Who launched last.
#[derive(Debug, Default)]
struct Last(Option<(u64, StreamHandle)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamHandle(sys::CUstream);

// SAFETY: streams may be used from any thread; a device leaves before it destroys its own.
unsafe impl Send for StreamHandle {}

impl Last {
    /// Device `id` launches now: the stream that it must wait for, if another launched last.
    fn take(&mut self, id: u64, stream: StreamHandle) -> Option<StreamHandle> {
        let before = self.0.replace((id, stream));
        before.filter(|(last, _)| *last != id).map(|(_, stream)| stream)
    }

    /// Device `id` is done with all that it launched.
    fn leave(&mut self, id: u64) {
        self.0.take_if(|(last, _)| *last == id);
    }
}

/// The turns of one GPU. Each device that uses it has its own number.
pub(super) struct Turns {
    id: u64,
    last: Arc<Mutex<Last>>,
}

/// GPUs by their numbers, and how many devices there have been.
type Known = (Vec<(sys::CUdevice, Arc<Mutex<Last>>)>, u64);
static KNOWN: Mutex<Known> = Mutex::new((Vec::new(), 0));

impl Turns {
    /// Of a new device on a GPU.
    pub(super) fn of(gpu: sys::CUdevice) -> Self {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.1 += 1;
        let id = known.1;
        if let Some((_, last)) = known.0.iter().find(|(of, _)| *of == gpu) {
            return Self { id, last: Arc::clone(last) };
        }
        let last = Arc::new(Mutex::new(Last::default()));
        known.0.push((gpu, Arc::clone(&last)));
        Self { id, last }
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called before the device's stream is destroyed.
    pub(super) fn leave(&self) {
        self.lock().leave(self.id);
    }
}

/// While it lives, no other device launches a step on the GPU.
pub(crate) struct Turn<'a> {
    _last: MutexGuard<'a, Last>,
}

impl Gpu {
    /// Takes the device's turn. Steps are launched and recorded only in one: no other thread can
    /// then use a stream that is being recorded.
    pub(crate) fn turn(&self) -> Result<Turn<'_>, CudaError> {
        let mut last = self.turns.lock();
        if let Some(other) = last.take(self.turns.id, StreamHandle(self.stream)) {
            self.wait_for(other).inspect_err(|_| last.0 = None)?;
        }
        Ok(Turn { _last: last })
    }

    /// Makes this device's stream wait for all that is in another now.
    fn wait_for(&self, other: StreamHandle) -> Result<(), CudaError> {
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;
        let wait = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        let failed = || failed("taking turns on the GPU");
        self.bind();
        let event = result::event::create(flags).map_err(failed())?;
        // SAFETY: the other stream lives until its device leaves, which needs the lock that the
        // caller holds. The event is ours; the driver keeps it until nothing waits for it.
        unsafe {
            let waits = result::event::record(event, other.0)
                .and_then(|()| result::stream::wait_event(self.stream, event, wait));
            let _ = result::event::destroy(event);
            waits.map_err(failed())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(n: usize) -> StreamHandle {
        StreamHandle(std::ptr::without_provenance_mut(n))
    }

    #[test]
    fn a_device_waits_for_another_that_launched_last() {
        let mut last = Last::default();
        assert_eq!(last.take(1, stream(1)), None, "nobody before");
        assert_eq!(last.take(1, stream(1)), None, "its own work is in order");
        assert_eq!(last.take(2, stream(2)), Some(stream(1)));
        assert_eq!(last.take(2, stream(2)), None, "it has waited");
        assert_eq!(last.take(1, stream(1)), Some(stream(2)));
        // The third waits for the first, which waits for the second.
        assert_eq!(last.take(3, stream(3)), Some(stream(1)));
    }

    #[test]
    fn nobody_waits_for_a_device_that_has_left() {
        let mut last = Last::default();
        last.take(1, stream(1));
        last.take(2, stream(2));
        last.leave(1);
        assert_eq!(last.take(3, stream(3)), Some(stream(2)), "the second is still there");
        last.leave(3);
        assert_eq!(last.take(2, stream(2)), None, "the third ended after the second");
    }

    #[test]
    fn devices_of_a_gpu_share_their_turns_and_others_do_not() {
        let of = |gpu| Turns::of(gpu);
        let (first, second, other) = (of(901), of(901), of(902));
        assert!(Arc::ptr_eq(&first.last, &second.last) && !Arc::ptr_eq(&first.last, &other.last));
        assert_ne!(first.id, second.id);
        // While one launches, the other waits.
        let held = first.lock();
        assert!(second.last.try_lock().is_err() && other.last.try_lock().is_ok());
        drop(held);
        assert!(second.last.try_lock().is_ok());
    }
}
