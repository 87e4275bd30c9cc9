//! The CUDA driver, as much of it as the device needs: a context, memory, launches, graphs.
//!
//! Everything unsafe about the driver is here. A [`Gpu`] is made only where library, driver and GPU
//! were found; memory frees itself; a launch takes its arguments as typed values.

use std::ffi::{CString, c_void};
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::error::CudaError;
use crate::shape::Chip;

/// A GPU with a stream that all work of a device goes through.
pub(crate) struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    pub(crate) facts: GpuFacts,
}

/// What a GPU says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFacts {
    /// Its name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// What decides how kernels are cut.
    pub chip: Chip,
    /// Memory in bytes.
    pub memory_bytes: usize,
    /// The largest CUDA version that the driver serves, as 13000 for 13.0.
    pub driver_version: u32,
}

impl GpuFacts {
    /// The name of its architecture, as the compiler knows it.
    pub(crate) fn arch(&self) -> String {
        let (major, minor) = self.capability;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }
}

// SAFETY: contexts and streams may be used from any thread; each use binds the context first, and
// what is reached through `&self` is thread-safe in the driver.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// Kernels need cp.async, bf16 products and barriers in shared memory.
const OLDEST: (u32, u32) = (8, 0);

/// The GPU with this number, or a line that says what is missing.
pub(crate) fn open(ordinal: i32) -> Result<Arc<Gpu>, CudaError> {
    let unavailable = |reason: &str| CudaError::Unavailable(reason.to_owned());
    // SAFETY: opens and closes the library by name, nothing else.
    if !unsafe { sys::is_culib_present() } {
        return Err(unavailable("libcuda is not there; install the NVIDIA driver"));
    }
    // A stub of the library lacks functions, and the binding panics where one is missing.
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
    let chip = Chip {
        n_sms: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        shared_bytes: attribute(shared)? as usize,
    };
    let mut driver_version = 0;
    // SAFETY: writes one integer; the device is the driver's own, and the flag only says how this
    // thread waits for the GPU: spinning, because a token is shorter than a wake-up.
    let context = unsafe {
        sys::cuDriverGetVersion(&mut driver_version).result()?;
        let flags = sys::CUctx_flags_enum::CU_CTX_SCHED_SPIN as u32;
        // Refused where another part of the process has the context already; then it stays as it is.
        let _ = sys::cuDevicePrimaryCtxSetFlags_v2(device, flags);
        result::primary_ctx::retain(device)?
    };
    // SAFETY: the context was just retained.
    unsafe { result::ctx::set_current(context)? };
    let facts = GpuFacts {
        name: result::device::get_name(device)?,
        capability,
        chip,
        // SAFETY: the device is the driver's own.
        memory_bytes: unsafe { result::device::total_mem(device)? },
        driver_version: driver_version as u32,
    };
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
    Ok(Gpu { device, context, stream, facts })
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
        // SAFETY: the stream is ours and nobody holds it any more; the context was retained once. A
        // failure at the end leaves nothing to do.
        unsafe {
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

impl Gpu {
    /// Makes the context that of this thread: a device may move between threads.
    pub(crate) fn bind(&self) {
        // SAFETY: the context lives as long as `self`. It cannot fail for a retained context; if it
        // did, the next call would say so.
        let _ = unsafe { result::ctx::set_current(self.context) };
    }

    /// Waits until all that was asked for is done.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is ours.
        unsafe { result::stream::synchronize(self.stream) }.map_err(failed("waiting for the GPU"))
    }

    /// Whether all that was asked for is done, or failed.
    pub(crate) fn is_idle(&self) -> bool {
        // SAFETY: the stream is ours.
        let state = unsafe { sys::cuStreamQuery(self.stream) };
        state != sys::CUresult::CUDA_ERROR_NOT_READY
    }

    /// Bytes of memory that are free.
    pub(crate) fn free_bytes(&self) -> usize {
        self.bind();
        result::mem_get_info().map_or(0, |(free, _)| free)
    }

    /// Loads a cubin.
    pub(crate) fn load(self: &Arc<Self>, image: &[u8]) -> Result<Module, CudaError> {
        self.bind();
        // SAFETY: the image is a cubin that the compiler made, whole: the cache checks its hash.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) };
        Ok(Module { gpu: self.clone(), module: module.map_err(failed("loading the kernels"))? })
    }

    /// Sets memory to zero, in the stream.
    pub(crate) fn clear(&self, at: Address, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: callers pass a range inside memory that they own.
        unsafe { result::memset_d8_async(at.0, 0, bytes, self.stream) }
            .map_err(failed("clearing memory"))
    }

    /// Copies pinned memory to the GPU, in the stream.
    pub(crate) fn upload(&self, to: Address, from: &Pinned, bytes: usize) -> Result<(), CudaError> {
        assert!(bytes <= from.bytes, "a copy beyond its source");
        // SAFETY: the source was checked and outlives the stream's work, because runs end with
        // `synchronize`; callers pass a range inside memory that they own.
        unsafe {
            sys::cuMemcpyHtoDAsync_v2(to.0, from.at.cast(), bytes, self.stream)
                .result()
                .map_err(failed("copying to the GPU"))
        }
    }

    /// Records what `work` asks for instead of running it.
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

    /// A pair of times on the stream, in ms, around `work`.
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

/// An address in the GPU's memory, as kernels take it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    pub(crate) fn offset(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// Memory on the GPU, all zeros when it is made.
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
        let memory = Self { gpu: gpu.clone(), at: Address(at), bytes };
        gpu.clear(memory.at, bytes)?;
        Ok(memory)
    }

    pub(crate) fn address(&self) -> Address {
        self.at
    }

    fn place(&self, offset: usize, bytes: usize) -> u64 {
        assert!(offset + bytes <= self.bytes, "beyond a buffer on the GPU");
        self.at.0 + offset as u64
    }

    /// Writes values at a byte offset; returns when they are there.
    pub(crate) fn write<T: Copy>(&self, offset: usize, values: &[T]) -> Result<(), CudaError> {
        let to = self.place(offset, size_of_val(values));
        self.gpu.bind();
        // SAFETY: the range was checked; the copy is over before `values` can go.
        unsafe { result::memcpy_htod_async(to, values, self.gpu.stream) }
            .map_err(failed("copying to the GPU"))?;
        self.gpu.synchronize()
    }

    /// Reads values at a byte offset, after all work is done.
    pub(crate) fn read<T: Copy>(&self, offset: usize, values: &mut [T]) -> Result<(), CudaError> {
        let from = self.place(offset, size_of_val(values));
        self.gpu.bind();
        // SAFETY: the range was checked; the copy is over before `values` can go. `T` is plain numbers.
        unsafe { result::memcpy_dtoh_async(values, from, self.gpu.stream) }
            .map_err(failed("copying from the GPU"))?;
        self.gpu.synchronize()
    }

    /// Copies a range inside this memory; the two do not overlap.
    pub(crate) fn copy_within(
        &self,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let (from, to) = (self.place(from, bytes), self.place(to, bytes));
        self.gpu.bind();
        // SAFETY: both ranges were checked.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.gpu.stream) }
            .map_err(failed("copying on the GPU"))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.gpu.bind();
        // SAFETY: the memory is ours, and freeing waits for work that uses it.
        let _ = unsafe { result::free_sync(self.at.0) };
    }
}

