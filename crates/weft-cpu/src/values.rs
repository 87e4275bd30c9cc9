//! The second half of attention: sums of value rows, weighted by probabilities, for several queries
//! that read the same rows.
//!
//! Each sum adds its rows in order, for any number of queries.

use half::bf16;

use crate::isa::Isa;
use crate::matmul::TILE;
use crate::memory::LINE;

/// Adds Σ weight(query, row) · value(row) to each query's sums.
///
/// `weights` is one slice per query, each as long as the number of rows; `values` are bf16
/// \[rows\]\[stride\]; `sums` are f32 \[queries\]\[stride\]. The stride is a multiple of [`LINE`].
pub(crate) fn add_values(
    isa: Isa,
    weights: &[&[f32]],
    values: &[bf16],
    stride: usize,
    sums: &mut [f32],
) {
    let n_rows = values.len() / stride;
    assert!(stride.is_multiple_of(LINE) && weights.len() <= TILE);
    assert!(weights.iter().all(|weights| weights.len() == n_rows));
    assert!(sums.len() >= weights.len() * stride);
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has AVX-512, see `CpuDevice::new`; the lengths are checked above.
        Isa::Avx512 | Isa::Avx512Bf16 => unsafe {
            match *weights {
                [a] => avx512::add([a], values, stride, sums),
                [a, b] => avx512::add([a, b], values, stride, sums),
                [a, b, c] => avx512::add([a, b, c], values, stride, sums),
                [a, b, c, d] => avx512::add([a, b, c, d], values, stride, sums),
                [a, b, c, d, e] => avx512::add([a, b, c, d, e], values, stride, sums),
                [a, b, c, d, e, f] => avx512::add([a, b, c, d, e, f], values, stride, sums),
                _ => {}
            }
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has AVX2, see `CpuDevice::new`.
        Isa::Avx2 => unsafe { avx2(weights, values, stride, sums) },
        _ => plain(weights, values, stride, sums),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(weights: &[&[f32]], values: &[bf16], stride: usize, sums: &mut [f32]) {
    plain(weights, values, stride, sums);
}

#[inline(always)]
fn plain(weights: &[&[f32]], values: &[bf16], stride: usize, sums: &mut [f32]) {
    for (weights, sums) in weights.iter().zip(sums.chunks_exact_mut(stride)) {
        for (weight, row) in weights.iter().zip(values.chunks_exact(stride)) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += weight * f32::from_bits(u32::from(value.to_bits()) << 16);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{
        __m512, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_and_si512, _mm512_castsi512_ps,
        _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_permutex2var_ps,
        _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps,
    };

    use super::{LINE, bf16};

    /// Distance of prefetching.
    const AHEAD_BYTES: usize = 2048;

    /// The sums of `Q` queries. Takes as many columns at a time as the registers hold, so that rows
    /// are read in order.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn add<const Q: usize>(
        weights: [&[f32]; Q],
        values: &[bf16],
        stride: usize,
        sums: &mut [f32],
    ) {
        let at_once = if Q <= 2 { 4 } else { 2 };
        let mut line = 0;
        while line < stride / LINE {
            let left = stride / LINE - line;
            line += match left.min(at_once) {
                4 => add_lines::<Q, 4>(&weights, values, stride, line, sums),
                2 | 3 => add_lines::<Q, 2>(&weights, values, stride, line, sums),
                _ => add_lines::<Q, 1>(&weights, values, stride, line, sums),
            };
        }
    }

    /// The sums of `C` cache lines of columns, which stay in registers for all rows. Returns `C`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn add_lines<const Q: usize, const C: usize>(
        weights: &[&[f32]; Q],
        values: &[bf16],
        stride: usize,
        line: usize,
        sums: &mut [f32],
    ) -> usize {
        let first = line * LINE;
        let mut acc: [[[__m512; 2]; C]; Q] = std::array::from_fn(|q| {
            std::array::from_fn(|c| load_sums(&sums[q * stride + first + c * LINE..][..LINE]))
        });
        for (r, row) in values.chunks_exact(stride).enumerate() {
            let v: [[__m512; 2]; C] = std::array::from_fn(|c| {
                let part = &row[first + c * LINE..][..LINE];
                let ahead = part.as_ptr().wrapping_byte_add(AHEAD_BYTES);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                widen(part)
            });
            for q in 0..Q {
                let w = _mm512_set1_ps(weights[q][r]);
                for c in 0..C {
                    acc[q][c][0] = _mm512_fmadd_ps(w, v[c][0], acc[q][c][0]);
                    acc[q][c][1] = _mm512_fmadd_ps(w, v[c][1], acc[q][c][1]);
                }
            }
        }
        for q in 0..Q {
            for c in 0..C {
                store_sums(acc[q][c], &mut sums[q * stride + first + c * LINE..][..LINE]);
            }
        }
        C
    }

    /// The even and the odd elements of a line, by a shift and a mask. Widening them in order would
    /// move them across the vector.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn widen(line: &[bf16]) -> [__m512; 2] {
        let line: &[bf16; LINE] = line.try_into().expect("a line");
        // SAFETY: 32 bf16, 64 bytes.
        let pairs: __m512i = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
        let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
        [even, _mm512_castsi512_ps(_mm512_and_si512(pairs, high))]
    }

    /// Lanes of two vectors, those of the second from 16 on.
    type Lanes = [i32; 16];
    const EVEN: Lanes = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];
    const ODD: Lanes = [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31];
    const LOW: Lanes = [0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23];
    const HIGH: Lanes = [8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31];

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn pick([a, b]: [__m512; 2], lanes: &Lanes) -> __m512 {
        // SAFETY: 16 i32.
        let lanes = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
        _mm512_permutex2var_ps(a, lanes, b)
    }

    /// The even and the odd sums of a line.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load_sums(line: &[f32]) -> [__m512; 2] {
        let line: &[f32; LINE] = line.try_into().expect("a line");
        // SAFETY: the halves of 32 f32.
        let halves =
            unsafe { [_mm512_loadu_ps(line.as_ptr()), _mm512_loadu_ps(line.as_ptr().add(16))] };
        [pick(halves, &EVEN), pick(halves, &ODD)]
    }

    /// Restores the order of even and odd sums.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn store_sums(sums: [__m512; 2], line: &mut [f32]) {
        let line: &mut [f32; LINE] = line.try_into().expect("a line");
        // SAFETY: the halves of 32 f32.
        unsafe {
            _mm512_storeu_ps(line.as_mut_ptr(), pick(sums, &LOW));
            _mm512_storeu_ps(line.as_mut_ptr().add(16), pick(sums, &HIGH));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIDE: usize = 2 * LINE;

    fn sums(isa: Isa, queries: usize, rows: usize) -> Vec<f32> {
        let values: Vec<bf16> = (0..rows * STRIDE)
            .map(|i| bf16::from_f32(((i * 29) % 83) as f32 / 41.0 - 1.0))
            .collect();
        let weights: Vec<Vec<f32>> = (0..queries)
            .map(|q| (0..rows).map(|r| ((q * 31 + r * 7) % 19) as f32 / 19.0).collect())
            .collect();
        let weights: Vec<&[f32]> = weights.iter().map(Vec::as_slice).collect();
        let mut sums = vec![0.5; queries * STRIDE];
        add_values(isa, &weights, &values, STRIDE, &mut sums);
        sums
    }

    #[test]
    fn every_instruction_set_adds_the_rows() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for (queries, rows) in [(1, 1), (2, 64), (5, 33), (6, 64)] {
                let plain = sums(Isa::Portable, queries, rows);
                for (ours, plain) in sums(isa, queries, rows).iter().zip(&plain) {
                    assert!((ours - plain).abs() < 1e-4, "{isa} {queries} {rows}");
                }
            }
        }
    }

    #[test]
    fn other_queries_do_not_show() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let all = sums(isa, TILE, 50);
            for queries in 1..TILE {
                assert_eq!(sums(isa, queries, 50), all[..queries * STRIDE], "{isa}");
            }
        }
    }
}
