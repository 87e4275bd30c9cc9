//! Codes to bf16 with AVX-512: 16 rows of a pair of columns are one vector of 32 bf16. A table
//! turns codes of up to 6 bits into it by one instruction.

use std::arch::x86_64::{
    __m128i, __m512, __m512i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm256_loadu_si256,
    _mm512_add_epi16, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cmplt_epu16_mask, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi16,
    _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mask_permutexvar_epi16, _mm512_mul_ps, _mm512_permutex2var_epi16,
    _mm512_permutexvar_epi16, _mm512_set1_epi16, _mm512_setzero_ps, _mm512_sll_epi16,
    _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srl_epi16, _mm512_srli_epi16, _mm512_storeu_si512,
    _mm512_ternarylogic_epi32,
};

use half::bf16;
use weft_core::weights::Scale;

use super::{FIVE, FP8, INT8, SIX, UINT8, UNPACKED};
use crate::coded::{CodedBlock, Kind, RUN};
use crate::pack::BLOCK_ROWS;

/// Vectors of 16 rows in a block.
pub(super) const VECTORS: usize = BLOCK_ROWS / 16;

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

/// 16 rows of the four pairs from 4w on of a run, as bf16.
///
/// # Safety
/// `codes` points at a run of kind `K`, w < 4 and v < 4.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn unpack<const K: u8>(
    codes: *const u8,
    tables: Tables,
    w: usize,
    v: usize,
) -> [__m512i; 4] {
    // SAFETY: the caller promises that all these bytes are in the run.
    unsafe {
        let words = |at: usize| _mm512_loadu_si512(codes.add(at).cast());
        let bytes = |i: usize| codes.add(Kind::pair_bytes(4 * w + i, v));
        match K {
            UNPACKED => std::array::from_fn(|i| words(((4 * w + i) * VECTORS + v) * 64)),
            INT8 | UINT8 => std::array::from_fn(|i| int8::<K>(bytes(i), tables.first)),
            FP8 => std::array::from_fn(|i| fp8(bytes(i), tables.first)),
            FIVE => {
                let [(low, _), (high, _)] = Kind::Five.places(4 * w, v);
                let high = _mm512_srl_epi16(words(high), count(4 * w));
                indices(words(low), high).map(|index| _mm512_permutexvar_epi16(index, tables.first))
            }
            SIX => {
                let [(start, _), _] = Kind::Six.places(8 * (w / 2), v);
                six(w, words(start), words(start + 64), words(start + 128))
                    .map(|index| _mm512_permutex2var_epi16(tables.first, index, tables.second))
            }
            // The table has its 16 entries twice, so bit 4 does not matter.
            _ => nibbles(words(Kind::Four.places(4 * w, v)[0].0))
                .map(|index| _mm512_permutexvar_epi16(index, tables.first)),
        }
    }
}

/// The codes of four pairs, each in the lowest bits of a word; those above are left as they are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn nibbles(words: __m512i) -> [__m512i; 4] {
    [
        words,
        _mm512_srli_epi16::<4>(words),
        _mm512_srli_epi16::<8>(words),
        _mm512_srli_epi16::<12>(words),
    ]
}

/// The indices of four pairs: four bits of `low` each, and above them a bit of `high` each. Bits
/// above the table's are left as they are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn indices(low: __m512i, high: __m512i) -> [__m512i; 4] {
    let low = nibbles(low);
    std::array::from_fn(|i| above_four(low[i], _mm512_sll_epi16(high, count(4 - i))))
}

/// The indices of the first or the last four of eight pairs in three words, see [`Kind::places`].
/// Bits above six are left as they are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn six(w: usize, a: __m512i, b: __m512i, c: __m512i) -> [__m512i; 4] {
    if w.is_multiple_of(2) {
        return [a, _mm512_srli_epi16::<6>(a), b, _mm512_srli_epi16::<6>(b)];
    }
    [
        c,
        _mm512_srli_epi16::<6>(c),
        above_four(_mm512_srli_epi16::<12>(a), _mm512_srli_epi16::<8>(c)),
        above_four(_mm512_srli_epi16::<12>(b), _mm512_srli_epi16::<10>(c)),
    ]
}

/// The lower four bits of `low`, and above them the bits of `high`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn above_four(low: __m512i, high: __m512i) -> __m512i {
    // 15 ? low : high
    _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi16(15), low, high)
}

/// A number of bits to shift by.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn count(bits: usize) -> __m128i {
    _mm_cvtsi32_si128(bits as i32)
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

/// 32 numbers of e4m3 as bf16.
///
/// # Safety
/// There are 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn fp8(at: *const u8, subnormal: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    let words = _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(at.cast()) });
    let magnitude = _mm512_and_si512(words, _mm512_set1_epi16(0x7f));
    let is_subnormal = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
    // Exponents have bias 7 there and 127 here.
    let normal = _mm512_add_epi16(_mm512_slli_epi16::<4>(magnitude), _mm512_set1_epi16(120 << 7));
    let bits = _mm512_mask_permutexvar_epi16(normal, is_subnormal, magnitude, subnormal);
    // 0x8000 ? sign : bits
    let sign = _mm512_slli_epi16::<8>(words);
    _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi16(i16::MIN), sign, bits)
}

/// What steps are multiples of, for the 64 rows of a block. Other numbers have no units.
pub(super) type Units = [__m512; VECTORS];

/// # Safety
/// If the numbers are steps, `at` points at 64 units.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn units(scale: Scale, at: *const u8) -> Units {
    if scale != Scale::Steps {
        return [_mm512_setzero_ps(); VECTORS];
    }
    // SAFETY: the caller's promise.
    std::array::from_fn(|v| unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.add(32 * v).cast())) })
}

/// The numbers of 16 rows.
///
/// # Safety
/// `at` points at 64 numbers, and v < 4.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn numbers(scale: Scale, at: *const u8, units: &Units, v: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        match scale {
            Scale::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(at.add(32 * v).cast())),
            Scale::Bf16 => {
                let halves = _mm256_loadu_si256(at.add(32 * v).cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
            }
            Scale::F32 => _mm512_loadu_ps(at.add(64 * v).cast()),
            Scale::Steps => {
                let steps = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.add(16 * v).cast()));
                _mm512_mul_ps(units[v], _mm512_cvtepi32_ps(steps))
            }
        }
    }
}

/// Turns the codes of a block into bf16, \[columns/2\]\[64\]\[2\].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn unpack_block<const K: u8>(block: &CodedBlock<'_>, to: &mut [bf16]) {
    let tables = tables::<K>(block);
    let (runs, _) = to.as_chunks_mut::<{ RUN * BLOCK_ROWS }>();
    let start = block.start();
    for (run, to) in block.layout.runs().zip(runs) {
        let (parts, _) = to.as_chunks_mut::<32>();
        for (w, v) in (0..4).flat_map(|w| (0..VECTORS).map(move |v| (w, v))) {
            // SAFETY: the run is one of the block's, whose length `start` checked.
            let pairs = unsafe { unpack::<K>(start.add(run.codes), tables, w, v) };
            for (i, pair) in pairs.into_iter().enumerate() {
                let to = parts[(4 * w + i) * VECTORS + v].as_mut_ptr();
                // SAFETY: 32 bf16 are 64 bytes.
                unsafe { _mm512_storeu_si512(to.cast(), pair) };
            }
        }
    }
}