/// Memory of this machine that the GPU copies from without help.
pub(crate) struct Pinned {
    gpu: Arc<Gpu>,
    at: *mut c_void,
    bytes: usize,
}

// SAFETY: plain memory that only its owner reaches.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, CudaError> {
        gpu.bind();
        let bytes = bytes.max(16);
        // SAFETY: asks for memory, which is set before anything reads it.
        let at =
            unsafe { result::malloc_host(bytes, 0) }.map_err(failed("taking pinned memory"))?;
        // SAFETY: the memory was just taken and is that long.
        unsafe { at.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { gpu: gpu.clone(), at, bytes })
    }

    /// Where `len` floats from `first` on lie.
    pub(crate) fn row(&self, first: usize, len: usize) -> *mut f32 {
        assert!((first + len) * 4 <= self.bytes, "beyond pinned memory");
        // SAFETY: inside the memory, as was just checked.
        unsafe { self.at.cast::<f32>().add(first) }
    }

    /// Where it lies for kernels: the address is the same for both.
    pub(crate) fn address(&self) -> Address {
        Address(self.at as u64)
    }

    /// A word that a running kernel and the host both reach.
    pub(crate) fn shared_word(&self, index: usize) -> &AtomicU32 {
        assert!((index + 1) * 4 <= self.bytes, "beyond pinned memory");
        // SAFETY: inside the memory and aligned; both sides access it atomically.
        unsafe { AtomicU32::from_ptr(self.at.cast::<u32>().add(index)) }
    }

    /// Two words of the same kind, read and written as one.
    pub(crate) fn shared_pair(&self, index: usize) -> &AtomicU64 {
        assert!((index + 1) * 8 <= self.bytes, "beyond pinned memory");
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at.cast::<u64>().add(index)) }
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
        // SAFETY: the memory is ours, and nothing on the stream uses it once runs have ended.
        let _ = unsafe { result::free_host(self.at) };
    }
}

/// Loaded kernels.
pub(crate) struct Module {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
}

// SAFETY: handles of the driver, used with the context bound.
unsafe impl Send for Module {}

