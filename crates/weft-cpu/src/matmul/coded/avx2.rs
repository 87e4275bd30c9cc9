//! Products of coded blocks with AVX2, FMA and F16C: a block is unpacked first, by byte shuffles.

use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi32_si128, _mm_loadu_si64, _mm_loadu_si128, _mm256_add_epi16,
    _mm256_and_si256, _mm256_blendv_epi8, _mm256_broadcastsi128_si256, _mm256_castsi256_ps,
    _mm256_cmpgt_epi16, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16,
    _mm256_cvtepu8_epi32, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_mul_ps, _mm256_or_si256, _mm256_packus_epi16, _mm256_packus_epi32,
    _mm256_permute4x64_epi64, _mm256_set1_epi16, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_slli_epi32,
    _mm256_srl_epi16, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_storeu_si256,
    _mm256_unpackhi_epi8, _mm256_unpacklo_epi8,
};

use half::bf16;
use weft_core::dtype::Element;
use weft_core::weights::Scale;

use super::super::Sums;
use super::super::avx2::load;
use super::RunSums;
use crate::coded::{CodedBlock, Kind, Numbers, RUN, RunAt};
use crate::pack::BLOCK_ROWS;

/// Rows of one pass over the block, in two vectors of 8.
const ROWS: usize = 16;
/// Bytes of a pair of columns of a block, at one byte each.
const PAIR: usize = 2 * BLOCK_ROWS;

/// See [`super::unpack`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack_block(block: &CodedBlock<'_>, to: &mut [bf16]) {
    let kind = block.kind;
    let (runs, _) = to.as_chunks_mut::<{ RUN * BLOCK_ROWS }>();
    let start = block.start();
    let tables = Tables::new(block);
    for (run, to) in block.layout.runs().zip(runs) {
        for (pair, to) in to.as_chunks_mut::<PAIR>().0.iter_mut().enumerate() {
            for (part, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                // SAFETY: the run is one of the block's, whose length `start` checked.
                let words = unsafe {
                    let codes = start.add(run.codes);
                    let bytes = || codes.add(Kind::pair_bytes(pair, part));
                    match kind {
                        Kind::Int8 | Kind::Uint8 => {
                            [int8(kind, bytes()), int8(kind, bytes().add(16))]
                        }
                        Kind::Fp8 => [fp8(bytes(), &tables), fp8(bytes().add(16), &tables)],
                        _ => {
                            let at = |(at, bit): (usize, usize)| (codes.add(at), bit);
                            tables.lookup(kind, kind.places(pair, part).map(at))
                        }
                    }
                };
                // SAFETY: 32 bf16 are two vectors.
                unsafe {
                    _mm256_storeu_si256(to.as_mut_ptr().cast(), words[0]);
                    _mm256_storeu_si256(to.as_mut_ptr().add(16).cast(), words[1]);
                }
            }
        }
    }
}

/// The lower and the upper bytes of 16 numbers each.
struct Tables([[__m256i; 2]; 4]);

impl Tables {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(block: &CodedBlock<'_>) -> Self {
        // For e4m3: the subnormal numbers m / 512.
        let number = |i: usize| match block.kind {
            Kind::Fp8 => ((i % 8) as f32 / 512.0).to_bits() >> 16,
            _ => u32::from(block.table[i].to_bits()),
        };
        let bytes = |table: usize, shift: u32| {
            let bytes: [u8; 16] = std::array::from_fn(|i| (number(16 * table + i) >> shift) as u8);
            // SAFETY: 16 bytes.
            _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
        };
        Self(std::array::from_fn(|table| [bytes(table, 0), bytes(table, 8)]))
    }

