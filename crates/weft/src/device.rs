//! Chooses the device for a model, tests it and creates it.

use weft_core::config::Config;
use weft_core::device::{Inspect, Limits};
use weft_core::dtype::Dtype;
use weft_core::model::ModelError;
use weft_core::reference;
use weft_core::weights::Weights;

use crate::error::Error;
use crate::memory::available_memory;
#[cfg(any(feature = "cpu", feature = "cuda"))]
use crate::self_test;
use crate::self_test::Passed;

/// The device that the caller asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The GPU if there is one; otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA GPU. Opening a model fails if there is none.
    Cuda,
    /// The reference device: slow, and exact in the model's own precision.
    Reference,
}

/// The device that weft has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// A CUDA GPU, with its way of launching kernels.
    #[cfg(feature = "cuda")]
    Cuda(weft_cuda::Launches),
    /// The CPU.
    #[cfg(feature = "cpu")]
    Cpu,
    /// The reference device, which defines the result of every op.
    Reference,
}

/// The result of a device's self-test.
#[derive(Clone, Debug)]
pub enum Tested {
    /// The device computes the same results as the reference device.
    Passed(Passed),
    /// The device passed at an earlier start, with the same kernels, GPU and driver.
    Earlier,
    /// The device failed for this reason, and weft chose the reference device instead.
    Failed(String),
    /// The reference device needs no test: it defines the results.
    NotNeeded,
}

/// The caller's options for a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceOptions {
    pub(crate) device: DeviceChoice,
    #[cfg(feature = "cuda")]
    pub(crate) launches: weft_cuda::Launches,
}

impl DeviceOptions {
    /// Chooses a device. The fast devices compute in bf16. A float32 model therefore runs on the
    /// reference device, and keeps its precision.
    pub(crate) fn choose(&self, config: &Config) -> Result<Chosen, Error> {
        let fast = self.fast_device()?;
        Ok(if config.dtype == Dtype::Bf16 { fast } else { Chosen::Reference })
    }

    /// The fastest device that is both allowed and present.
    fn fast_device(&self) -> Result<Chosen, Error> {
        let on_cpu = || {
            #[cfg(feature = "cpu")]
            return Ok(weft_cpu::Isa::choose().map(|_| Chosen::Cpu)?);
            #[cfg(not(feature = "cpu"))]
            Ok(Chosen::Reference)
        };
        match self.device {
            DeviceChoice::Reference => Ok(Chosen::Reference),
            DeviceChoice::Cpu => on_cpu(),
            DeviceChoice::Cuda => self.gpu(),
            DeviceChoice::Auto => self.gpu().or_else(|_| on_cpu()),
        }
    }

    #[cfg(feature = "cuda")]
    fn gpu(&self) -> Result<Chosen, Error> {
        weft_cuda::probe().map_err(|error| Error::Gpu(error.to_string()))?;
        Ok(Chosen::Cuda(self.launches))
    }

    #[cfg(not(feature = "cuda"))]
    fn gpu(&self) -> Result<Chosen, Error> {
        Err(Error::Gpu(
            "this program has no CUDA support; rebuild with the feature `cuda`".to_owned(),
        ))
    }
}

/// What was loaded, if the device passed its test.
#[cfg(any(feature = "cuda", feature = "cpu"))]
fn after_test<T>(
    tested: Result<Passed, String>,
    load: impl FnOnce() -> Result<T, Error>,
) -> Result<(Option<T>, Tested), Error> {
    match tested {
        Ok(passed) => Ok((Some(load()?), Tested::Passed(passed))),
        Err(reason) => Ok((None, Tested::Failed(reason))),
    }
}

impl Chosen {
    /// The free memory of the device, if the system reports it.
    pub(crate) fn free_memory(self) -> Result<Option<u64>, Error> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => {
                let facts = weft_cuda::probe().map_err(|error| Error::Gpu(error.to_string()))?;
                Ok(Some(facts.free_bytes as u64))
            }
            _ => Ok(available_memory()),
        }
    }

    /// Tests the device while `load` loads a model onto it. A GPU is tested once for its kernels
    /// and its driver; the others at every start. The first result is none if the test failed.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn test_beside<T>(
        self,
        load: impl FnOnce() -> Result<T, Error>,
    ) -> Result<(Option<T>, Tested), Error> {
        match self {
            Self::Reference => Ok((Some(load()?), Tested::NotNeeded)),
            #[cfg(feature = "cuda")]
            Self::Cuda(launches) if self_test::cuda_has_passed(launches) => {
                Ok((Some(load()?), Tested::Earlier))
            }
            #[cfg(feature = "cuda")]
            Self::Cuda(launches) => std::thread::scope(|scope| {
                // The test compiles its own kernels; those of the model need not wait for them.
                let test = scope.spawn(move || self_test::cuda(launches));
                let loaded = load();
                let tested = test.join().unwrap_or_else(|_| Err("the self-test panicked".into()));
                after_test(tested, || loaded)
            }),
            #[cfg(feature = "cpu")]
            Self::Cpu => after_test(self_test::cpu(), load),
        }
    }

    /// Loads a model onto the device. `threads` applies to the CPU; the default is all of its
    /// cores.
    ///
    /// # Errors
    /// [`Error::Model`] if the weights cannot be read; [`Error::Gpu`] if the GPU reports an error.
    pub fn make(
        self,
        config: &Config,
        weights: &dyn Weights,
        limits: Limits,
        #[cfg_attr(not(feature = "cpu"), expect(unused_variables))] threads: Option<usize>,
    ) -> Result<Box<dyn Inspect>, Error> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(launches) => {
                let options = weft_cuda::Options { launches, ..weft_cuda::Options::new(limits) };
                match weft_cuda::CudaDevice::new(config, weights, options) {
                    Ok(device) => Ok(Box::new(device)),
                    Err(weft_cuda::CudaError::Weights(error)) => {
                        Err(ModelError::from(error).into())
                    }
                    Err(error) => Err(Error::Gpu(error.to_string())),
                }
            }
            #[cfg(feature = "cpu")]
            Self::Cpu => {
                let mut options = weft_cpu::Options::new(limits)?;
                options.threads = threads.unwrap_or(options.threads);
                let device = weft_cpu::CpuDevice::new(config, weights, options);
                Ok(Box::new(device.map_err(ModelError::from)?))
            }
            Self::Reference => {
                Ok(reference::open(config, weights, limits).map_err(ModelError::from)?)
            }
        }
    }
}
