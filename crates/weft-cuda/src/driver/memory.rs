//! GPU memory, pinned host memory that the GPU can access, and events in streams.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use cudarc::driver::result;
use cudarc::driver::sys;

use super::{Gpu, Stream, failed};
use crate::error::CudaError;

impl Gpu {
    /// Sets a range of memory to zero, in the stream.
    pub(crate) fn clear(&self, memory: &Memory, range: Range<usize>) -> Result<(), CudaError> {
        self.fill(memory, range, 0)
    }

    /// Sets every byte of a range, in the stream.
    pub(crate) fn fill(
        &self,
        memory: &Memory,
        range: Range<usize>,
        byte: u8,
    ) -> Result<(), CudaError> {
        let at = memory.place(range.start, range.len());
        // SAFETY: the range was checked.
        unsafe { result::memset_d8_async(at, byte, range.len(), self.stream) }
            .map_err(failed("filling memory"))
    }

    /// Copies the first bytes of pinned memory to the start of the GPU's, in a stream.
    pub(crate) fn upload(
        &self,
        stream: Stream,
        to: &Memory,
        from: &Pinned,
        bytes: usize,
    ) -> Result<(), CudaError> {
        self.upload_part(stream, (to, 0), (from, 0), bytes)
    }

    /// Copies bytes of pinned memory to the GPU's, each from an offset on, in a stream.
    pub(crate) fn upload_part(
        &self,
        stream: Stream,
        (to, at): (&Memory, usize),
        (from, start): (&Pinned, usize),
        bytes: usize,
    ) -> Result<(), CudaError> {
        let (to, from) = (to.place(at, bytes), from.part(start, bytes));
        // SAFETY: both ranges were checked; the source outlives the stream's work, because runs end
        // with `synchronize` and copies are waited for.
        unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.handle(stream))
                .result()
                .map_err(failed("copying to the GPU"))
        }
    }

    /// Copies bytes of the GPU's memory to pinned memory, each from an offset on, in a stream.
    pub(crate) fn download(
        &self,
        stream: Stream,
        (to, at): (&Pinned, usize),
        (from, start): (&Memory, usize),
        bytes: usize,
    ) -> Result<(), CudaError> {
        let (to, from) = (to.part(at, bytes), from.place(start, bytes));
        // SAFETY: both ranges were checked; callers read the target only after they have waited.
        unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.handle(stream))
                .result()
                .map_err(failed("copying from the GPU"))
        }
    }

    /// Copies between places in the GPU's memory, in the stream of steps.
    pub(crate) fn copy(
        &self,
        to: &Memory,
        to_offset: usize,
        from: &Memory,
        from_offset: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let (to, from) = (to.place(to_offset, bytes), from.place(from_offset, bytes));
        // SAFETY: both ranges were checked; freeing either waits for the copy.
        unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) }
            .result()
            .map_err(failed("copying on the GPU"))
    }

    /// Makes all later work of a stream wait for an event in another.
    pub(crate) fn order(&self, stream: Stream, after: &Done) -> Result<(), CudaError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: stream and event are ours.
        unsafe { result::stream::wait_event(self.handle(stream), after.event, flags) }
            .map_err(failed("ordering streams"))
    }
}

/// An address in the GPU's memory, as kernels take it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    pub(crate) const NULL: Self = Self(0);

    pub(crate) fn offset(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// Memory on the GPU, zeroed when it is allocated.
pub(crate) struct Memory {
    gpu: Arc<Gpu>,
    at: Address,
    pub(crate) bytes: usize,
}

impl Memory {
    pub(crate) fn new(gpu: &Arc<Gpu>, what: &'static str, bytes: usize) -> Result<Self, CudaError> {
        gpu.bind();
        // An empty buffer still has an address.
        let bytes = bytes.max(16).next_multiple_of(16);
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        // SAFETY: asks for memory; nothing is read before it is set.
        let at = unsafe { result::malloc_sync(bytes) }.map_err(|_| CudaError::Memory {
            what,
            wanted: mib(bytes),
            free: mib(gpu.free_bytes()),
        })?;
        gpu.taken.fetch_add(bytes as u64, Ordering::Relaxed);
        let memory = Self { gpu: gpu.clone(), at: Address(at), bytes };
        gpu.clear(&memory, 0..bytes)?;
        Ok(memory)
    }

    pub(crate) fn address(&self) -> Address {
        self.at
    }

    fn place(&self, offset: usize, bytes: usize) -> u64 {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "beyond a buffer on the GPU");
        self.at.0 + offset as u64
    }

    /// Writes values at a byte offset; returns when the copy is done.
    pub(crate) fn write<T: Copy>(&self, offset: usize, values: &[T]) -> Result<(), CudaError> {
        let to = self.place(offset, size_of_val(values));
        self.gpu.bind();
        // SAFETY: the range was checked; the copy is over before `values` can go.
        unsafe { result::memcpy_htod_async(to, values, self.gpu.stream) }
            .map_err(failed("copying to the GPU"))?;
        self.gpu.synchronize()
    }

    /// Reads values at a byte offset, after all steps are done.
    pub(crate) fn read<T: Copy>(&self, offset: usize, values: &mut [T]) -> Result<(), CudaError> {
        let from = self.place(offset, size_of_val(values));
        self.gpu.bind();
        // SAFETY: the range was checked; the copy is over before `values` can go. `T` is plain
        // numbers.
        unsafe { result::memcpy_dtoh_async(values, from, self.gpu.stream) }
            .map_err(failed("copying from the GPU"))?;
        self.gpu.synchronize()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.gpu.bind();
        self.gpu.taken.fetch_sub(self.bytes as u64, Ordering::Relaxed);
        // SAFETY: the memory is ours, and freeing waits for work that uses it.
        let _ = unsafe { result::free_sync(self.at.0) };
    }
}