    /// 16 rows of a pair of columns: their codes of up to 6 bits as bf16.
    ///
    /// # Safety
    /// `low` and `high` are those rows' words in a run, and the lowest bit in each.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn lookup(&self, kind: Kind, [low, high]: [(*const u8, usize); 2]) -> [__m256i; 2] {
        // SAFETY: the caller's promise.
        let (nibbles, high) = unsafe {
            let bits = match kind {
                Kind::Five => bits_of::<1>(high),
                Kind::Six => bits_of::<2>(high),
                _ => _mm256_setzero_si256(),
            };
            (bits_of::<4>(low), bits)
        };
        // A blend looks at bit 7 of each byte.
        let (first, second) = (_mm256_slli_epi16::<7>(high), _mm256_slli_epi16::<6>(high));
        let byte = |which: usize| {
            let of = |table: usize| _mm256_shuffle_epi8(self.0[table][which], nibbles);
            match kind {
                Kind::Five => _mm256_blendv_epi8(of(0), of(1), first),
                Kind::Six => {
                    let a = _mm256_blendv_epi8(of(0), of(1), first);
                    let b = _mm256_blendv_epi8(of(2), of(3), first);
                    _mm256_blendv_epi8(a, b, second)
                }
                _ => of(0),
            }
        };
        let (lower, upper) = (byte(0), byte(1));
        [_mm256_unpacklo_epi8(lower, upper), _mm256_unpackhi_epi8(lower, upper)]
    }
}

/// `BITS` bits of a pair's codes, for 16 rows, in bytes: in each half of the vector, 8 of the first
/// 16 codes come before 8 of the others.
///
/// # Safety
/// `words` points at those rows' words.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn bits_of<const BITS: usize>((words, bit): (*const u8, usize)) -> __m256i {
    let shift = _mm_cvtsi32_si128(bit as i32);
    let mask = _mm256_set1_epi16((1 << BITS) - 1);
    let half = |i: usize| {
        // SAFETY: the caller's promise.
        let words = unsafe { _mm256_loadu_si256(words.add(32 * i).cast()) };
        _mm256_and_si256(_mm256_srl_epi16(words, shift), mask)
    };
    _mm256_packus_epi16(half(0), half(1))
}

/// 16 integers as bf16: as f32, of which the upper halves are exact.
///
/// # Safety
/// There are 16 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int8(kind: Kind, at: *const u8) -> __m256i {
    let half = |at: *const u8| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { _mm_loadu_si64(at) };
        let integers = match kind {
            Kind::Int8 => _mm256_cvtepi8_epi32(bytes),
            _ => _mm256_cvtepu8_epi32(bytes),
        };
        // SAFETY: both are 32 bytes, and any bits are a valid vector.
        let bits = unsafe { std::mem::transmute::<__m256, __m256i>(_mm256_cvtepi32_ps(integers)) };
        _mm256_srli_epi32::<16>(bits)
    };
    // SAFETY: the second half is inside the 16 bytes.
    let second = unsafe { at.add(8) };
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(half(at), half(second)))
}

/// 16 numbers of e4m3 as bf16.
///
/// # Safety
/// There are 16 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fp8(at: *const u8, tables: &Tables) -> __m256i {
    // SAFETY: the caller's promise.
    let words = _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(at.cast()) });
    let magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7f));
    // Exponents have bias 7 there and 127 here.
    let normal = _mm256_add_epi16(_mm256_slli_epi16::<4>(magnitude), _mm256_set1_epi16(120 << 7));
    let [lower, upper] = tables.0[0];
    // The upper byte of each index is 0, and so is what it finds.
    let upper = _mm256_slli_epi16::<8>(_mm256_shuffle_epi8(upper, magnitude));
    let subnormal = _mm256_or_si256(_mm256_shuffle_epi8(lower, magnitude), upper);
    let is_subnormal = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude);
    let bits = _mm256_blendv_epi8(normal, subnormal, is_subnormal);
    let sign = _mm256_and_si256(_mm256_slli_epi16::<8>(words), _mm256_set1_epi16(i16::MIN));
    _mm256_or_si256(bits, sign)
}

