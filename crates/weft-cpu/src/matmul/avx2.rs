//! The matrix product with AVX2 and FMA: 16 rows at a time, so that the sums of four tokens and the
//! widened weights fit the 16 registers.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_and_si256, _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_loadu_si256,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps,
};

use half::bf16;
use weft_core::dtype::Element;

use super::Sums;
use crate::pack::BLOCK_ROWS;

/// Rows of one pass over the block, in two vectors of 8.
const ROWS: usize = 16;

/// See [`super::Kernel`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn multiply<const T: usize>(block: &[bf16], x: [&[bf16]; T], sums: &mut Sums) {
    let (pairs, _) = block.as_chunks::<{ 2 * BLOCK_ROWS }>();
    for first in (0..BLOCK_ROWS).step_by(ROWS) {
        let mut acc = [[_mm256_setzero_ps(); 2]; T];
        for (p, weights) in pairs.iter().enumerate() {
            let w: [[__m256; 2]; 2] = std::array::from_fn(|v| load(weights, first + 8 * v));
            for t in 0..T {
                let even = _mm256_set1_ps(Element::to_f32(x[t][2 * p]));
                let odd = _mm256_set1_ps(Element::to_f32(x[t][2 * p + 1]));
                for v in 0..2 {
                    acc[t][v] = _mm256_fmadd_ps(w[v][0], even, acc[t][v]);
                    acc[t][v] = _mm256_fmadd_ps(w[v][1], odd, acc[t][v]);
                }
            }
        }
        for t in 0..T {
            let (parts, _) = sums[t][first..].as_chunks_mut::<8>();
            for (acc, part) in acc[t].iter().zip(parts) {
                // SAFETY: `part` is 8 f32.
                unsafe { _mm256_storeu_ps(part.as_mut_ptr(), *acc) };
            }
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
    let high = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pair));
    [even, _mm256_castsi256_ps(_mm256_and_si256(pair, high))]
}
