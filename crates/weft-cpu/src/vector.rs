//! Elementwise arithmetic and short reductions, compiled once per instruction set.
//!
//! Each function is a plain loop in `plain`, inlined into copies that may use wider vectors. No
//! copy fuses a product and a sum, so all give the same bits. Sums use 16 partial sums, element i
//! in sum i % 16, as in the reference.

use half::bf16;

use crate::isa::Isa;

/// Partial sums of a reduction.
const PARTIALS: usize = 16;

macro_rules! versions {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)?;)*) => {
        $(
            $(#[$doc])*
            pub(crate) fn $name(isa: Isa, $($arg: $type),*) $(-> $out)? {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the machine has AVX-512, see `CpuDevice::new`.
                    Isa::Avx512 | Isa::Avx512Bf16 => unsafe { avx512::$name($($arg),*) },
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the machine has AVX2, see `CpuDevice::new`.
                    Isa::Avx2 => unsafe { avx2::$name($($arg),*) },
                    _ => plain::$name($($arg),*),
                }
            }
        )*

        #[cfg(target_arch = "x86_64")]
        mod avx512 {
            use super::{bf16, plain};
            $(
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                pub(super) fn $name($($arg: $type),*) $(-> $out)? { plain::$name($($arg),*) }
            )*
        }

        #[cfg(target_arch = "x86_64")]
        mod avx2 {
            use super::{bf16, plain};
            $(
                #[target_feature(enable = "avx2,fma")]
                pub(super) fn $name($($arg: $type),*) $(-> $out)? { plain::$name($($arg),*) }
            )*
        }
    };
}

versions! {
    /// RMSNorm of a row: rounds the normalised value, then its product with the weight.
    fn rms_norm(x: &[bf16], weight: &[f32], eps: f32, out: &mut [bf16]);
    /// to\[i\] = round(sums\[i\] + bias\[i\]); without a bias, round(sums\[i\]).
    fn store_sums(sums: &[f32], bias: Option<&[f32]>, to: &mut [bf16]);
    /// x\[i\] = round(x\[i\] + sums\[i\])
    fn add_sums(sums: &[f32], x: &mut [bf16]);
    /// to\[i\] += weight · sums\[i\]
    fn add_weighted(weight: f32, sums: &[f32], to: &mut [f32]);
    /// h\[i\] = round(silu(gate\[i\]) · up\[i\])
    fn silu_product(gate: &[f32], up: &[f32], h: &mut [bf16]);
    /// Scores → exp(score − max), and their sum.
    fn softmax(scores: &mut [f32]) -> f32;
    /// The sum of all squares.
    fn sum_squares(values: &[f32]) -> f32;
    /// to\[i\] = round(from\[i\] / divisor)
    fn store_quotients(from: &[f32], divisor: f32, to: &mut [bf16]);
}

/// e^x for x ≤ 0 or small, to about one unit in the last place; 0 below the range of f32.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, the first exact in few bits, so that n · ln 2 loses nothing.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let is_tiny = x < -87.3;
    let x = x.clamp(-87.3, 88.3);
    let shifted = x * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let p = 1.987_569_1e-4_f32;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = p * (r * r) + r + 1.0;
    let power = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    if is_tiny { 0.0 } else { power }
}

mod plain {
    use super::{PARTIALS, bf16, exp};

    /// Rounds to nearest even; NaN stays NaN.
    #[inline(always)]
    fn round(value: f32) -> bf16 {
        let bits = value.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
        bf16::from_bits(if value.is_nan() { 0x7fc0 } else { rounded })
    }

    #[inline(always)]
    fn widen(value: bf16) -> f32 {
        f32::from_bits(u32::from(value.to_bits()) << 16)
    }

