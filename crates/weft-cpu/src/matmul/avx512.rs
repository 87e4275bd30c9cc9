//! The matrix product with AVX-512 without BF16: a pair of columns is two f32 vectors, by a shift
//! and by a mask.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512, _mm512_castsi512_ps, _mm512_fmadd_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_storeu_ps,
};

use half::bf16;

use super::Sums;
use crate::pack::BLOCK_ROWS;

/// Vectors of 16 rows in a block.
const VECTORS: usize = BLOCK_ROWS / 16;

/// See [`super::Kernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn multiply<const T: usize>(block: &[bf16], x: [&[bf16]; T], sums: &mut Sums) {
    let (pairs, _) = block.as_chunks::<{ 2 * BLOCK_ROWS }>();
    let x = x.map(|x| x.as_chunks::<2>().0);
    // One pass over the weights where the registers hold all sums: memory is the limit there.
    if T <= 4 {
        multiply_rows::<T, VECTORS>(pairs, x, 0, sums);
    } else {
        multiply_rows::<T, { VECTORS / 2 }>(pairs, x, 0, sums);
        multiply_rows::<T, { VECTORS / 2 }>(pairs, x, VECTORS / 2, sums);
    }
}

/// The products of `V` vectors of rows from `first` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn multiply_rows<const T: usize, const V: usize>(
    pairs: &[[bf16; 2 * BLOCK_ROWS]],
    x: [&[[bf16; 2]]; T],
    first: usize,
    sums: &mut Sums,
) {
    let mut acc = [[_mm512_setzero_ps(); V]; T];
    for (p, weights) in pairs.iter().enumerate() {
        let w: [[__m512; 2]; V] = std::array::from_fn(|v| load(weights, first + v));
        for t in 0..T {
            let [even, odd] = x[t][p];
            let x = u32::from(even.to_bits()) | u32::from(odd.to_bits()) << 16;
            let [even, odd] = widen(_mm512_set1_epi32(x.cast_signed()));
            for v in 0..V {
                acc[t][v] = _mm512_fmadd_ps(w[v][0], even, acc[t][v]);
                acc[t][v] = _mm512_fmadd_ps(w[v][1], odd, acc[t][v]);
            }
        }
    }
    for t in 0..T {
        let (parts, _) = sums[t].as_chunks_mut::<16>();
        for (acc, part) in acc[t].iter().zip(&mut parts[first..]) {
            // SAFETY: `part` is 16 f32.
            unsafe { _mm512_storeu_ps(part.as_mut_ptr(), *acc) };
        }
    }
}

/// 16 rows of a pair of columns, the even and the odd one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load(weights: &[bf16; 2 * BLOCK_ROWS], v: usize) -> [__m512; 2] {
    let part = &weights[32 * v..32 * v + 32];
    // SAFETY: `part` is 32 bf16, 64 bytes.
    let pair: __m512i = unsafe { _mm512_loadu_si512(part.as_ptr().cast()) };
    widen(pair)
}

/// The lower and the upper halves of 32-bit words, as f32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn widen(pairs: __m512i) -> [__m512; 2] {
    let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
    [even, _mm512_castsi512_ps(_mm512_and_si512(pairs, high))]
}
