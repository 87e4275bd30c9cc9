//! Codes to bf16 with AVX-512: 16 rows of a pair of columns are one vector of 32 bf16. A table
//! turns codes of up to 6 bits into it by one instruction.

use std::arch::x86_64::{
    __m512, __m512i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm256_loadu_si256, _mm512_add_epi16,
    _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmplt_epu16_mask,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi16, _mm512_cvtepu8_epi32,
    _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_permutexvar_epi16, _mm512_mul_ps, _mm512_permutex2var_epi16,
    _mm512_permutexvar_epi16, _mm512_set1_epi16, _mm512_slli_epi16, _mm512_slli_epi32,
    _mm512_srl_epi16, _mm512_srli_epi16, _mm512_storeu_si512, _mm512_ternarylogic_epi32,
};

use half::bf16;
use weft_core::weights::{Scale, UNIT_COLUMNS};

use super::{FIVE, FP8, INT8, SIX, UINT8, UNPACKED};
use crate::coded::{CodedBlock, NumbersOfBlock, RUN};
use crate::pack::BLOCK_ROWS;

/// Vectors of 16 rows in a block.
pub(super) const VECTORS: usize = BLOCK_ROWS / 16;
/// Bytes of 16 rows of a pair of columns, at one byte each.
const PART: usize = 32;

/// What unpacking needs in registers.
#[derive(Clone, Copy)]
pub(super) struct Tables {
    first: __m512i,
    second: __m512i,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn tables<const K: u8>(block: &CodedBlock<'_>) -> Tables {
    // The upper halves of the 32-bit elements of two vectors.
    const UPPER: [u16; 32] = {
        let mut at = [0; 32];
        let mut i = 0;
        while i < 32 {
            at[i] = 2 * i as u16 + 1;
            i += 1;
        }
        at
    };
    // The subnormal numbers of e4m3, m / 512, as bf16.
    const SUBNORMAL: [u16; 32] = {
        let mut bits = [0; 32];
        let mut i = 0;
        while i < 8 {
            bits[i] = ((i as f32 / 512.0).to_bits() >> 16) as u16;
            i += 1;
        }
        bits
    };
    let (first, second): (*const u16, *const u16) = match K {
        INT8 | UINT8 => (UPPER.as_ptr(), UPPER.as_ptr()),
        FP8 => (SUBNORMAL.as_ptr(), SUBNORMAL.as_ptr()),
        _ => (block.table.as_ptr().cast(), block.table[32..].as_ptr().cast()),
    };
    // SAFETY: each has 32 elements of 16 bits.
    unsafe {
        Tables {
            first: _mm512_loadu_si512(first.cast()),
            second: _mm512_loadu_si512(second.cast()),
        }
    }
}

/// 16 rows of pairs 2j and 2j + 1 of a run, as bf16.
///
/// # Safety
/// `low` and `high` have a whole run of kind `K`, j < 8 and v < 4.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn unpack<const K: u8>(
    low: *const u8,
    high: *const u8,
    tables: Tables,
    j: usize,
    v: usize,
) -> [__m512i; 2] {
    // SAFETY: the caller promises that all these bytes are in the run.
    unsafe {
        match K {
            UNPACKED => {
                let at = low.add((2 * j * VECTORS + v) * 64);
                [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(VECTORS * 64).cast())]
            }
            INT8 | UINT8 => {
                let at = low.add((2 * j * VECTORS + v) * PART);
                [int8::<K>(at, tables.first), int8::<K>(at.add(VECTORS * PART), tables.first)]
            }
            FP8 => {
                let at = low.add((2 * j * VECTORS + v) * PART);
                [fp8(words(at), tables.first), fp8(words(at.add(VECTORS * PART)), tables.first)]
            }
            FIVE => {
                let bits = words(high.add((j / 4 * VECTORS + v) * PART));
                let shift = 2 * (j % 4);
                let [even, odd] = indices(low, bits, [shift, shift + 1], j, v);
                [
                    _mm512_permutexvar_epi16(even, tables.first),
                    _mm512_permutexvar_epi16(odd, tables.first),
                ]
            }
            SIX => {
                let bits = words(high.add((j / 2 * VECTORS + v) * PART));
                let shift = 4 * (j % 2);
                let [even, odd] = indices(low, bits, [shift, shift + 2], j, v);
                [
                    _mm512_permutex2var_epi16(tables.first, even, tables.second),
                    _mm512_permutex2var_epi16(tables.first, odd, tables.second),
                ]
            }
            // The table has its 16 entries twice, so bit 4 does not matter.
            _ => {
                let nibbles = words(low.add((j * VECTORS + v) * PART));
                [
                    _mm512_permutexvar_epi16(nibbles, tables.first),
                    _mm512_permutexvar_epi16(_mm512_srli_epi16::<4>(nibbles), tables.first),
                ]
            }
        }
    }
}

