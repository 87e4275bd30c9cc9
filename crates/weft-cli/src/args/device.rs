//! Flags of the device, and of the form that weights are quantised to.

use std::fmt;

use clap::{Args, ValueEnum};
use weft::ExpertsPlace;
use weft_core::weights::Coded;

use crate::size;

/// The device, and how it computes.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct DeviceArgs {
    /// Which device runs the model
    #[arg(id = "device", long = "device", value_enum, value_name = "DEVICE",
          default_value_t = DeviceKind::Auto)]
    pub(crate) kind: DeviceKind,
    /// How kernels are launched on a GPU, or the reference device
    #[arg(long, value_enum, default_value_t = Kernels::Auto)]
    pub(crate) kernels: Kernels,
    /// Where the experts of a mixture of experts are kept
    #[arg(long, value_enum, value_name = "PLACE", default_value_t = ExpertsAt::Device)]
    pub(crate) experts: ExpertsAt,
    /// Threads of the CPU device (default: all cores)
    #[arg(short, long, value_name = "N", value_parser = size::parse_threads)]
    pub(crate) threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceKind {
    /// The GPU if there is one, else the CPU
    #[default]
    Auto,
    /// An NVIDIA GPU; an error if there is none
    Cuda,
    /// The CPU
    Cpu,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kernels {
    /// The fastest that passes its self-test
    #[default]
    Auto,
    /// One persistent CUDA kernel for many tokens
    Persistent,
    /// One CUDA graph per token
    Graph,
    /// One launch per op
    Ops,
    /// Plain loops that define every op; slow
    Reference,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExpertsAt {
    /// On the device, like everything else
    #[default]
    Device,
    /// In main memory, computed by the CPU beside a GPU: for GPUs that cannot hold them
    Cpu,
}

impl ExpertsAt {
    pub(crate) fn place(self) -> ExpertsPlace {
        match self {
            Self::Device => ExpertsPlace::Device,
            Self::Cpu => ExpertsPlace::Cpu,
        }
    }
}

/// A form that weights are quantised to while they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Quantize {
    /// 8 bits and a scale for each 32 columns
    Int8,
    /// 4 bits and a scale for each 32 columns
    Int4,
}

impl Quantize {
    pub(crate) fn form(self) -> Coded {
        match self {
            Self::Int8 => Coded::int(8),
            Self::Int4 => Coded::int(4),
        }
    }
}

impl fmt::Display for Quantize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        })
    }
}
