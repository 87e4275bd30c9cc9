//! The matrix product with AVX-512 BF16: one instruction multiplies 16 pairs of columns and adds
//! both products to 16 sums.

use std::arch::x86_64::{
    __m512, __m512bh, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps,
};

use half::bf16;

use super::Sums;
use crate::pack::BLOCK_ROWS;

/// Vectors of 16 rows in a block.
const VECTORS: usize = BLOCK_ROWS / 16;

/// Sums of `B` blocks and `T` tokens.
type Accumulators<const B: usize, const T: usize> = [[[__m512; VECTORS]; T]; B];

/// See [`super::Kernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn multiply<const T: usize>(block: &[bf16], x: [&[bf16]; T], sums: &mut Sums) {
    multiply_blocks([block], x, [sums]);
}

/// See [`super::PairKernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn multiply_pair<const T: usize>(
    blocks: [&[bf16]; 2],
    x: [&[bf16]; T],
    sums: [&mut Sums; 2],
) {
    multiply_blocks(blocks, x, sums);
}

/// `B` blocks side by side: a core reads several streams from memory faster than one.
///
/// A sum is that of the first half of the columns plus that of the second, for any `B` and `T`. One
/// token reads both halves at once, which doubles the number of streams. More tokens need the
/// registers, so they read one half after the other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn multiply_blocks<const B: usize, const T: usize>(
    blocks: [&[bf16]; B],
    x: [&[bf16]; T],
    mut sums: [&mut Sums; B],
) {
    let pairs = blocks.map(|block| block.as_chunks::<{ 2 * BLOCK_ROWS }>().0);
    let x = x.map(|x| x.as_chunks::<2>().0);
    let (middle, end) = (pairs[0].len() / 2, pairs[0].len());
    let mut first = [[[_mm512_setzero_ps(); VECTORS]; T]; B];
    let mut second = first;
    if T == 1 {
        for p in 0..middle {
            add_pair(&pairs, &x, p, &mut first);
            add_pair(&pairs, &x, middle + p, &mut second);
        }
        (2 * middle..end).for_each(|p| add_pair(&pairs, &x, p, &mut second));
        store(&first, sums.each_mut());
    } else {
        (0..middle).for_each(|p| add_pair(&pairs, &x, p, &mut first));
        store(&first, sums.each_mut());
        (middle..end).for_each(|p| add_pair(&pairs, &x, p, &mut second));
    }
    add(&second, sums);
}

/// Adds the products of one pair of columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn add_pair<const B: usize, const T: usize>(
    pairs: &[&[[bf16; 2 * BLOCK_ROWS]]; B],
    x: &[&[[bf16; 2]]; T],
    p: usize,
    acc: &mut Accumulators<B, T>,
) {
    let w: [[__m512bh; VECTORS]; B] =
        std::array::from_fn(|b| std::array::from_fn(|v| load(&pairs[b][p], v)));
    for t in 0..T {
        // The caller passes rows as long as the blocks' columns. The bounds check is cheap beside 4
        // · 16 products.
        let x = broadcast(x[t][p]);
        for b in 0..B {
            for v in 0..VECTORS {
                acc[b][t][v] = _mm512_dpbf16_ps(acc[b][t][v], w[b][v], x);
            }
        }
    }
}

/// 16 rows of a pair of columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn load(weights: &[bf16; 2 * BLOCK_ROWS], v: usize) -> __m512bh {
    let part = &weights[32 * v..32 * v + 32];
    // SAFETY: `part` is 32 bf16, 64 bytes; any bits are a valid vector.
    unsafe { std::mem::transmute(_mm512_loadu_si512(part.as_ptr().cast())) }
}

/// A pair of activations, 16 times.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn broadcast([even, odd]: [bf16; 2]) -> __m512bh {
    let bits = u32::from(even.to_bits()) | u32::from(odd.to_bits()) << 16;
    // SAFETY: both are 64 bytes, and any bits are a valid vector.
    unsafe { std::mem::transmute(_mm512_set1_epi32(bits.cast_signed())) }
}

/// sums = acc
#[inline]
#[target_feature(enable = "avx512f")]
fn store<const B: usize, const T: usize>(acc: &Accumulators<B, T>, sums: [&mut &mut Sums; B]) {
    for (acc, sums) in acc.iter().zip(sums) {
        for (acc, sums) in acc.iter().zip(sums.iter_mut()) {
            for (acc, part) in acc.iter().zip(sums.as_chunks_mut::<16>().0) {
                // SAFETY: `part` is 16 f32.
                unsafe { _mm512_storeu_ps(part.as_mut_ptr(), *acc) };
            }
        }
    }
}

/// sums += acc
#[inline]
#[target_feature(enable = "avx512f")]
fn add<const B: usize, const T: usize>(acc: &Accumulators<B, T>, sums: [&mut Sums; B]) {
    for (acc, sums) in acc.iter().zip(sums) {
        for (acc, sums) in acc.iter().zip(sums) {
            for (acc, part) in acc.iter().zip(sums.as_chunks_mut::<16>().0) {
                // SAFETY: `part` is 16 f32.
                let sum = unsafe { _mm512_loadu_ps(part.as_ptr()) };
                // SAFETY: as above.
                unsafe { _mm512_storeu_ps(part.as_mut_ptr(), _mm512_add_ps(sum, *acc)) };
            }
        }
    }
}