/// The indices of pairs 2j and 2j + 1: four bits of `low`, and those of `high` after the shifts.
/// Bits above the table's are left as they are.
///
/// # Safety
/// As for [`unpack`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn indices(
    low: *const u8,
    high: __m512i,
    shifts: [usize; 2],
    j: usize,
    v: usize,
) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    let nibbles = unsafe { words(low.add((j * VECTORS + v) * PART)) };
    let high = _mm512_slli_epi16::<4>(high);
    let shifted = |shift: usize| _mm512_srl_epi16(high, _mm_cvtsi32_si128(shift as i32));
    // 15 ? low : high
    let merge = |low, high| _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi16(15), low, high);
    [merge(nibbles, shifted(shifts[0])), merge(_mm512_srli_epi16::<4>(nibbles), shifted(shifts[1]))]
}

/// 32 bytes, each as 16 bits.
///
/// # Safety
/// There are 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn words(at: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(at.cast()) })
}

/// 32 integers as bf16: as f32, of which the upper halves are exact.
///
/// # Safety
/// There are 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn int8<const K: u8>(at: *const u8, upper: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    let (a, b) = unsafe { (_mm_loadu_si128(at.cast()), _mm_loadu_si128(at.add(16).cast())) };
    let (a, b) = match K {
        INT8 => (_mm512_cvtepi8_epi32(a), _mm512_cvtepi8_epi32(b)),
        _ => (_mm512_cvtepu8_epi32(a), _mm512_cvtepu8_epi32(b)),
    };
    let bits = |integers| _mm512_castps_si512(_mm512_cvtepi32_ps(integers));
    _mm512_permutex2var_epi16(bits(a), upper, bits(b))
}

/// e4m3 in 16 bits each, as bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn fp8(words: __m512i, subnormal: __m512i) -> __m512i {
    let magnitude = _mm512_and_si512(words, _mm512_set1_epi16(0x7f));
    let is_subnormal = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
    // Exponents have bias 7 there and 127 here.
    let normal = _mm512_add_epi16(_mm512_slli_epi16::<4>(magnitude), _mm512_set1_epi16(120 << 7));
    let bits = _mm512_mask_permutexvar_epi16(normal, is_subnormal, magnitude, subnormal);
    // 0x8000 ? sign : bits
    let sign = _mm512_slli_epi16::<8>(words);
    _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi16(i16::MIN), sign, bits)
}

/// The numbers of 16 rows for a group of `width` columns.
///
/// # Safety
/// The group is one of the block's, and v < 4.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn numbers(
    of: &NumbersOfBlock<'_>,
    group: usize,
    width: usize,
    v: usize,
) -> __m512 {
    let at = group * BLOCK_ROWS + 16 * v;
    // SAFETY: there are 64 numbers for each group, and 64 units for each 256 columns.
    unsafe {
        let start = of.numbers.as_ptr();
        match of.scale {
            Scale::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(start.add(2 * at).cast())),
            Scale::Bf16 => {
                let halves = _mm256_loadu_si256(start.add(2 * at).cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
            }
            Scale::F32 => _mm512_loadu_ps(start.add(4 * at).cast()),
            Scale::Steps => {
                let steps = _mm512_cvtepi8_epi32(_mm_loadu_si128(start.add(at).cast()));
                let unit = group * width / UNIT_COLUMNS * BLOCK_ROWS + 16 * v;
                let unit = _mm256_loadu_si256(of.units.as_ptr().add(2 * unit).cast());
                _mm512_mul_ps(_mm512_cvtph_ps(unit), _mm512_cvtepi32_ps(steps))
            }
        }
    }
}

/// Turns the codes of a block into bf16, \[columns/2\]\[64\]\[2\].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn unpack_block<const K: u8>(block: &CodedBlock<'_>, to: &mut [bf16]) {
    let tables = tables::<K>(block);
    let (low_bytes, high_bytes) = (block.kind.low_bytes(), block.kind.high_bytes());
    let (runs, _) = to.as_chunks_mut::<{ RUN * BLOCK_ROWS }>();
    let [low, high] = block.planes(runs.len());
    for (r, to) in runs.iter_mut().enumerate() {
        let (parts, _) = to.as_chunks_mut::<32>();
        for (j, v) in (0..8).flat_map(|j| (0..VECTORS).map(move |v| (j, v))) {
            // SAFETY: the run is one of the block's, see above.
            let [even, odd] = unsafe {
                unpack::<K>(low.add(r * low_bytes), high.add(r * high_bytes), tables, j, v)
            };
            for (part, pair) in [(2 * j, even), (2 * j + 1, odd)] {
                let to = parts[part * VECTORS + v].as_mut_ptr();
                // SAFETY: 32 bf16 are 64 bytes.
                unsafe { _mm512_storeu_si512(to.cast(), pair) };
            }
        }
    }
}