    #[inline(always)]
    fn tree(mut partial: [f32; PARTIALS]) -> f32 {
        let mut n = PARTIALS;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                partial[i] += partial[i + n];
            }
        }
        partial[0]
    }

    #[inline(always)]
    pub(super) fn rms_norm(x: &[bf16], weight: &[f32], eps: f32, out: &mut [bf16]) {
        let mut partial = [0.0; PARTIALS];
        let (blocks, rest) = x.as_chunks::<PARTIALS>();
        for block in blocks {
            for i in 0..PARTIALS {
                partial[i] += widen(block[i]) * widen(block[i]);
            }
        }
        for (i, value) in rest.iter().enumerate() {
            partial[i] += widen(*value) * widen(*value);
        }
        let scale = 1.0 / (tree(partial) / x.len() as f32 + eps).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = round(widen(round(widen(*x) * scale)) * weight);
        }
    }

    #[inline(always)]
    pub(super) fn store_sums(sums: &[f32], bias: Option<&[f32]>, to: &mut [bf16]) {
        match bias {
            Some(bias) => {
                for ((to, sum), bias) in to.iter_mut().zip(sums).zip(bias) {
                    *to = round(sum + bias);
                }
            }
            None => to.iter_mut().zip(sums).for_each(|(to, sum)| *to = round(*sum)),
        }
    }

    #[inline(always)]
    pub(super) fn add_sums(sums: &[f32], x: &mut [bf16]) {
        x.iter_mut().zip(sums).for_each(|(x, sum)| *x = round(widen(*x) + sum));
    }

    #[inline(always)]
    pub(super) fn add_weighted(weight: f32, sums: &[f32], to: &mut [f32]) {
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to += weight * sum);
    }

    #[inline(always)]
    pub(super) fn silu_product(gate: &[f32], up: &[f32], h: &mut [bf16]) {
        for ((h, gate), up) in h.iter_mut().zip(gate).zip(up) {
            *h = round(gate / (1.0 + exp(-gate)) * up);
        }
    }

    #[inline(always)]
    pub(super) fn softmax(scores: &mut [f32]) -> f32 {
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut partial = [0.0; PARTIALS];
        let (blocks, rest) = scores.as_chunks_mut::<PARTIALS>();
        for block in blocks {
            for i in 0..PARTIALS {
                block[i] = exp(block[i] - max);
                partial[i] += block[i];
            }
        }
        for (i, score) in rest.iter_mut().enumerate() {
            *score = exp(*score - max);
            partial[i] += *score;
        }
        tree(partial)
    }

    #[inline(always)]
    pub(super) fn sum_squares(values: &[f32]) -> f32 {
        let mut partial = [0.0; PARTIALS];
        let (blocks, rest) = values.as_chunks::<PARTIALS>();
        for block in blocks {
            for i in 0..PARTIALS {
                partial[i] += block[i] * block[i];
            }
        }
        for (i, value) in rest.iter().enumerate() {
            partial[i] += value * value;
        }
        tree(partial)
    }

    #[inline(always)]
    pub(super) fn store_quotients(from: &[f32], divisor: f32, to: &mut [bf16]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = round(from / divisor));
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn rounding_is_to_nearest_even() {
            for bits in (0..=u32::MAX).step_by(65_521) {
                let value = f32::from_bits(bits);
                let (ours, theirs) = (round(value), bf16::from_f32(value));
                assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{value}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        for i in 0..2_000_000 {
            let x = -87.0 + i as f32 * (87.0 + 20.0) / 2_000_000.0;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON), "{worst}");
        assert_eq!((exp(-100.0), exp(f32::NEG_INFINITY), exp(0.0)), (0.0, 0.0, 1.0));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let floats: Vec<f32> = (0..203).map(|i| ((i * 71) % 199) as f32 / 23.0 - 4.0).collect();
        let halves: Vec<bf16> = floats.iter().map(|f| bf16::from_f32(*f)).collect();
        let all = |isa: Isa| {
            let mut out = vec![bf16::ZERO; 203];
            let mut results = Vec::new();
            rms_norm(isa, &halves, &floats, 1e-6, &mut out);
            results.push(out.clone());
            silu_product(isa, &floats, &floats, &mut out);
            results.push(out.clone());
            let mut scores = floats.clone();
            add_weighted(isa, 0.3, &floats, &mut scores);
            let total = softmax(isa, &mut scores);
            store_quotients(isa, &floats, total + sum_squares(isa, &scores), &mut out);
            results.push(out.clone());
            store_sums(isa, &floats, Some(&floats), &mut out);
            add_sums(isa, &floats, &mut out);
            results.push(out);
            (results, scores)
        };
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            assert_eq!(all(isa), all(Isa::Portable), "{isa}");
        }
    }
}
