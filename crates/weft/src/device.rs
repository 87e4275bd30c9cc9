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

#[cfg(feature = "cuda")]
pub use weft_cuda::Launches;

/// The device that the caller asks for. A float32 model always runs on the reference device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The GPU, if there is one with a driver and NVRTC; otherwise the CPU.
    /// [`Llm::device`](crate::Llm::device) names the device.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA GPU. Opening a model fails if there is none.
    Cuda,
    /// The reference device: slow, and exact in the model's own precision.
    Reference,
}

/// Where the experts of a mixture of experts lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertsPlace {
    /// On the device, like everything else.
    #[default]
    Device,
    /// In main memory, computed by the CPU, beside a GPU that runs everything else: for models
    /// whose experts a GPU cannot hold.
    Cpu,
}

/// The device that weft has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// A CUDA GPU, with its way of launching kernels.
    #[cfg(feature = "cuda")]
    Cuda(Launches),
    /// A CUDA GPU, with the model's experts in main memory.
    #[cfg(all(feature = "cuda", feature = "cpu"))]
    CudaWithHostExperts,
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
    pub(crate) experts: ExpertsPlace,
    #[cfg(feature = "cuda")]
    pub(crate) launches: Launches,
}

impl DeviceOptions {
    /// Chooses a device. The fast devices compute in bf16. A float32 model therefore runs on the
    /// reference device, and keeps its precision.
    pub(crate) fn choose(&self, config: &Config) -> Result<Chosen, Error> {
        let fast = self.fast_device()?;
        let chosen = if config.dtype == Dtype::Bf16 { fast } else { Chosen::Reference };
        chosen.with_experts(self.experts, config)
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

/// The options of the CPU device, or of experts beside a GPU.
#[cfg(feature = "cpu")]
fn cpu(limits: Limits, threads: Option<usize>) -> Result<weft_cpu::Options, Error> {
    let mut options = weft_cpu::Options::new(limits)?;
    options.threads = threads.unwrap_or(options.threads);
    Ok(options)
}

#[cfg(feature = "cuda")]
fn on_gpu(
    made: Result<weft_cuda::CudaDevice, weft_cuda::CudaError>,
) -> Result<Box<dyn Inspect>, Error> {
    match made {
        Ok(device) => Ok(Box::new(device)),
        Err(weft_cuda::CudaError::Weights(error)) => Err(ModelError::from(error).into()),
        Err(error) => Err(Error::Gpu(error.to_string())),
    }
}

impl Chosen {
    /// The same device with a model's experts in their place.
    ///
    /// # Errors
    /// [`Error::Experts`] if the experts cannot lie there.
    pub fn with_experts(self, place: ExpertsPlace, config: &Config) -> Result<Self, Error> {
        if place == ExpertsPlace::Device {
            return Ok(self);
        }
        if config.experts.is_none() {
            return Err(Error::Experts("the model has no experts"));
        }
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(Launches::Persistent) => {
                Err(Error::Experts("a persistent kernel cannot wait for the CPU"))
            }
            #[cfg(all(feature = "cuda", feature = "cpu"))]
            Self::Cuda(_) | Self::CudaWithHostExperts => Ok(Self::CudaWithHostExperts),
            #[cfg(all(feature = "cuda", not(feature = "cpu")))]
            Self::Cuda(_) => Err(Error::Experts("this program has no CPU device")),
            #[cfg(feature = "cpu")]
            Self::Cpu => Err(Error::Experts("the model runs in main memory already, on the CPU")),
            Self::Reference => Err(Error::Experts(
                "the model runs in main memory already, on the reference device",
            )),
        }
    }

    /// The free memory of the device, if the system reports it.
    pub(crate) fn free_memory(self) -> Result<Option<u64>, Error> {
        match self {
            #[cfg(feature = "cuda")]
            _ if self.is_gpu() => {
                let facts = weft_cuda::probe().map_err(|error| Error::Gpu(error.to_string()))?;
                Ok(Some(facts.free_bytes as u64))
            }
            _ => Ok(available_memory()),
        }
    }

    /// Whether a GPU runs the plan, or all of it but the experts.
    pub(crate) fn is_gpu(self) -> bool {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => true,
            #[cfg(all(feature = "cuda", feature = "cpu"))]
            Self::CudaWithHostExperts => true,
            _ => false,
        }
    }

