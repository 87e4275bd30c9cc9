//! Weights as integers: the probability of a rank in a draw. Sums of integers do not depend on
//! their order, and nothing here rounds differently elsewhere, so all devices draw the same token.
//!
//! `l` is a rank's logit, `l_max` that of the first rank. The first two lines are f64 arithmetic:
//!
//! ```text
//! scale    = log2(e) * 2^32 / temperature
//! distance = (l_max - l) * scale, rounded down          (2^32 is half the weight; u64, saturating)
//! n, f     = distance >> 32, distance & (2^32 - 1)
//! q        = C9;  then for k = 8 to 1:  q = Ck - (q * f >> 32)
//! p        = 2^63 - ((q * f >> 32) >> 1)                (2^(63 - f / 2^32), within 2^-44 of it)
//! weight   = (p >> (23 + n)) rounded half up, 0 if n > 40
//! ```
//!
//! A weight is `exp((l - l_max) / temperature)` in units of 2^-40, to within one unit and a
//! relative error of 2^-32. It never rises as the logit falls. The rounding of f32 logits is far
//! larger.

/// The weight of the first rank.
pub(super) const ONE: u64 = 1 << ONE_BITS;
const ONE_BITS: u32 = 40;
/// The first distance at which weights are 0.
pub(super) const NOTHING_FROM: u64 = (ONE_BITS as u64 + 1) << 32;
/// Number of weights computed at once. Intermediate values stay in the L1 cache.
pub(super) const BLOCK: usize = 256;

/// `C9` to `C1` in units of 2^-64: a polynomial in f of degree 9 that is 1 at 0 and approximates
/// 2^-f, by interpolation at Chebyshev's points.
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

/// The factor from a difference of logits to a distance.
pub(super) fn scale(temperature: f32) -> f64 {
    std::f64::consts::LOG2_E * (1u64 << 32) as f64 / f64::from(temperature)
}

/// The weight of a rank whose logit is `below` less than the first one's.
pub(super) fn weight(below: f64, scale: f64) -> u64 {
    at((below * scale) as u64)
}

/// The weight at a distance.
fn at(distance: u64) -> u64 {
    if distance >= NOTHING_FROM {
        return 0;
    }
    let q = COEFFICIENTS.iter().fold(0, |q, coefficient| coefficient - times_rest(q, distance));
    rounded(power(q, distance), distance)
}

/// Replaces distances below [`NOTHING_FROM`] by their weights. Each operation runs over all
/// distances before the next one, which compilers vectorise: it takes a third of the time.
pub(super) fn replace_by_weights(distances: &mut [u64; BLOCK]) {
    let mut q = [0; BLOCK];
    for coefficient in COEFFICIENTS {
        for (q, distance) in q.iter_mut().zip(distances.iter()) {
            *q = coefficient - times_rest(*q, *distance);
        }
    }
    for (q, distance) in q.iter_mut().zip(distances.iter()) {
        *q = power(*q, *distance);
    }
    for (power, distance) in q.iter().zip(distances) {
        *distance = rounded(*power, *distance);
    }
}

/// `q * f >> 32`, by products that fit into 64 bits.
fn times_rest(q: u64, distance: u64) -> u64 {
    const LOW: u64 = (1 << 32) - 1;
    let rest = distance & LOW;
    (q >> 32) * rest + (((q & LOW) * rest) >> 32)
}

/// `p`.
fn power(q: u64, distance: u64) -> u64 {
    (1 << 63) - (times_rest(q, distance) >> 1)
}

/// `p >> (23 + n)` rounded half up.
fn rounded(power: u64, distance: u64) -> u64 {
    let all_but_one = 62 - u64::from(ONE_BITS) + (distance >> 32);
    ((power >> all_but_one) + 1) >> 1
}

/// The first distance at which weights are less than `least`, which is from 1 to [`ONE`].
pub(super) fn end_of(least: u64) -> u64 {
    let (mut inside, mut end) = (0, NOTHING_FROM);
    while end - inside > 1 {
        let middle = inside.midpoint(end);
        *(if at(middle) < least { &mut end } else { &mut inside }) = middle;
    }
    end
}

/// The smallest weight that `min_p` keeps. A rank without weight is never drawn.
pub(super) fn least(min_p: f32) -> u64 {
    // The product is exact: it only changes the exponent.
    ((f64::from(min_p) * ONE as f64).ceil() as u64).max(1)
}

/// `top_p` in units of 2^-32, rounded down.
pub(super) fn share(top_p: f32) -> u64 {
    (f64::from(top_p) * (1u64 << 32) as f64) as u64
}

/// The smallest sum that is this share of `total`; at least 1, so that the first rank is kept.
pub(super) fn border(share: u64, total: u64) -> u64 {
    ((u128::from(share) * u128::from(total)).div_ceil(1 << 32) as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn weights_of_blocks_are_those_of_the_description() {
        let described = |distance: u64| {
            let (n, f) = (distance >> 32, u128::from(distance as u32));
            let times_f = |q: u64| ((u128::from(q) * f) >> 32) as u64;
            let q = COEFFICIENTS.iter().fold(0, |q, c| c - times_f(q));
            let p = (1u64 << 63) - (times_f(q) >> 1);
            (p + (1 << (22 + n))) >> (23 + n)
        };
        for start in (0..NOTHING_FROM).step_by(1 << 26).chain([NOTHING_FROM - 256]) {
            let distances = std::array::from_fn(|i| start + i as u64 * i as u64 % 256 * 0x3_FFFF);
            let distances = distances.map(|distance: u64| distance.min(NOTHING_FROM - 1));
            let mut weights = distances;
            replace_by_weights(&mut weights);
            assert_eq!(weights, distances.map(described), "from {start}");
            assert_eq!(weights, distances.map(at), "from {start}");
        }
    }

    #[test]
    fn ends_are_exact() {
        for least in [1, 2, 3, 1000, ONE / 20, ONE / 2, ONE - 200, ONE - 1, ONE] {
            let end = end_of(least);
            assert!(at(end) < least && at(end - 1) >= least, "{least}");
        }
        assert_eq!(end_of(1), NOTHING_FROM);
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
