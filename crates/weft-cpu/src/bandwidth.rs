//! Measures how fast this machine reads memory, which limits the speed of every decode step.
//!
//! The pool that runs the kernels only reads a buffer on huge pages. A kernel that only streams
//! could reach this figure, and none can exceed it.

use std::hint::black_box;
use std::time::Instant;

use crate::isa::Isa;
use crate::pool::Pool;

/// Four cache lines: the unit of reading.
#[derive(Clone, Copy)]
#[repr(C, align(256))]
struct Lines([u64; WORDS]);

const WORDS: usize = 32;

/// Number of `Lines` that a thread reads at a time: 1 MiB.
const PIECE: usize = 1 << 12;

/// A piece is read as one, two or four streams at once. Which is fastest depends on the machine's
/// prefetchers, so a figure from only one of them could be too low.
const STREAMS: [usize; 3] = [1, 2, 4];

/// One pass over the whole buffer.
#[derive(Clone, Copy, Debug)]
pub struct BandwidthSample {
    /// Streams per thread.
    pub streams: usize,
    /// Bytes read per second.
    pub bytes_per_s: f64,
}

/// Reads a buffer of `bytes` `passes` times with each number of streams, on `threads` threads. The
/// buffer must be several times larger than the caches. The first pass of each is not counted.
pub fn read_bandwidth(threads: usize, bytes: usize, passes: usize) -> Vec<BandwidthSample> {
    let pool = Pool::new(threads);
    let buffer = buffer(bytes.div_ceil(size_of::<Lines>()).next_multiple_of(PIECE));
    let isa = Isa::detect();
    let mut samples = Vec::new();
    for streams in STREAMS {
        for pass in 0..=passes {
            let start = Instant::now();
            pool.for_each(buffer.len() / PIECE, |_, piece| {
                black_box(read(isa, streams, &buffer[piece * PIECE..][..PIECE]));
            });
            let bytes_per_s = size_of_val(&*buffer) as f64 / start.elapsed().as_secs_f64();
            if pass > 0 {
                samples.push(BandwidthSample { streams, bytes_per_s });
            }
        }
    }
    samples
}

/// A buffer that has been written: pages that were never written may all be the same page of zeros.
fn buffer(len: usize) -> Vec<Lines> {
    let mut lines = Vec::with_capacity(len);
    // This must precede the first write: pages that exist already stay small.
    ask_for_huge_pages(lines.spare_capacity_mut());
    lines.resize(len, Lines([1; WORDS]));
    lines
}

/// With small pages, address translation would make the figure too low for kernels on huge pages.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(lines: &mut [std::mem::MaybeUninit<Lines>]) {
    const HUGE: usize = 2 << 20;
    let range = lines.as_mut_ptr_range();
    let (start, end) = ((range.start as usize).next_multiple_of(HUGE), range.end as usize);
    let end = end / HUGE * HUGE;
    if start < end {
        // SAFETY: the range lies inside `lines`, and the advice changes no contents. If the system
        // refuses it, pages are small.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_: &mut [std::mem::MaybeUninit<Lines>]) {}

/// Reads a piece as a number of streams. The result depends on every word, so that the compiler
/// cannot remove a read.
fn read(isa: Isa, streams: usize, piece: &[Lines]) -> u64 {
    match streams {
        1 => read_as::<1>(isa, piece),
        2 => read_as::<2>(isa, piece),
        _ => read_as::<4>(isa, piece),
    }
}

fn read_as<const S: usize>(isa: Isa, piece: &[Lines]) -> u64 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` comes from `Isa::detect`, or `is_available` was checked.
        Isa::Avx512 | Isa::Avx512Bf16 => unsafe { fold_avx512::<S>(piece) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` comes from `Isa::detect`, or `is_available` was checked.
        Isa::Avx2 => unsafe { fold_avx2::<S>(piece) },
        _ => fold::<S>(piece),
    }
}

/// The exclusive or of all words of a piece. Vector types are explicit, because compilers differ by
/// an order of magnitude on a loop that only reads.
macro_rules! fold_by_vectors {
    ($name:ident, $features:literal, $vector:ident, $zero:ident, $load:ident, $xor:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        fn $name<const S: usize>(piece: &[Lines]) -> u64 {
            use std::arch::x86_64::{$load, $vector, $xor, $zero};
            const VECTORS: usize = size_of::<Lines>() / size_of::<$vector>();
            let len = piece.len() / S;
            let mut folded = [[$zero(); VECTORS]; S];
            for i in 0..len {
                for s in 0..S {
                    let from: *const $vector = piece[s * len + i].0.as_ptr().cast();
                    for v in 0..VECTORS {
                        // SAFETY: `Lines` is `VECTORS` vectors long, and aligned to more than one.
                        folded[s][v] = $xor(folded[s][v], unsafe { $load(from.add(v)) });
                    }
                }
            }
            // SAFETY: a vector is as many words as it has bytes / 8, and any bits are words.
            let words: &[u64] = unsafe {
                std::slice::from_raw_parts(folded.as_ptr().cast(), size_of_val(&folded) / 8)
            };
            words.iter().fold(0, |all, word| all ^ word)
        }
    };
}

fold_by_vectors!(
    fold_avx512,
    "avx512f",
    __m512i,
    _mm512_setzero_si512,
    _mm512_load_si512,
    _mm512_xor_si512
);
fold_by_vectors!(
    fold_avx2,
    "avx2",
    __m256i,
    _mm256_setzero_si256,
    _mm256_load_si256,
    _mm256_xor_si256
);

/// The same as a plain loop.
fn fold<const S: usize>(piece: &[Lines]) -> u64 {
    let len = piece.len() / S;
    let mut folded = [[0; WORDS]; S];
    for i in 0..len {
        for (s, folded) in folded.iter_mut().enumerate() {
            let from = &piece[s * len + i].0;
            folded.iter_mut().zip(from).for_each(|(to, from)| *to ^= from);
        }
    }
    folded.as_flattened().iter().fold(0, |all, word| all ^ word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_reading_sees_every_word() {
        let mut piece = [Lines([1; WORDS]); 8];
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for streams in STREAMS {
                for word in 0..8 * WORDS {
                    piece[word / WORDS].0[word % WORDS] = 0x1234;
                    assert_eq!(read(isa, streams, &piece), 0x1235, "{isa} {streams} {word}");
                    piece[word / WORDS].0[word % WORDS] = 1;
                }
            }
        }
    }

    #[test]
    fn all_ways_are_sampled() {
        let samples = read_bandwidth(2, 1 << 22, 2);
        assert_eq!(samples.len(), 2 * STREAMS.len());
        assert!(samples.iter().all(|sample| sample.bytes_per_s > 0.0));
    }
}
