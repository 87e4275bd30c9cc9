//! Loaded kernels. A module is loaded when one of its kernels is first used, and waits for its
//! compiler then (`compile_jobs.rs`); until then a [`Kernel`] stands for one that is being
//! compiled.

use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::{result, sys};

use super::{Address, Gpu, Stream, failed};
use crate::compile_jobs::Job;
use crate::error::CudaError;

/// Kernels that were compiled together.
pub(crate) struct Module {
    gpu: Arc<Gpu>,
    job: Arc<Job>,
    loaded: OnceLock<Handle>,
    loading: Mutex<()>,
}

struct Handle(sys::CUmodule);

// SAFETY: a handle of the driver, used with the context bound.
unsafe impl Send for Handle {}
// SAFETY: what is done with a loaded module is thread-safe in the driver.
unsafe impl Sync for Handle {}

impl Module {
    pub(crate) fn new(gpu: &Arc<Gpu>, job: &Arc<Job>) -> Arc<Self> {
        let (gpu, job) = (Arc::clone(gpu), Arc::clone(job));
        Arc::new(Self { gpu, job, loaded: OnceLock::new(), loading: Mutex::new(()) })
    }

    /// A kernel by its name, allowed `shared_bytes` of dynamic shared memory.
    pub(crate) fn kernel(self: &Arc<Self>, name: &str, shared_bytes: usize) -> Kernel {
        let promise = Promise {
            module: Arc::clone(self),
            name: name.to_owned(),
            shared_bytes,
            function: OnceLock::new(),
        };
        Kernel(Arc::new(promise))
    }

    /// Waits until the module is compiled, and loads it.
    pub(crate) fn ready(&self) -> Result<(), CudaError> {
        self.load().map(drop)
    }

    /// Loads the module if nobody has; waits until it is compiled.
    fn load(&self) -> Result<sys::CUmodule, CudaError> {
        if let Some(handle) = self.loaded.get() {
            return Ok(handle.0);
        }
        let _one = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = self.loaded.get() {
            return Ok(handle.0);
        }
        let image = self.job.cubin()?;
        self.gpu.bind();
        // SAFETY: the image is a cubin that the compiler made, whole: the cache checks its hash.
        let module = relaxed(|| unsafe { result::module::load_data(image.as_ptr().cast()) })
            .map_err(failed("loading the kernels"))?;
        Ok(self.loaded.get_or_init(|| Handle(module)).0)
    }
}

/// Allows calls that a thread must not make while it records launches. Loading a module is one: it
/// uses no stream of ours, so what is recorded stays whole.
fn relaxed<T>(load: impl FnOnce() -> T) -> T {
    let mut mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: exchanges a setting of this thread, and puts the former one back.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    let loaded = load();
    // SAFETY: as above.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    loaded
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Some(handle) = self.loaded.get() {
            self.gpu.bind();
            // SAFETY: the module is ours; runs have ended.
            let _ = unsafe { result::module::unload(handle.0) };
        }
    }
}

/// One kernel of a module.
#[derive(Clone)]
pub(crate) struct Kernel(Arc<Promise>);

struct Promise {
    module: Arc<Module>,
    name: String,
    shared_bytes: usize,
    function: OnceLock<Function>,
}

struct Function(sys::CUfunction);

// SAFETY: a handle of the driver; the module that it belongs to is kept beside it.
unsafe impl Send for Function {}
// SAFETY: launching is thread-safe in the driver.
unsafe impl Sync for Function {}

/// How a kernel is launched.
#[derive(Clone, Copy)]
pub(crate) struct Launch {
    /// Blocks.
    pub(crate) grid: (usize, usize),
    /// Threads of a block.
    pub(crate) threads: usize,
    /// Whether the kernel may start before the previous kernel has ended; it then waits inside.
    pub(crate) early: bool,
    /// Whether all its blocks must run at once: they wait for one another.
    pub(crate) cooperative: bool,
}

