//! The matrix product of coded blocks: 64 rows times a few tokens, in f32.
//!
//! The products of a run of 16 or 32 columns are summed, the sum is scaled, and the scaled sums are
//! added in the order of the columns. Up to four tokens are multiplied with codes that are unpacked
//! in registers, if the instruction set can do that. For more tokens a block is unpacked once, and
//! all tiles read the unpacked codes. Both give the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(target_arch = "x86_64")]
mod unpack512;

use half::bf16;

use super::{Rows, Sums, TILE};
use crate::coded::{CodedBlock, Kind};
use crate::isa::Isa;

// The kinds of codes, as numbers that kernels are compiled for.
const UNPACKED: u8 = Kind::Unpacked as u8;
const FOUR: u8 = Kind::Four as u8;
const FIVE: u8 = Kind::Five as u8;
const SIX: u8 = Kind::Six as u8;
const INT8: u8 = Kind::Int8 as u8;
const UINT8: u8 = Kind::Uint8 as u8;
const FP8: u8 = Kind::Fp8 as u8;

/// Most tokens that are multiplied with codes directly.
const DIRECT_TOKENS: usize = 4;

/// Sums of 16 activations each, of one token; empty if no matrix needs them.
#[derive(Clone, Copy)]
pub(crate) struct RunSums<'a>(pub(crate) &'a [f32]);

impl RunSums<'_> {
    /// The sum of a run of 16 or 32 columns.
    #[inline(always)]
    fn of(self, column: usize, run: usize) -> f32 {
        let first = column / 16;
        if run == 16 { self.0[first] } else { self.0[first] + self.0[first + 1] }
    }
}

/// A kernel for `T` tokens. Its arguments are a block, rows of activations as long as the block's
/// columns, their sums, and `T` rows of sums to write.
///
/// # Safety
/// The machine supports the instruction set that the kernel was compiled for.
type Kernel<const T: usize> = unsafe fn(&CodedBlock<'_>, [&[bf16]; T], [RunSums<'_>; T], &mut Sums);

/// The kernel for one kind of codes. More than four tokens are multiplied with unpacked ones.
#[cfg(target_arch = "x86_64")]
macro_rules! of_kind {
    ($module:path, $kind:ident, $t:ident) => {{
        use $module as kernels;
        match $kind {
            Kind::Unpacked => kernels::multiply::<UNPACKED, $t>,
            _ if $t > DIRECT_TOKENS => panic!("{} tokens need unpacked codes", $t),
            Kind::Four => kernels::multiply::<FOUR, $t>,
            Kind::Five => kernels::multiply::<FIVE, $t>,
            Kind::Six => kernels::multiply::<SIX, $t>,
            Kind::Int8 => kernels::multiply::<INT8, $t>,
            Kind::Uint8 => kernels::multiply::<UINT8, $t>,
            Kind::Fp8 => kernels::multiply::<FP8, $t>,
        }
    }};
}

/// Whether a step of `n` tokens should unpack blocks first.
pub(crate) fn must_unpack(isa: Isa, n: usize) -> bool {
    isa < Isa::Avx512 || n > DIRECT_TOKENS
}

/// Turns the codes of a block into bf16, \[columns/2\]\[64\]\[2\].
pub(crate) fn unpack<'a>(isa: Isa, block: &CodedBlock<'a>, to: &'a mut [bf16]) -> CodedBlock<'a> {
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx512 {
        // SAFETY: the instruction set was checked, see `CpuDevice::new`.
        unsafe {
            match block.kind {
                Kind::Unpacked => panic!("the block is unpacked"),
                Kind::Four => unpack512::unpack_block::<FOUR>(block, to),
                Kind::Five => unpack512::unpack_block::<FIVE>(block, to),
                Kind::Six => unpack512::unpack_block::<SIX>(block, to),
                Kind::Int8 => unpack512::unpack_block::<INT8>(block, to),
                Kind::Uint8 => unpack512::unpack_block::<UINT8>(block, to),
                Kind::Fp8 => unpack512::unpack_block::<FP8>(block, to),
            }
        }
    } else if isa == Isa::Avx2 {
        // SAFETY: as above.
        unsafe { avx2::unpack_block(block, to) };
    } else {
        portable::unpack_block(block, to);
    }
    #[cfg(not(target_arch = "x86_64"))]
    portable::unpack_block(block, to);
    CodedBlock { kind: Kind::Unpacked, unpacked: to, ..*block }
}

/// The products of a block and tokens `first..first + n`, at most [`TILE`] of them.
pub(crate) fn multiply(
    isa: Isa,
    block: &CodedBlock<'_>,
    x: Rows<'_>,
    first: usize,
    n: usize,
    sums: &mut Sums,
) {
    match n {
        1 => by_tokens::<1>(isa, block, x, first, sums),
        2 => by_tokens::<2>(isa, block, x, first, sums),
        3 => by_tokens::<3>(isa, block, x, first, sums),
        4 => by_tokens::<4>(isa, block, x, first, sums),
        5 => by_tokens::<5>(isa, block, x, first, sums),
        6 => by_tokens::<6>(isa, block, x, first, sums),
        _ => panic!("{n} tokens in a tile of {TILE}"),
    }
}

fn by_tokens<const T: usize>(
    isa: Isa,
    block: &CodedBlock<'_>,
    x: Rows<'_>,
    first: usize,
    sums: &mut Sums,
) {
    let columns = block.layout.columns();
    let rows = std::array::from_fn(|t| x.row(first + t, columns));
    let x_sums = std::array::from_fn(|t| x.run_sums(first + t));
    let kernel = kernel::<T>(isa, block.kind);
    // SAFETY: an `Isa` other than `Portable` was checked, see `CpuDevice::new`.
    unsafe { kernel(block, rows, x_sums, sums) };
}

fn kernel<const T: usize>(isa: Isa, kind: Kind) -> Kernel<T> {
    #[cfg(target_arch = "x86_64")]
    match isa {
        Isa::Avx512Bf16 => return of_kind!(avx512::with_bf16, kind, T),
        Isa::Avx512 => return of_kind!(avx512::without_bf16, kind, T),
        Isa::Avx2 => return avx2::multiply::<T>,
        Isa::Portable => {}
    }
    portable::multiply::<T>
}