    /// Tests the device while `load` loads a model onto it. A GPU is tested once for its kernels
    /// and its driver, and for models with experts once more; the others at every start. The first
    /// result is none if the test failed.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn test_beside<T>(
        self,
        #[cfg_attr(not(feature = "cuda"), expect(unused_variables))] config: &Config,
        load: impl FnOnce() -> Result<T, Error>,
    ) -> Result<(Option<T>, Tested), Error> {
        #[cfg(feature = "cuda")]
        let has_experts = config.experts.is_some();
        match self {
            Self::Reference => Ok((Some(load()?), Tested::NotNeeded)),
            #[cfg(feature = "cuda")]
            Self::Cuda(launches) if self_test::cuda_has_passed(launches, has_experts) => {
                Ok((Some(load()?), Tested::Earlier))
            }
            #[cfg(feature = "cuda")]
            Self::Cuda(launches) => std::thread::scope(|scope| {
                // The test compiles its own kernels; those of the model need not wait for them.
                let test = scope.spawn(move || self_test::cuda(launches, has_experts));
                let loaded = load();
                let tested = test.join().unwrap_or_else(|_| Err("the self-test panicked".into()));
                after_test(tested, || loaded)
            }),
            #[cfg(all(feature = "cuda", feature = "cpu"))]
            Self::CudaWithHostExperts => match self_test::cpu() {
                Ok(_) => Self::Cuda(Launches::Graph).test_beside(config, load),
                Err(reason) => Ok((None, Tested::Failed(reason))),
            },
            #[cfg(feature = "cpu")]
            Self::Cpu => after_test(self_test::cpu(), load),
        }
    }

    /// Loads a model onto the device. `threads` applies to the CPU, and to experts in main memory;
    /// the default is all cores.
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
                on_gpu(weft_cuda::CudaDevice::new(config, weights, options))
            }
            #[cfg(all(feature = "cuda", feature = "cpu"))]
            Self::CudaWithHostExperts => {
                let experts = weft_cpu::CpuExperts::new(config, weights, cpu(limits, threads)?);
                let experts = Box::new(experts.map_err(ModelError::from)?);
                let options = weft_cuda::Options::new(limits);
                let made = weft_cuda::CudaDevice::with_host_experts;
                on_gpu(made(config, weights, options, experts))
            }
            #[cfg(feature = "cpu")]
            Self::Cpu => {
                let device = weft_cpu::CpuDevice::new(config, weights, cpu(limits, threads)?);
                Ok(Box::new(device.map_err(ModelError::from)?))
            }
            Self::Reference => {
                Ok(reference::open(config, weights, limits).map_err(ModelError::from)?)
            }
        }
    }
}

#[cfg(all(test, feature = "cuda", feature = "cpu"))]
mod tests {
    use weft_core::shapes;

    use super::*;

    #[test]
    fn nothing_is_loaded_onto_a_device_that_failed_its_test() {
        let load = || -> Result<i32, Error> { panic!("it is loaded") };
        let (loaded, tested) = after_test(Err("norm_qkv is off".to_owned()), load).unwrap();
        assert_eq!(loaded, None);
        assert!(matches!(&tested, Tested::Failed(reason) if reason == "norm_qkv is off"));
        let passed = self_test::cpu().unwrap();
        let (loaded, tested) = after_test(Ok(passed), || Ok(7)).unwrap();
        assert_eq!(loaded, Some(7));
        assert!(matches!(tested, Tested::Passed(_)));
    }

    #[test]
    fn experts_lie_in_main_memory_beside_a_gpu_only() {
        let [sparse, dense] =
            ["qwen3-30b-a3b", "qwen3-0.6b"].map(|name| shapes::config(name).unwrap());
        let placed = |chosen: Chosen, config| chosen.with_experts(ExpertsPlace::Cpu, config);
        for launches in [Launches::Auto, Launches::Graph, Launches::Ops] {
            let chosen = placed(Chosen::Cuda(launches), &sparse).unwrap();
            assert_eq!(chosen, Chosen::CudaWithHostExperts);
        }
        for (chosen, config, reason) in [
            (Chosen::Cuda(Launches::Auto), &dense, "the model has no experts"),
            (Chosen::Cuda(Launches::Persistent), &sparse, "persistent kernel"),
            (Chosen::Cpu, &sparse, "the model runs in main memory already, on the CPU"),
            (Chosen::Reference, &sparse, "the reference device"),
        ] {
            let refused = placed(chosen, config).unwrap_err().to_string();
            assert!(refused.contains(reason), "{chosen:?}: {refused}");
            let left = chosen.with_experts(ExpertsPlace::Device, config).unwrap();
            assert_eq!(left, chosen, "the default changes nothing");
        }
    }
}