/// See [`super::Kernel`]; needs unpacked codes.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn multiply<const T: usize>(
    block: &CodedBlock<'_>,
    x: [&[bf16]; T],
    x_sums: [RunSums<'_>; T],
    sums: &mut Sums,
) {
    sums[..T].fill([0.0; BLOCK_ROWS]);
    for first in (0..BLOCK_ROWS).step_by(ROWS) {
        for (r, at) in block.layout.runs().enumerate() {
            for column in (r * RUN..(r + 1) * RUN).step_by(block.layout.run) {
                add_run(block, &at, [column, first], x, x_sums, sums);
            }
        }
    }
}

/// Adds the scaled sums of one run for [`ROWS`] rows from `first` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_run<const T: usize>(
    block: &CodedBlock<'_>,
    at: &RunAt,
    [column, first]: [usize; 2],
    x: [&[bf16]; T],
    x_sums: [RunSums<'_>; T],
    sums: &mut Sums,
) {
    let mut acc = [[_mm256_setzero_ps(); 2]; T];
    let pairs = &block.unpacked[column * BLOCK_ROWS..][..block.layout.run * BLOCK_ROWS];
    for (p, weights) in pairs.as_chunks::<PAIR>().0.iter().enumerate() {
        let w: [[__m256; 2]; 2] = std::array::from_fn(|v| load(weights, first + 8 * v));
        for t in 0..T {
            let even = _mm256_set1_ps(Element::to_f32(x[t][column + 2 * p]));
            let odd = _mm256_set1_ps(Element::to_f32(x[t][column + 2 * p + 1]));
            for v in 0..2 {
                acc[t][v] = _mm256_fmadd_ps(w[v][0], even, acc[t][v]);
                acc[t][v] = _mm256_fmadd_ps(w[v][1], odd, acc[t][v]);
            }
        }
    }
    let half = column % RUN / (RUN / 2);
    let (scales, minimums) = (block.scales(at, half), block.minimums(at, half));
    #[allow(clippy::needless_range_loop, reason = "acc and rows are indexed alike")]
    for v in 0..2 {
        let row = first + 8 * v;
        let scale = numbers(&scales, row);
        let minimum = minimums.map(|minimums| numbers(&minimums, row));
        for t in 0..T {
            let part: &mut [f32; 8] = sums[t][row..].first_chunk_mut().expect("8 of 64 rows");
            // SAFETY: `part` is 8 f32.
            let mut sum = unsafe { _mm256_loadu_ps(part.as_ptr()) };
            sum = _mm256_fmadd_ps(scale, acc[t][v], sum);
            if let Some(minimum) = minimum {
                let x_sum = _mm256_set1_ps(x_sums[t].of(column, block.layout.run));
                sum = _mm256_fmadd_ps(minimum, x_sum, sum);
            }
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(part.as_mut_ptr(), sum) };
        }
    }
}

/// The numbers of 8 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn numbers(of: &Numbers<'_>, row: usize) -> __m256 {
    let halves = |bytes: &[u8]| {
        let part = &bytes[2 * row..2 * row + 16];
        // SAFETY: 16 bytes.
        unsafe { _mm_loadu_si128(part.as_ptr().cast()) }
    };
    match of.scale {
        Scale::F16 => _mm256_cvtph_ps(halves(of.numbers)),
        Scale::Bf16 => {
            let wide = _mm256_cvtepu16_epi32(halves(of.numbers));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
        Scale::F32 => {
            let part = &of.numbers[4 * row..4 * row + 32];
            // SAFETY: 32 bytes.
            unsafe { _mm256_loadu_ps(part.as_ptr().cast()) }
        }
        Scale::Steps => {
            let part = &of.numbers[row..row + 8];
            // SAFETY: 8 bytes.
            let steps = _mm256_cvtepi8_epi32(unsafe { _mm_loadu_si64(part.as_ptr()) });
            _mm256_mul_ps(_mm256_cvtph_ps(halves(of.units)), _mm256_cvtepi32_ps(steps))
        }
    }
}
