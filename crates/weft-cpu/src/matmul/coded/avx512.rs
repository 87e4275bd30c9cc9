//! Products of coded blocks with AVX-512, with BF16 and without.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_and_si512, _mm512_castsi512_ps, _mm512_dpbf16_ps,
    _mm512_fmadd_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32,
    _mm512_storeu_ps,
};

use half::bf16;
use weft_core::dtype::Element;
use weft_core::weights::UNIT_COLUMNS;

use super::super::Sums;
use super::unpack512::{VECTORS, numbers, tables, units, unpack};
use super::{FIVE, RunSums, SIX, UNPACKED};
use crate::coded::{CodedBlock, Layout, RUN};
use crate::pack::BLOCK_ROWS;

macro_rules! kernels {
    ($module:ident, $features:literal, $dot:path) => {
        pub(super) mod $module {
            use super::*;

            /// See [`super::super::Kernel`].
            #[target_feature(enable = $features)]
            pub(in super::super) fn multiply<const K: u8, const T: usize>(
                block: &CodedBlock<'_>,
                x: [&[bf16]; T],
                x_sums: [RunSums<'_>; T],
                sums: &mut Sums,
            ) {
                let Layout { run, scale, minimum, .. } = *block.layout;
                assert!(block.kind as u8 == K);
                let (start, tables) = (block.start(), tables::<K>(block));
                let x: [&[[bf16; RUN]]; T] = x.map(|x| x.as_chunks().0);
                let mut total = [[_mm512_setzero_ps(); VECTORS]; T];
                let mut of_scales = [_mm512_setzero_ps(); VECTORS];
                let mut of_minimums = of_scales;
                for (r, at) in block.layout.runs().enumerate() {
                    // SAFETY: the places are inside the block, whose length `start` checked.
                    let (codes, numbers_at) = unsafe {
                        let codes = match K {
                            UNPACKED => block.unpacked.as_ptr().add(r * RUN * BLOCK_ROWS).cast(),
                            _ => start.add(at.codes),
                        };
                        // More tokens need the registers, and widen the units of every run.
                        if T > 2 || r % (UNIT_COLUMNS / RUN) == 0 {
                            let units_at = start.add(at.units);
                            of_scales = units(scale, units_at);
                            if let Some(minimum) = minimum {
                                let after = block.layout.minimum_units_after();
                                of_minimums = units(minimum, units_at.add(after));
                            }
                        }
                        (codes, at.numbers.map(|at| start.add(at)))
                    };
                    // Four pairs at a time; 32 columns are one run or two.
                    let words = run / 8;
                    let mut first = 0;
                    while first < 4 {
                        let mut acc = [[_mm512_setzero_ps(); VECTORS]; T];
                        // In the order of memory. All bounds but the outermost are constants, so
                        // that sums stay in registers.
                        let mut w = first;
                        while w < first + words {
                            for v in 0..VECTORS {
                                for w in w..w + const { at_once(K) } {
                                    // SAFETY: as above.
                                    let pairs = unsafe { unpack::<K>(codes, tables, w, v) };
                                    for t in 0..T {
                                        let x = &x[t][r];
                                        for (i, pair) in pairs.into_iter().enumerate() {
                                            let x = [x[8 * w + 2 * i], x[8 * w + 2 * i + 1]];
                                            acc[t][v] = $dot(acc[t][v], pair, x);
                                        }
                                    }
                                }
                            }
                            w += const { at_once(K) };
                        }
                        let numbers_at = numbers_at[first / 2];
                        for v in 0..VECTORS {
                            // SAFETY: as above.
                            let scale = unsafe { numbers(scale, numbers_at, &of_scales, v) };
                            for t in 0..T {
                                total[t][v] = _mm512_fmadd_ps(scale, acc[t][v], total[t][v]);
                            }
                        }
                        if let Some(minimum) = minimum {
                            let after = block.layout.minimums_after();
                            for v in 0..VECTORS {
                                // SAFETY: as above.
                                let minimum = unsafe {
                                    numbers(minimum, numbers_at.add(after), &of_minimums, v)
                                };
                                for t in 0..T {
                                    let x = x_sums[t].of(r * RUN + 8 * first, run);
                                    let x = _mm512_set1_ps(x);
                                    total[t][v] = _mm512_fmadd_ps(minimum, x, total[t][v]);
                                }
                            }
                        }
                        first += words;
                    }
                }
                store(&total, sums);
            }
        }
    };
}

kernels!(with_bf16, "avx512f,avx512bw,avx512vl,avx512bf16", dot_bf16);
kernels!(without_bf16, "avx512f,avx512bw,avx512vl", dot);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn store<const T: usize>(total: &[[__m512; VECTORS]; T], sums: &mut Sums) {
    for (total, sums) in total.iter().zip(sums) {
        for (total, part) in total.iter().zip(sums.as_chunks_mut::<16>().0) {
            // SAFETY: a part is 16 f32.
            unsafe { _mm512_storeu_ps(part.as_mut_ptr(), *total) };
        }
    }
}

/// Fours of pairs of the same rows that are read one after the other.
const fn at_once(kind: u8) -> usize {
    match kind {
        FIVE | SIX => 2,
        _ => 1,
    }
}

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
