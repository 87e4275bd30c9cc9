//! Products of coded blocks with AVX-512, with BF16 and without.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_and_si512, _mm512_castsi512_ps, _mm512_dpbf16_ps,
    _mm512_fmadd_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32,
    _mm512_storeu_ps,
};

use half::bf16;
use weft_core::dtype::Element;

use super::super::Sums;
use super::RunSums;
use super::unpack512::{VECTORS, numbers, tables, unpack};
use crate::coded::{CodedBlock, RUN};

macro_rules! kernels {
    ($module:ident, $features:literal, $dot:path) => {
        pub(super) mod $module {
            use super::*;

            /// See [`super::super::Kernel`].
            #[target_feature(enable = $features)]
            pub(in super::super) fn multiply<const K: u8, const B: usize, const T: usize>(
                blocks: [&CodedBlock<'_>; B],
                x: [&[bf16]; T],
                x_sums: [RunSums<'_>; T],
                sums: [&mut Sums; B],
            ) {
                let CodedBlock { group, run, kind, .. } = *blocks[0];
                let n_runs = x[0].len() / RUN;
                for block in blocks {
                    assert!(block.kind as u8 == K && block.run == run && block.group == group);
                }
                let mut tables = [tables::<K>(blocks[0]); B];
                let mut planes = [blocks[0].planes(n_runs); B];
                for b in 1..B {
                    tables[b] = super::tables::<K>(blocks[b]);
                    planes[b] = blocks[b].planes(n_runs);
                }
                let x: [&[[bf16; RUN]]; T] = x.map(|x| x.as_chunks().0);
                let mut total = [[[_mm512_setzero_ps(); VECTORS]; T]; B];
                // Four pairs at a time; 32 columns are one run or two.
                let words = run / 8;
                for r in 0..n_runs {
                    let mut first = 0;
                    while first < 4 {
                        let mut acc = [[[_mm512_setzero_ps(); VECTORS]; T]; B];
                        for w in first..first + words {
                            for b in 0..B {
                                for v in 0..VECTORS {
                                    // SAFETY: `planes` checked that the run is one of the block's.
                                    let pairs = unsafe {
                                        let low = planes[b][0].add(r * kind.low_bytes());
                                        let high = planes[b][1].add(r * kind.high_bytes());
                                        unpack::<K>(low, high, tables[b], w, v)
                                    };
                                    for t in 0..T {
                                        let x = &x[t][r];
                                        for (i, pair) in pairs.into_iter().enumerate() {
                                            let x = [x[8 * w + 2 * i], x[8 * w + 2 * i + 1]];
                                            acc[b][t][v] = $dot(acc[b][t][v], pair, x);
                                        }
                                    }
                                }
                            }
                        }
                        let column = r * RUN + 8 * first;
                        let of_group = column / group;
                        for b in 0..B {
                            let scales = &blocks[b].scales;
                            for v in 0..VECTORS {
                                // SAFETY: the group is one of the block's.
                                let scale = unsafe { numbers(scales, of_group, group, v) };
                                for t in 0..T {
                                    total[b][t][v] =
                                        _mm512_fmadd_ps(scale, acc[b][t][v], total[b][t][v]);
                                }
                            }
                            let Some(minimums) = &blocks[b].minimums else { continue };
                            for v in 0..VECTORS {
                                // SAFETY: as above.
                                let minimum = unsafe { numbers(minimums, of_group, group, v) };
                                for t in 0..T {
                                    let x = _mm512_set1_ps(x_sums[t].of(column, run));
                                    total[b][t][v] = _mm512_fmadd_ps(minimum, x, total[b][t][v]);
                                }
                            }
                        }
                        first += words;
                    }
                }
                for b in 0..B {
                    for t in 0..T {
                        let (parts, _) = sums[b][t].as_chunks_mut::<16>();
                        for v in 0..VECTORS {
                            // SAFETY: a part is 16 f32.
                            unsafe { _mm512_storeu_ps(parts[v].as_mut_ptr(), total[b][t][v]) };
                        }
                    }
                }
            }
        }
    };
}

kernels!(with_bf16, "avx512f,avx512bw,avx512vl,avx512bf16", dot_bf16);
kernels!(without_bf16, "avx512f,avx512bw,avx512vl", dot);

/// Adds the products of a pair of columns by one instruction.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn dot_bf16(sum: __m512, weights: __m512i, [even, odd]: [bf16; 2]) -> __m512 {
    let x = u32::from(even.to_bits()) | u32::from(odd.to_bits()) << 16;
    // SAFETY: all are 64 bytes, and any bits are a valid vector.
    unsafe {
        let x = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(x.cast_signed()));
        _mm512_dpbf16_ps(sum, std::mem::transmute::<__m512i, __m512bh>(weights), x)
    }
}

/// Adds the products of a pair of columns, widened to f32 by a shift and by a mask.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn dot(sum: __m512, weights: __m512i, [even, odd]: [bf16; 2]) -> __m512 {
    let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    let first = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(weights));
    let second = _mm512_castsi512_ps(_mm512_and_si512(weights, high));
    let sum = _mm512_fmadd_ps(first, _mm512_set1_ps(Element::to_f32(even)), sum);
    _mm512_fmadd_ps(second, _mm512_set1_ps(Element::to_f32(odd)), sum)
}
