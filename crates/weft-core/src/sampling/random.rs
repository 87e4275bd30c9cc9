//! Random numbers that are a function of a seed and an index, so a draw needs no state that another
//! request could disturb and a device can make the same number from the same two integers. It must
//! not know what is drawn.
//!
//! All arithmetic is on unsigned 64-bit integers, wrapping:
//!
//! ```text
//! mix(z):  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
//!          z = (z ^ (z >> 27)) * 0x94D049BB133111EB
//!          z ^ (z >> 31)                                   (the finaliser of splitmix64)
//! bits(seed, index) = mix(mix(seed) + 0x9E3779B97F4A7C15 * (index + 1))
//! u(seed, index)    = (bits >> 11) * 2^-53                 (exact in f64; 0 <= u < 1)
//! ```
//!
//! The inner `mix` keeps neighbouring seeds, which people like to use, from giving shifted copies
//! of one sequence. With seed 0 the bits are those of splitmix64 started at 0.

use std::hash::{BuildHasher, RandomState};

/// 2^64 divided by the golden ratio, odd: the step of splitmix64.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn bits(seed: u64, index: u64) -> u64 {
    mix(mix(seed).wrapping_add(STEP.wrapping_mul(index.wrapping_add(1))))
}

/// The number in `[0, 1)` that decides the draw of generated token `index` (from 0) under `seed`:
/// the upper 53 bits of `mix(mix(seed) + 0x9E3779B97F4A7C15 * (index + 1))`, times 2^-53, where
/// `mix` is the finaliser of splitmix64.
pub fn uniform(seed: u64, index: u64) -> f64 {
    // 53 bits fit an f64's mantissa, so neither the cast nor the product rounds.
    (bits(seed, index) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// `uniform(seed, index)` times `total`, rounded down exactly: a number below `total`.
pub(super) fn below(seed: u64, index: u64, total: u64) -> u64 {
    ((u128::from(bits(seed, index) >> 11) * u128::from(total)) >> 53) as u64
}

/// The seed of a request's choice number `choice` (from 0): the first keeps `seed`, the others get
/// `mix(seed + 0x9E3779B97F4A7C15 * choice)`, where `mix` is the finaliser of splitmix64. `mix` is
/// one-to-one, so all these seeds differ.
pub fn choice_seed(seed: u64, choice: u64) -> u64 {
    match choice {
        0 => seed,
        _ => mix(seed.wrapping_add(STEP.wrapping_mul(choice))),
    }
}

/// A seed for a request without one, from the system's randomness through the standard hasher's
/// keys.
pub fn random_seed() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_0_gives_the_published_sequence_of_splitmix64() {
        let first: Vec<_> = (0..3).map(|index| bits(0, index)).collect();
        assert_eq!(first, [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]);
    }

    #[test]
    fn values_for_other_implementations_to_match() {
        assert_eq!(bits(1, 0), 0xBFEF_8030_DDC2_D772);
        assert_eq!(bits(42, 1000), 0xD810_B893_B111_893A);
        assert_eq!(bits(u64::MAX, u64::MAX), 0x4BFF_D802_EBFB_15E4);
        assert_eq!(uniform(42, 1000), 0.844_005_142_266_786_1);
        assert_eq!(below(42, 1000, 1 << 53), bits(42, 1000) >> 11);
        assert_eq!((below(42, 1000, 1_000_000_007), below(42, 1000, 1)), (844_005_148, 0));
        assert_eq!(choice_seed(42, 0), 42);
        assert_eq!(choice_seed(42, 3), 0x4752_6757_130F_9F52);
    }

    /// Neighbouring seeds and neighbouring indices must look independent: the mean of products of
    /// centred values is near zero (standard deviation 1/12/sqrt(n) = 0.00083 for n = 10,000).
    #[test]
    fn neighbours_are_uncorrelated() {
        let n = 10_000u64;
        let centred = |seed, index| uniform(seed, index) - 0.5;
        let correlation = |pairs: &dyn Fn(u64) -> (f64, f64)| {
            (0..n).map(pairs).map(|(a, b)| a * b).sum::<f64>() / n as f64
        };
        let bound = 4.0 / 12.0 / (n as f64).sqrt();
        assert!(correlation(&|i| (centred(5, i), centred(5, i + 1))).abs() < bound);
        assert!(correlation(&|i| (centred(i, 0), centred(i + 1, 0))).abs() < bound);
        assert!(correlation(&|i| (centred(i, 0), centred(i, 1))).abs() < bound);
        assert!(correlation(&|i| (centred(5, i), centred(5 + STEP, i + 1))).abs() < bound);
        assert!(correlation(&|i| (centred(5, i), centred(choice_seed(5, 1), i))).abs() < bound);
    }
}