/// Pinned host memory: the GPU copies from it, and kernels write to it directly.
pub(crate) struct Pinned {
    gpu: Arc<Gpu>,
    at: *mut c_void,
    bytes: usize,
    /// Whose it is.
    owner: Owner,
}

/// Who allocated pinned memory.
enum Owner {
    Driver,
    /// This process: a vector's start and capacity. The memory lies in it on huge pages.
    Process {
        start: *mut u8,
        capacity: usize,
        is_pinned: AtomicBool,
    },
}

// SAFETY: plain memory that only its owner reaches.
unsafe impl Send for Pinned {}
// SAFETY: who shares it reads, or writes whole words at once, or owns a part by agreement.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, CudaError> {
        gpu.bind();
        let bytes = bytes.max(16);
        // SAFETY: asks for memory, which is set before anything reads it.
        let at = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP) }
            .map_err(failed("taking pinned memory"))?;
        // SAFETY: the memory was just taken and is that long.
        unsafe { at.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { gpu: gpu.clone(), at, bytes, owner: Owner::Driver })
    }

    /// Memory that will be pinned ([`Pinned::pin`]). Until then only the host uses it.
    pub(crate) fn later(gpu: &Arc<Gpu>, bytes: usize) -> Self {
        let bytes = bytes.max(16).next_multiple_of(PAGE);
        // The system's zero pages: they take memory when they are written, or pinned.
        let mut zeros = ManuallyDrop::new(vec![0_u8; bytes + HUGE_PAGE]);
        let (start, capacity) = (zeros.as_mut_ptr(), zeros.capacity());
        // SAFETY: behind it there are `bytes` bytes and less than a huge page before it.
        let at = unsafe { start.add(start.align_offset(HUGE_PAGE).min(HUGE_PAGE)) };
        advise(at, bytes, Advice::HugePages);
        let owner = Owner::Process { start, capacity, is_pinned: AtomicBool::new(false) };
        Self { gpu: gpu.clone(), at: at.cast(), bytes, owner }
    }

    /// Pins memory that is not yet pinned. It may be in use meanwhile.
    pub(crate) fn pin(&self) -> Result<(), CudaError> {
        let Owner::Process { is_pinned, .. } = &self.owner else { return Ok(()) };
        if is_pinned.load(Ordering::Acquire) {
            return Ok(());
        }
        // The driver lets other calls wait while it pins; so it finds all pages there.
        advise(self.at.cast(), self.bytes, Advice::TakePages);
        self.gpu.bind();
        let flags = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the memory is ours and stays where it is until it is unpinned.
        unsafe { sys::cuMemHostRegister_v2(self.at, self.bytes, flags) }
            .result()
            .map_err(failed("pinning memory"))?;
        is_pinned.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether the GPU may use it.
    pub(crate) fn is_pinned(&self) -> bool {
        match &self.owner {
            Owner::Driver => true,
            Owner::Process { is_pinned, .. } => is_pinned.load(Ordering::Acquire),
        }
    }

    /// The address of `bytes` bytes from `start` on.
    pub(crate) fn part(&self, start: usize, bytes: usize) -> *mut u8 {
        let end = start.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "beyond pinned memory");
        // SAFETY: inside the memory, as was just checked.
        unsafe { self.at.cast::<u8>().add(start) }
    }

    /// The address of `len` floats from `first` on.
    pub(crate) fn row(&self, first: usize, len: usize) -> *mut f32 {
        assert!((first + len) * 4 <= self.bytes, "beyond pinned memory");
        // SAFETY: inside the memory, as was just checked.
        unsafe { self.at.cast::<f32>().add(first) }
    }

    /// Its address for kernels.
    pub(crate) fn address(&self) -> Address {
        let mut at = 0;
        // SAFETY: writes one address; the memory is pinned, and pinned memory is mapped.
        let found = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut at, self.at, 0) };
        found.result().expect("pinned memory is mapped");
        Address(at)
    }

    /// Pair of words `index`, which a kernel may be writing.
    pub(crate) fn load(&self, index: usize) -> u64 {
        assert!((index + 1) * 8 <= self.bytes, "beyond pinned memory");
        // SAFETY: inside the memory, as was just checked, and aligned as its start is. Everybody
        // who shares it, here and on the GPU, reads and writes whole pairs at once.
        unsafe { (*self.at.cast::<AtomicU64>().add(index)).load(Ordering::Relaxed) }
    }

    /// Replaces pair of words `index`, which a kernel may be reading.
    pub(crate) fn store(&self, index: usize, pair: u64) {
        assert!((index + 1) * 8 <= self.bytes, "beyond pinned memory");
        // SAFETY: as for `load`.
        unsafe { (*self.at.cast::<AtomicU64>().add(index)).store(pair, Ordering::Relaxed) }
    }

    /// A word that a running kernel and the host both access.
    pub(crate) fn shared_word(&self, index: usize) -> &AtomicU32 {
        assert!((index + 1) * 4 <= self.bytes, "beyond pinned memory");
        // SAFETY: inside the memory and aligned; both sides access it atomically.
        unsafe { AtomicU32::from_ptr(self.at.cast::<u32>().add(index)) }
    }

    /// Replaces the values at a byte offset.
    pub(crate) fn fill<T: Copy>(&mut self, offset: usize, values: &[T]) {
        let bytes = size_of_val(values);
        assert!(offset + bytes <= self.bytes, "beyond pinned memory");
        // SAFETY: inside the memory, as was just checked; bytes need no alignment.
        unsafe {
            let to = self.at.cast::<u8>().add(offset);
            to.copy_from_nonoverlapping(values.as_ptr().cast(), bytes);
        }
    }

    /// The memory as bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: as many bytes as it has, set when made. Callers wait for copies into it.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.bytes) }
    }

    /// The memory as bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; callers wait for copies from it too.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.bytes) }
    }

    /// The memory as halves of words.
    pub(crate) fn halves(&mut self) -> &mut [u16] {
        // SAFETY: as many whole halves as it has, aligned to far more, set when made. Callers wait
        // for copies from and to it.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.bytes / 2) }
    }

    /// The memory as words.
    pub(crate) fn words(&mut self) -> &mut [u32] {
        // SAFETY: as many whole words as it has, aligned to far more than a word, set when made.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.bytes / 4) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.gpu.bind();
        match &self.owner {
            Owner::Driver => {
                // SAFETY: the memory is ours, and nothing on the stream uses it once runs have
                // ended.
                let _ = unsafe { result::free_host(self.at) };
            }
            Owner::Process { start, capacity, is_pinned } => {
                if is_pinned.load(Ordering::Acquire) {
                    // SAFETY: it was pinned as a whole, and no copy uses it any more.
                    let _ = unsafe { sys::cuMemHostUnregister(self.at) };
                }
                // SAFETY: the parts of the vector that was taken apart.
                drop(unsafe { Vec::from_raw_parts(*start, 0, *capacity) });
            }
        }
    }
}

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// What the system is told about memory. If it refuses, the memory is the same, and slower to pin.
#[derive(Clone, Copy)]
enum Advice {
    /// Its pages should be huge: fewer are pinned in less time.
    HugePages,
    /// All its pages will be written to.
    TakePages,
}