/// A value that can be a kernel argument.
///
/// # Safety
/// The driver copies as many bytes from its address as the kernel declares, so an implementation is
/// `repr(C)`, `repr(transparent)` or a number, and its fields are those of the kernel's parameter.
pub(crate) unsafe trait Argument {}
// SAFETY: one address.
unsafe impl Argument for Address {}
// SAFETY: a number.
unsafe impl Argument for u32 {}
// SAFETY: a number.
unsafe impl Argument for u64 {}

/// The most arguments that a kernel has.
const MAX_ARGUMENTS: usize = 12;

impl Kernel {
    /// The same kernel with this much dynamic shared memory. It takes the place of the former one:
    /// the driver knows one size for both.
    pub(crate) fn with_shared(&self, shared_bytes: usize) -> Self {
        self.0.module.kernel(&self.0.name, shared_bytes)
    }

    /// Waits until the kernel is compiled, and loads it.
    pub(crate) fn ready(&self) -> Result<(), CudaError> {
        self.function().map(drop)
    }

    fn function(&self) -> Result<sys::CUfunction, CudaError> {
        if let Some(function) = self.0.function.get() {
            return Ok(function.0);
        }
        let module = self.0.module.load()?;
        self.0.module.gpu.bind();
        let name = CString::new(&*self.0.name).expect("names of kernels have no zero byte");
        let find = || {
            // SAFETY: the module is loaded.
            unsafe { result::module::get_function(module, name) }
        };
        let function = relaxed(find).map_err(failed("finding a kernel"))?;
        self.reserve(function)?;
        Ok(self.0.function.get_or_init(|| Function(function)).0)
    }

    fn reserve(&self, function: sys::CUfunction) -> Result<(), CudaError> {
        use sys::CUfunction_attribute_enum as Attribute;
        let bytes = self.0.shared_bytes as i32;
        // Kernels of one graph share multiprocessors. A kernel with another split between cache and
        // shared memory would wait until they are idle, so all kernels use the largest split.
        let attributes = [
            (Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes),
            (Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100),
        ];
        for (attribute, value) in attributes {
            // SAFETY: the function belongs to a loaded module.
            unsafe { result::function::set_function_attribute(function, attribute, value) }
                .map_err(failed("reserving shared memory"))?;
        }
        Ok(())
    }

    /// Its static shared memory.
    pub(crate) fn static_shared_bytes(&self) -> Result<usize, CudaError> {
        let which = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        let (function, mut bytes) = (self.function()?, 0);
        // SAFETY: the function belongs to a loaded module; writes one integer.
        unsafe { sys::cuFuncGetAttribute(&mut bytes, which, function) }
            .result()
            .map_err(failed("asking for a kernel's shared memory"))?;
        Ok(bytes as usize)
    }

    /// Launches for steps. The arguments are those of the kernel's declaration, in its order.
    pub(crate) fn launch(
        &self,
        gpu: &Gpu,
        launch: Launch,
        arguments: &[&dyn Argument],
    ) -> Result<(), CudaError> {
        self.launch_in(gpu, Stream::Compute, launch, arguments)
    }

    /// The same in a given stream.
    pub(crate) fn launch_in(
        &self,
        gpu: &Gpu,
        stream: Stream,
        launch: Launch,
        arguments: &[&dyn Argument],
    ) -> Result<(), CudaError> {
        let function = self.function()?;
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
        assert!(
            !(launch.early && launch.cooperative),
            "a launch cannot be both early and cooperative"
        );
        let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid.0 as u32,
            gridDimY: launch.grid.1 as u32,
            gridDimZ: 1,
            blockDimX: launch.threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.0.shared_bytes as u32,
            hStream: gpu.handle(stream),
            attrs: &mut attribute,
            numAttrs: u32::from(launch.early || launch.cooperative),
        };
        // SAFETY: the function is loaded; `ops` passes arguments in the order and of the types of
        // its declaration, and the driver copies them before it returns. The addresses among them
        // are of buffers of this device, and every index in them was checked by `Step::check`.
        unsafe {
            let extra = std::ptr::null_mut();
            sys::cuLaunchKernelEx(&config, function, pointers.as_mut_ptr(), extra)
                .result()
                .map_err(failed("a launch"))
        }
    }
}
