//! The part of the CUDA driver that the device needs: a context, memory, launches, graphs.
//!
//! All unsafe calls of the driver are here. A [`Gpu`] exists only if library, driver and GPU were
//! found; memory frees itself; a launch takes its arguments as typed values.

use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

mod memory;
mod module;
mod turns;

pub(crate) use self::memory::{Address, Done, Memory, Pinned};
pub(crate) use self::module::{Argument, Kernel, Launch, Module};
use crate::error::CudaError;
use crate::shape::Chip;

/// The streams of a device. Each runs its work in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Steps, and everything that names no other stream.
    Compute,
    /// Rows between pages and the host: one of [`COPY_STREAMS`].
    Copies(usize),
}

/// Streams for copies: while one reorders rows by a kernel, the others keep the bus busy.
pub(crate) const COPY_STREAMS: usize = 4;

/// A GPU with the streams of a device.
pub(crate) struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    copies: [sys::CUstream; COPY_STREAMS],
    pub(crate) facts: GpuFacts,
    /// Bytes of GPU memory that were allocated through this handle.
    taken: AtomicU64,
    turns: turns::Turns,
}

/// Facts that a GPU reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFacts {
    /// Its name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// What decides how work is split among blocks.
    pub chip: Chip,
    /// Memory in bytes.
    pub memory_bytes: usize,
    /// Memory in bytes that was free when the driver was asked.
    pub free_bytes: usize,
    /// The largest CUDA version that the driver supports, such as 13000 for 13.0.
    pub driver_version: u32,
}

impl GpuFacts {
    /// The name of its architecture, as the compiler knows it.
    pub(crate) fn arch(&self) -> String {
        let (major, minor) = self.capability;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }

    /// The GPU and its driver, for the names of files whose content depends on both.
    pub(crate) fn identity(&self) -> String {
        // CUDA only knows the version that the driver supports; some systems know its build.
        let build = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
        let build = build.lines().next().unwrap_or_default();
        let Self { name, capability, chip, driver_version, .. } = self;
        format!("{name} {capability:?} {chip:?} {driver_version} {build}")
    }
}

// SAFETY: contexts and streams may be used from any thread; each use binds the context first, and
// what is reached through `&self` is thread-safe in the driver.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// Kernels need cp.async, bf16 products and barriers in shared memory.
const OLDEST: (u32, u32) = (8, 0);

/// The GPU with this number, or an error that says what is missing.
pub(crate) fn open(ordinal: i32) -> Result<Arc<Gpu>, CudaError> {
    let unavailable = |reason: &str| CudaError::Unavailable(reason.to_owned());
    // SAFETY: opens and closes the library by name, nothing else.
    if !unsafe { sys::is_culib_present() } {
        return Err(unavailable("libcuda was not found; install the NVIDIA driver"));
    }
    // A stub of the library lacks functions, and the binding panics if one is missing.
    let opened = catch_unwind(|| open_device(ordinal))
        .map_err(|_| unavailable("libcuda is not the driver's; install the NVIDIA driver"))?;
    let gpu = opened.map_err(|error| CudaError::Unavailable(describe(error)))?;
    if gpu.facts.capability < OLDEST {
        let GpuFacts { name, capability: (major, minor), .. } = &gpu.facts;
        return Err(CudaError::Unavailable(format!(
            "{name} has compute capability {major}.{minor}, and weft's kernels need 8.0"
        )));
    }
    Ok(Arc::new(gpu))
}

fn open_device(ordinal: i32) -> Result<Gpu, DriverError> {
    use sys::CUdevice_attribute_enum as Attribute;
    result::init()?;
    let device = result::device::get(ordinal)?;
    // SAFETY: the device is the driver's own.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) };
    let capability = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
    );
    let shared = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    let has_warpgroups = capability == (9, 0);
    let chip = Chip {
        has_warpgroups,
        n_sms: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        shared_bytes: attribute(shared)? as usize,
    };
    let mut driver_version = 0;
    // SAFETY: writes one integer; the device is the driver's own, and the flag only says how this
    // thread waits for the GPU: spinning, because a token is shorter than a wake-up.
    let context = unsafe {
        sys::cuDriverGetVersion(&mut driver_version).result()?;
        let flags = sys::CUctx_flags_enum::CU_CTX_SCHED_SPIN as u32;
        // Refused if another part of the process has already created the context; then its flags
        // stay.
        let _ = sys::cuDevicePrimaryCtxSetFlags_v2(device, flags);
        result::primary_ctx::retain(device)?
    };
    // SAFETY: the context was just retained.
    unsafe { result::ctx::set_current(context)? };
    keep_context(device)?;
    let facts = GpuFacts {
        name: result::device::get_name(device)?,
        capability,
        chip,
        // SAFETY: the device is the driver's own.
        memory_bytes: unsafe { result::device::total_mem(device)? },
        free_bytes: result::mem_get_info()?.0,
        driver_version: driver_version as u32,
    };
    let stream = || result::stream::create(result::stream::StreamKind::NonBlocking);
    let (stream, copies) = (stream()?, [stream()?, stream()?, stream()?, stream()?]);
    let turns = turns::Turns::of(device);
    Ok(Gpu { device, context, stream, copies, facts, taken: AtomicU64::new(0), turns })
}

