//! The matrix product with AVX2 and FMA: as many rows at a time as sums fit the 16 registers beside
//! the widened weights, 64 for one token and 16 for four.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_and_si256, _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_loadu_si256,
    _mm256_set1_epi32, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps,
};

use half::bf16;

use super::Sums;
use crate::pack::BLOCK_ROWS;

/// Vectors of 8 rows in a block.
const VECTORS: usize = BLOCK_ROWS / 8;

/// See [`super::Kernel`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn multiply<const T: usize>(block: &[bf16], x: [&[bf16]; T], sums: &mut Sums) {
    let (pairs, _) = block.as_chunks::<{ 2 * BLOCK_ROWS }>();
    let x = x.map(|x| x.as_chunks::<2>().0);
    // As few passes over the weights as the registers allow.
    match T {
        1 => multiply_rows::<T, VECTORS>(pairs, x, 0, sums),
        2 => {
            for first in (0..VECTORS).step_by(4) {
                multiply_rows::<T, 4>(pairs, x, first, sums);
            }
        }
        _ => {
            for first in (0..VECTORS).step_by(2) {
                multiply_rows::<T, 2>(pairs, x, first, sums);
            }
        }
    }
}

/// The products of `V` vectors of rows from `first` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply_rows<const T: usize, const V: usize>(
    pairs: &[[bf16; 2 * BLOCK_ROWS]],
    x: [&[[bf16; 2]]; T],
    first: usize,
    sums: &mut Sums,
) {
    let mut acc = [[_mm256_setzero_ps(); V]; T];
    for (p, weights) in pairs.iter().enumerate() {
        for t in 0..T {
            let [even, odd] = x[t][p];
            let x = u32::from(even.to_bits()) | u32::from(odd.to_bits()) << 16;
            let [even, odd] = widen(_mm256_set1_epi32(x.cast_signed()));
            for (v, acc) in acc[t].iter_mut().enumerate() {
                let w = load(weights, 8 * (first + v));
                *acc = _mm256_fmadd_ps(w[0], even, *acc);
                *acc = _mm256_fmadd_ps(w[1], odd, *acc);
            }
        }
    }
    for t in 0..T {
        let (parts, _) = sums[t].as_chunks_mut::<8>();
        for (acc, part) in acc[t].iter().zip(&mut parts[first..]) {
            // SAFETY: `part` is 8 f32.
            unsafe { _mm256_storeu_ps(part.as_mut_ptr(), *acc) };
        }
    }
}

/// 8 rows of a pair of columns, the even and the odd one.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn load(weights: &[bf16; 2 * BLOCK_ROWS], row: usize) -> [__m256; 2] {
    let part = &weights[2 * row..2 * row + 16];
    // SAFETY: `part` is 16 bf16, 32 bytes.
    let pair: __m256i = unsafe { _mm256_loadu_si256(part.as_ptr().cast()) };
    widen(pair)
}

/// The lower and the upper halves of 32-bit words, as f32.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn widen(pairs: __m256i) -> [__m256; 2] {
    let high = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs));
    [even, _mm256_castsi256_ps(_mm256_and_si256(pairs, high))]
}
