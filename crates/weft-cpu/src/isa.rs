//! The vector instruction sets of this machine that have kernels.

use std::fmt;

/// A vector instruction set with kernels, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain loops, vectorised by the compiler.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW and VL.
    Avx512,
    /// The same with AVX-512 BF16: two bf16 products per lane and instruction.
    Avx512Bf16,
}

impl Isa {
    /// All sets, in ascending order.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16];

    /// The best set of this machine.
    pub fn detect() -> Self {
        *Self::ALL.iter().rev().find(|isa| isa.is_available()).expect("portable always is")
    }

    /// Whether this machine supports it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        use std::is_x86_feature_detected as has;
        match self {
            Self::Portable => true,
            Self::Avx2 => has!("avx2") && has!("fma"),
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512vl")
                    && has!("avx512dq")
            }
            Self::Avx512Bf16 => Self::Avx512.is_available() && has!("avx512bf16"),
        }
    }

    /// Whether this machine supports it.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        self == Self::Portable
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512",
            Self::Avx512Bf16 => "AVX-512 BF16",
        })
    }
}