impl Module {
    /// A kernel by its name, allowed `shared_bytes` of dynamic shared memory.
    pub(crate) fn kernel(&self, name: &str, shared_bytes: usize) -> Result<Kernel, CudaError> {
        let c_name = CString::new(name).expect("names of kernels have no zero byte");
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(self.module, c_name) }
            .map_err(failed("finding a kernel"))?;
        Kernel { function, shared_bytes: 0 }.with_shared(shared_bytes)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.gpu.bind();
        // SAFETY: the module is ours; runs have ended.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// One kernel of a module.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    function: sys::CUfunction,
    shared_bytes: usize,
}

// SAFETY: a handle of the driver; the module that it belongs to is kept beside it.
unsafe impl Send for Kernel {}

/// How a kernel is launched.
#[derive(Clone, Copy)]
pub(crate) struct Launch {
    /// Blocks.
    pub(crate) grid: (usize, usize),
    /// Threads of a block.
    pub(crate) threads: usize,
    /// Whether it may start before the kernel before it has ended; it waits inside.
    pub(crate) early: bool,
    /// Whether all its blocks must run at once: they wait for one another.
    pub(crate) cooperative: bool,
}

/// A value that a kernel takes, laid out as the kernel declares it.
pub(crate) trait Argument {}
impl Argument for Address {}
impl Argument for u32 {}
impl Argument for u64 {}

/// The most arguments that a kernel has.
const MAX_ARGUMENTS: usize = 12;

impl Kernel {
    /// The kernel with this much dynamic shared memory.
    pub(crate) fn with_shared(self, shared_bytes: usize) -> Result<Self, CudaError> {
        use sys::CUfunction_attribute_enum as Attribute;
        // Kernels of one graph share multiprocessors, and one that wants another split between
        // cache and shared memory would wait until they are empty: all take the largest.
        let attributes = [
            (Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes as i32),
            (Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100),
        ];
        for (attribute, value) in attributes {
            // SAFETY: the function is of a loaded module.
            unsafe { result::function::set_function_attribute(self.function, attribute, value) }
                .map_err(failed("reserving shared memory"))?;
        }
        Ok(Self { shared_bytes, ..self })
    }

    /// Shared memory that it has besides.
    pub(crate) fn static_shared_bytes(&self) -> Result<usize, CudaError> {
        let which = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        let mut bytes = 0;
        // SAFETY: the function is of a loaded module; writes one integer.
        unsafe { sys::cuFuncGetAttribute(&mut bytes, which, self.function) }
            .result()
            .map_err(failed("asking for a kernel's shared memory"))?;
        Ok(bytes as usize)
    }

    /// Launches on the stream. The arguments are those of the kernel's declaration, in its order.
    pub(crate) fn launch(
        &self,
        gpu: &Gpu,
        launch: Launch,
        arguments: &[&dyn Argument],
    ) -> Result<(), CudaError> {
        let mut pointers = [std::ptr::null_mut(); MAX_ARGUMENTS];
        assert!(arguments.len() <= MAX_ARGUMENTS, "{} arguments", arguments.len());
        for (pointer, argument) in pointers.iter_mut().zip(arguments) {
            *pointer = std::ptr::from_ref(*argument).cast_mut().cast::<c_void>();
        }
        use sys::CUlaunchAttributeID_enum as Id;
        use sys::CUlaunchAttributeValue as Value;
        let (id, value) = match launch.cooperative {
            true => (Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, Value { cooperative: 1 }),
            false => (
                Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                Value { programmaticStreamSerializationAllowed: 1 },
            ),
        };
        assert!(!(launch.early && launch.cooperative), "a launch that cannot be both");
        let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid.0 as u32,
            gridDimY: launch.grid.1 as u32,
            gridDimZ: 1,
            blockDimX: launch.threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes as u32,
            hStream: gpu.stream,
            attrs: &mut attribute,
            numAttrs: u32::from(launch.early || launch.cooperative),
        };
        // SAFETY: the function is loaded; `ops` passes arguments in the order and of the types of
        // its declaration, and the driver copies them before it returns. The addresses among them
        // are of buffers of this device, and every index in them was checked by `Step::check`.
        unsafe {
            let extra = std::ptr::null_mut();
            sys::cuLaunchKernelEx(&config, self.function, pointers.as_mut_ptr(), extra)
                .result()
                .map_err(failed("a launch"))
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
        // SAFETY: the graph is ours; the memory it uses lives as long as the device that holds both.
        unsafe { result::graph::launch(self.executable, self.gpu.stream) }
            .map_err(failed("launching a token"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.gpu.bind();
        // SAFETY: the graph is ours; runs have ended.
        let _ = unsafe { result::graph::exec_destroy(self.executable) };
    }
}
