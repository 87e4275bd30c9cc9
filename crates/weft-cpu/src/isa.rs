//! The vector instruction sets of this machine that have kernels, and the choice among them.

use std::env;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The environment variable that chooses the instructions, if it is set and not empty.
pub const ISA_VARIABLE: &str = "WEFT_CPU_ISA";

/// A vector instruction set with kernels, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain loops, vectorised by the compiler.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW and VL.
    Avx512,
    /// The same with AVX-512 BF16: two bf16 products per lane and instruction.
    Avx512Bf16,
}

impl Isa {
    /// All sets, in ascending order.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16];

    /// The set that `WEFT_CPU_ISA` names, or else the best set of this machine.
    ///
    /// # Errors
    /// The variable names no set, or one that this machine lacks.
    pub fn choose() -> Result<Self, IsaError> {
        match env::var_os(ISA_VARIABLE) {
            Some(name) if !name.is_empty() => name.to_string_lossy().parse(),
            _ => Ok(Self::detect()),
        }
    }

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
            Self::Avx2 => has!("avx2") && has!("fma") && has!("f16c"),
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

/// Why instructions cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum IsaError {
    /// No instructions have this name.
    #[error("there are no kernels called {0:?}; give portable, avx2, avx512 or avx512bf16")]
    Unknown(String),
    /// The machine does not have them.
    #[error("this machine has no {0}; the best it has is {best}", best = Isa::detect())]
    Missing(Isa),
}

/// Reads `portable`, `avx2`, `avx512` or `avx512bf16`, if this machine has it.
impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Self, IsaError> {
        let isa = match name {
            "portable" => Self::Portable,
            "avx2" => Self::Avx2,
            "avx512" => Self::Avx512,
            "avx512bf16" => Self::Avx512Bf16,
            _ => return Err(IsaError::Unknown(name.to_owned())),
        };
        if isa.is_available() { Ok(isa) } else { Err(IsaError::Missing(isa)) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_chooses_what_the_machine_has() {
        assert_eq!("portable".parse(), Ok(Isa::Portable));
        for (name, isa) in [("avx2", Isa::Avx2), ("avx512bf16", Isa::Avx512Bf16)] {
            let chosen = if isa.is_available() { Ok(isa) } else { Err(IsaError::Missing(isa)) };
            assert_eq!(name.parse(), chosen);
        }
        let refused = "AVX2".parse::<Isa>().unwrap_err().to_string();
        assert!(refused.contains("\"AVX2\"") && refused.contains("avx512bf16"), "{refused}");
    }
}