/// Retains the context until the process ends: creating one takes a quarter of a second, and a
/// process that looked for a GPU is about to use it.
fn keep_context(device: sys::CUdevice) -> Result<(), DriverError> {
    static KEPT: AtomicBool = AtomicBool::new(false);
    if !KEPT.swap(true, Ordering::Relaxed) {
        // SAFETY: the device is the driver's own; that this is never released is what it is for.
        unsafe { result::primary_ctx::retain(device)? };
    }
    Ok(())
}

fn describe(error: DriverError) -> String {
    let text = error.error_string().ok().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_else(|| format!("{error:?}"))
}

pub(crate) fn failed(call: &'static str) -> impl FnOnce(DriverError) -> CudaError {
    move |error| CudaError::Driver { call, reason: describe(error) }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.bind();
        self.turns.leave();
        // SAFETY: the streams are ours and nobody holds them any more; the context was retained
        // once. A failure at the end leaves nothing to do.
        unsafe {
            let _ = result::stream::destroy(self.stream);
            for copies in self.copies {
                let _ = result::stream::destroy(copies);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

impl Gpu {
    /// Binds the context to this thread: a device may move between threads.
    pub(crate) fn bind(&self) {
        // SAFETY: the context lives as long as `self`. It cannot fail for a retained context; if it
        // did, the next call would say so.
        let _ = unsafe { result::ctx::set_current(self.context) };
    }

    fn handle(&self, stream: Stream) -> sys::CUstream {
        match stream {
            Stream::Compute => self.stream,
            Stream::Copies(n) => self.copies[n],
        }
    }

    /// Waits until all launched steps are done.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is ours.
        unsafe { result::stream::synchronize(self.stream) }.map_err(failed("waiting for the GPU"))
    }

    /// Whether all launched steps are done.
    pub(crate) fn is_idle(&self) -> Result<bool, CudaError> {
        self.bind();
        // SAFETY: the stream is ours.
        match unsafe { sys::cuStreamQuery(self.stream) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            said => said.result().map(|()| true).map_err(failed("waiting for the GPU")),
        }
    }

    /// Bytes of memory that were allocated through this handle.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Bytes of memory that are free.
    pub(crate) fn free_bytes(&self) -> usize {
        self.bind();
        result::mem_get_info().map_or(0, |(free, _)| free)
    }

    /// Records the launches of `work` instead of running them.
    pub(crate) fn capture(
        self: &Arc<Self>,
        work: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Graph, CudaError> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is ours and idle; a capture that began is ended below.
        unsafe { result::stream::begin_capture(self.stream, mode) }.map_err(failed("recording"))?;
        let worked = work();
        let mut graph = std::ptr::null_mut();
        // SAFETY: as above; the graph is written only if the call succeeds.
        let ended = unsafe { sys::cuStreamEndCapture(self.stream, &mut graph) }.result();
        worked?;
        ended.map_err(failed("recording"))?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph was just made; what it is made into holds no reference to it.
        let made = unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0).result();
            let _ = result::graph::destroy(graph);
            made
        };
        made.map_err(failed("making a graph"))?;
        Ok(Graph { gpu: self.clone(), executable })
    }

    /// The time in ms that `work` takes on the stream.
    pub(crate) fn time_ms(
        &self,
        work: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<f64, CudaError> {
        use result::event;
        let failed = || failed("timing");
        let create = || event::create(sys::CUevent_flags_enum::CU_EVENT_DEFAULT).map_err(failed());
        let (start, end) = (create()?, create()?);
        // SAFETY: both events were just made and are destroyed at the end.
        unsafe {
            event::record(start, self.stream).map_err(failed())?;
            work()?;
            event::record(end, self.stream).map_err(failed())?;
            event::synchronize(end).map_err(failed())?;
            let time = event::elapsed(start, end).map_err(failed())?;
            let _ = (event::destroy(start), event::destroy(end));
            Ok(f64::from(time))
        }
    }
}

/// Recorded work that one call repeats.
pub(crate) struct Graph {
    gpu: Arc<Gpu>,
    executable: sys::CUgraphExec,
}

// SAFETY: a handle of the driver, used with the context bound.
unsafe impl Send for Graph {}

impl Graph {
    pub(crate) fn launch(&self) -> Result<(), CudaError> {
        // SAFETY: the graph is ours; the memory it uses lives as long as the device that holds
        // both.
        unsafe { result::graph::launch(self.executable, self.gpu.stream) }
            .map_err(failed("launching a token"))
    }

    /// Copies what it launches to the GPU now, and not before its first launch.
    pub(crate) fn upload(&self) -> Result<(), CudaError> {
        // SAFETY: graph and stream are ours.
        unsafe { sys::cuGraphUpload(self.executable, self.gpu.stream) }
            .result()
            .map_err(failed("making a graph"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.gpu.bind();
        // SAFETY: the graph is ours; runs have ended.
        let _ = unsafe { result::graph::exec_destroy(self.executable) };
    }
}