#[cfg(target_os = "linux")]
fn advise(at: *mut u8, bytes: usize, advice: Advice) {
    let advice = match advice {
        Advice::HugePages => libc::MADV_HUGEPAGE,
        Advice::TakePages => libc::MADV_POPULATE_WRITE,
    };
    // SAFETY: the caller owns the memory; neither advice changes what it holds.
    unsafe { libc::madvise(at.cast(), bytes, advice) };
}

#[cfg(not(target_os = "linux"))]
fn advise(_: *mut u8, _: usize, _: Advice) {}

/// An event: a point in a stream that can be waited for.
pub(crate) struct Done {
    gpu: Arc<Gpu>,
    event: sys::CUevent,
}

// SAFETY: a handle of the driver, used with the context bound.
unsafe impl Send for Done {}
// SAFETY: what is done with an event is thread-safe in the driver.
unsafe impl Sync for Done {}

impl Done {
    /// Waiting for it before it was ever recorded takes no time.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        gpu.bind();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;
        let event = result::event::create(flags).map_err(failed("making an event"))?;
        Ok(Self { gpu: gpu.clone(), event })
    }

    /// Records the event: it is done when all work that is in the stream now is done.
    pub(crate) fn record(&self, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: event and stream are ours.
        unsafe { result::event::record(self.event, self.gpu.handle(stream)) }
            .map_err(failed("recording an event"))
    }

    /// Whether the event is done. After a GPU failure everything counts as done; the next call
    /// reports the failure.
    pub(crate) fn is_over(&self) -> bool {
        // SAFETY: the event is ours.
        let said = unsafe { sys::cuEventQuery(self.event) };
        said != sys::CUresult::CUDA_ERROR_NOT_READY
    }

    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event is ours.
        unsafe { result::event::synchronize(self.event) }.map_err(failed("waiting for the GPU"))
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        self.gpu.bind();
        // SAFETY: the event is ours and nobody waits for it any more.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}
