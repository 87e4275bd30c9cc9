//! Weights as integers: what a rank counts for in a draw. Sums of integers do not depend on their order and
//! nothing here rounds differently elsewhere, so that whoever computes them draws the same token. It must not
//! know how ranks are found or what draws are made for.
//!
//! With `l` a rank's logit, `l_max` that of the first rank, and f64 arithmetic in the first two lines:
//!
//! ```text
//! scale    = log2(e) * 2^32 / temperature
//! distance = (l_max - l) * scale, rounded down          (2^32 is half the weight; u64, saturating)
//! n, f     = distance >> 32, distance & (2^32 - 1)
//! q        = C9;  then for k = 8 to 1:  q = Ck - (q * f >> 32)
//! p        = 2^63 - ((q * f >> 32) >> 1)                (2^(63 - f / 2^32), within 2^-44 of it)
//! weight   = (p >> (23 + n)) rounded half up, 0 where n > 40
//! ```
//!
//! A weight is `exp((l - l_max) / temperature)` in units of 2^-40, to within one unit and 2^-32 of itself. It
//! never rises where the logit falls. Logits are f32: what they were rounded by is far more.

/// The weight of the first rank.
pub(super) const ONE: u64 = 1 << ONE_BITS;
const ONE_BITS: u32 = 40;

/// `C9` to `C1` in units of 2^-64: the polynomial in f of degree 9 that is 1 at 0 and 2^-f elsewhere, as near as
/// interpolation at Chebyshev's points comes.
const COEFFICIENTS: [u64; 9] = [
    0x0000_0140_F3AA_7C4A,
    0x0000_155D_E549_41DD,
    0x0000_FF1B_3319_FE1A,
    0x000A_17D2_F458_7138,
    0x0057_61D7_4B3F_265B,
    0x0276_5566_2C94_2664,
    0x0E35_846A_C0C5_CC29,
    0x3D7F_7BFE_FE4C_DD7B,
    0xB172_17F7_D1C4_08AA,
];

/// What differences of logits are multiplied by.
pub(super) fn scale(temperature: f32) -> f64 {
    std::f64::consts::LOG2_E * (1u64 << 32) as f64 / f64::from(temperature)
}

/// The weight of a rank whose logit is `below` less than the first one's.
pub(super) fn weight(below: f64, scale: f64) -> u64 {
    let distance = (below * scale) as u64;
    let (halvings, rest) = (distance >> 32, u128::from(distance as u32));
    if halvings > u64::from(ONE_BITS) {
        return 0;
    }
    let times_rest = |q: u64| ((u128::from(q) * rest) >> 32) as u64;
    let q = COEFFICIENTS.iter().fold(0, |q, coefficient| coefficient - times_rest(q));
    let power = (1 << 63) - (times_rest(q) >> 1);
    let shift = 63 - ONE_BITS + halvings as u32;
    (power + (1 << (shift - 1))) >> shift
}

/// The least weight that `min_p` leaves. A rank of no weight is never drawn.
pub(super) fn least(min_p: f32) -> u64 {
    // The product is exact: it only moves the exponent.
    ((f64::from(min_p) * ONE as f64).ceil() as u64).max(1)
}

/// `top_p` in units of 2^-32, rounded down.
pub(super) fn share(top_p: f32) -> u64 {
    (f64::from(top_p) * (1u64 << 32) as f64) as u64
}

/// The least sum of first ranks that is this share of `total`. The first rank alone always is one.
pub(super) fn border(share: u64, total: u64) -> u64 {
    ((u128::from(share) * u128::from(total)).div_ceil(1 << 32) as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The weight at a distance, which f64 holds exactly.
    fn at(distance: u64) -> u64 {
        weight(distance as f64, 1.0)
    }

    #[test]
    fn values_for_other_implementations_to_match() {
        assert_eq!((at(0), at(1), at(0x00BC_614E)), (ONE, 1_099_511_627_599, 1_097_323_121_504));
        assert_eq!((at(0x8000_0000), at(0xDEAD_BEEF)), (777_472_127_994, 601_661_609_586));
        assert_eq!((at(0x3_0000_0005), at(0x14_1234_5678)), (137_438_953_361, 998_144));
        assert_eq!((at(1 << 32), at(40 << 32), at(41 << 32)), (ONE / 2, 1, 0));
        assert_eq!((at(u64::MAX), weight(6e38, scale(f32::from_bits(1)))), (0, 0));
        assert_eq!(weight(0.0, scale(f32::from_bits(1))), ONE);
        assert_eq!(weight(6e38, scale(f32::MAX)), weight(6e38 / f64::from(f32::MAX), scale(1.0)));
    }

    #[test]
    fn weights_are_those_of_the_exponential_function() {
        for i in 0..200_000_u64 {
            let below = i as f64 * 1.5e-4;
            for temperature in [0.3_f32, 1.0, 7.0] {
                let exact = (-below / f64::from(temperature)).exp() * ONE as f64;
                let error = (weight(below, scale(temperature)) as f64 - exact).abs();
                assert!(error <= 1.0 + exact / (1u64 << 32) as f64, "{below} at {temperature}");
            }
        }
    }

    #[test]
    fn weights_never_rise_with_the_distance() {
        let neighbours = |from: u64| (from..from + 3000).map(at).collect::<Vec<_>>();
        let starts = (0..42 * 16_u64).map(|i| (i << 28).saturating_sub(1500));
        for start in starts {
            assert!(neighbours(start).is_sorted_by(|a, b| a >= b), "from {start}");
        }
    }

    #[test]
    fn borders_are_exact() {
        assert_eq!((share(1.0), share(0.5), share(1e-20)), (1 << 32, 1 << 31, 0));
        assert_eq!((border(1 << 32, 7), border(1 << 31, 7), border(1 << 31, 8)), (7, 4, 4));
        assert_eq!((border(0, 7), border(1 << 32, u64::MAX)), (1, u64::MAX));
        assert_eq!((least(0.0), least(1.0), least(0.5)), (1, ONE, ONE / 2));
        assert_eq!(least(f32::from_bits(1)), 1);
    }
}
