//! The matrix product: a block of 64 rows times a few tokens, in f32.
//!
//! A kernel takes up to [`TILE`] tokens at once and reads the block's weights once for them. The
//! order in which it adds up an output's columns is the same for any tile: a token's results do not
//! depend on its neighbours. Most kernels make one sum over the columns in order; that of AVX-512
//! BF16 adds the sum of the second half to that of the first. So kernels of different instruction
//! sets may differ in the last bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512bf16;
mod coded;
mod portable;

use half::bf16;

use crate::isa::Isa;
use crate::matrix::Block;
use crate::pack::BLOCK_ROWS;

use coded::RunSums;

/// Tokens per pass over a block.
pub(crate) const TILE: usize = 6;

/// Sums of one tile: f32 \[tokens\]\[64 rows\].
pub(crate) type Sums = [[f32; BLOCK_ROWS]; TILE];

/// Rows of activations, bf16 \[tokens\]\[stride\].
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) values: &'a [bf16],
    pub(crate) stride: usize,
    /// Sums of 16 activations each, \[tokens\]\[stride/16\]; only codes with minimums need them.
    pub(crate) sums: &'a [f32],
    /// The row of each token; if there is none, token i has row i.
    pub(crate) order: Option<&'a [u32]>,
}

impl<'a> Rows<'a> {
    fn row(&self, token: usize, columns: usize) -> &'a [bf16] {
        &self.values[self.index(token) * self.stride..][..columns]
    }

    fn index(&self, token: usize) -> usize {
        self.order.map_or(token, |order| order[token] as usize)
    }

    fn run_sums(&self, token: usize) -> RunSums<'a> {
        RunSums(self.sums.get(self.index(token) * self.stride / 16..).unwrap_or_default())
    }
}

/// Two blocks, ready to be multiplied with any number of tokens.
pub(crate) struct Pair<'a> {
    isa: Isa,
    blocks: [Block<'a>; 2],
}

impl<'a> Pair<'a> {
    /// Prepares blocks for products with `n` tokens: codes may be unpacked into `unpacked`, which
    /// has room for both blocks.
    pub(crate) fn new(
        isa: Isa,
        [a, b]: [Block<'a>; 2],
        n: usize,
        unpacked: &'a mut [bf16],
    ) -> Self {
        let (first, second) = match coded::must_unpack(isa, n) {
            true => unpacked.split_at_mut(unpacked.len() / 2),
            false => (Default::default(), Default::default()),
        };
        let prepare = |block: Block<'a>, room: &'a mut [bf16]| match block {
            Block::Coded(codes) if coded::must_unpack(isa, n) => {
                let room = &mut room[..codes.layout.columns() * BLOCK_ROWS];
                Block::Coded(coded::unpack(isa, &codes, room))
            }
            block => block,
        };
        Self { isa, blocks: [prepare(a, first), prepare(b, second)] }
    }

    /// The products of both blocks and tokens `first..first + n`, at most [`TILE`] of them. The
    /// activations have as many columns as each block.
    pub(crate) fn multiply(&self, x: Rows<'_>, first: usize, n: usize, sums: &mut [Sums; 2]) {
        let isa = self.isa;
        match &self.blocks {
            [Block::Plain(a), Block::Plain(b)] => {
                multiply_pair(isa, [a, b], a.len() / BLOCK_ROWS, x, first, n, sums);
            }
            blocks => {
                for (block, sums) in blocks.iter().zip(sums) {
                    match block {
                        Block::Plain(block) => {
                            multiply(isa, block, block.len() / BLOCK_ROWS, x, first, n, sums);
                        }
                        Block::Coded(block) => coded::multiply(isa, block, x, first, n, sums),
                    }
                }
            }
        }
    }
}

/// A kernel for `T` tokens. Its arguments are the weights of a block, `T` rows of activations as
/// long as the block's columns, and `T` rows of sums to write.
///
/// # Safety
/// The machine supports the instruction set that the kernel was compiled for.
type Kernel<const T: usize> = unsafe fn(&[bf16], [&[bf16]; T], &mut Sums);

/// The kernels of one instruction set, by number of tokens.
struct Kernels {
    one: Kernel<1>,
    two: Kernel<2>,
    three: Kernel<3>,
    four: Kernel<4>,
    five: Kernel<5>,
    six: Kernel<6>,
}

macro_rules! kernels {
    ($module:ident) => {
        Kernels {
            one: $module::multiply::<1>,
            two: $module::multiply::<2>,
            three: $module::multiply::<3>,
            four: $module::multiply::<4>,
            five: $module::multiply::<5>,
            six: $module::multiply::<6>,
        }
    };
}

fn kernels(isa: Isa) -> &'static Kernels {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => &const { kernels!(avx512bf16) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &const { kernels!(avx512) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &const { kernels!(avx2) },
        _ => &const { kernels!(portable) },
    }
}

/// The product of a block and tokens `first..first + n`, at most [`TILE`] of them. `columns`
/// includes padding, and the activations have as many.
pub(crate) fn multiply(
    isa: Isa,
    block: &[bf16],
    columns: usize,
    x: Rows<'_>,
    first: usize,
    n: usize,
    sums: &mut Sums,
) {
    assert_eq!(block.len(), columns * BLOCK_ROWS);
    let row = |t: usize| x.row(first + t, columns);
    let k = kernels(isa);
    // SAFETY: an `Isa` other than `Portable` comes from `Isa::detect`, or `is_available` was
    // checked; see `CpuDevice::new`.
    unsafe {
        match n {
            1 => (k.one)(block, [row(0)], sums),
            2 => (k.two)(block, [row(0), row(1)], sums),
            3 => (k.three)(block, [row(0), row(1), row(2)], sums),
            4 => (k.four)(block, [row(0), row(1), row(2), row(3)], sums),
            5 => (k.five)(block, [row(0), row(1), row(2), row(3), row(4)], sums),
            6 => (k.six)(block, [row(0), row(1), row(2), row(3), row(4), row(5)], sums),
            _ => panic!("{n} tokens in a tile of {TILE}"),
        }
    }
}

/// A kernel for two blocks of the same shape and `T` tokens, see [`Kernel`].
#[cfg(target_arch = "x86_64")]
type PairKernel<const T: usize> = unsafe fn([&[bf16]; 2], [&[bf16]; T], [&mut Sums; 2]);

/// The product of two blocks and a tile, each as in [`multiply`]. For few tokens, when memory is
/// the limit, both blocks are read at the same time.
fn multiply_pair(
    isa: Isa,
    blocks: [&[bf16]; 2],
    columns: usize,
    x: Rows<'_>,
    first: usize,
    n: usize,
    sums: &mut [Sums; 2],
) {
    assert!(blocks.iter().all(|block| block.len() == columns * BLOCK_ROWS));
    let [a, b] = sums;
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512Bf16 && n <= 2 {
        const ONE: PairKernel<1> = avx512bf16::multiply_pair::<1>;
        const TWO: PairKernel<2> = avx512bf16::multiply_pair::<2>;
        let row = |t: usize| x.row(first + t, columns);
        // SAFETY: as in `multiply`.
        unsafe {
            match n {
                1 => ONE(blocks, [row(0)], [a, b]),
                _ => TWO(blocks, [row(0), row(1)], [a, b]),
            }
        }
        return;
    }
    multiply(isa, blocks[0], columns, x, first, n, a);
    multiply(isa, blocks[1], columns, x, first, n, b);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// bf16 values of mixed size and sign.
    fn numbers(n: usize, seed: usize) -> Vec<bf16> {
        (0..n).map(|i| bf16::from_f32(((i * 37 + seed * 11) % 97) as f32 / 31.0 - 1.5)).collect()
    }

    fn product(isa: Isa, columns: usize, tokens: usize) -> Vec<[f32; BLOCK_ROWS]> {
        let block = numbers(columns * BLOCK_ROWS, 1);
        let values = numbers(columns * tokens, 2);
        let mut out = Vec::new();
        for first in (0..tokens).step_by(TILE) {
            let n = TILE.min(tokens - first);
            let mut sums = [[f32::NAN; BLOCK_ROWS]; TILE];
            multiply(
                isa,
                &block,
                columns,
                Rows { values: &values, stride: columns, sums: &[], order: None },
                first,
                n,
                &mut sums,
            );
            out.extend_from_slice(&sums[..n]);
        }
        out
    }

    #[test]
    fn every_instruction_set_computes_the_product() {
        for columns in [2, 4, 30, 64, 258] {
            let block = numbers(columns * BLOCK_ROWS, 1);
            let x = numbers(columns * 13, 2);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                for (t, sums) in product(isa, columns, 13).iter().enumerate() {
                    for (row, sum) in sums.iter().enumerate() {
                        let exact: f64 = (0..columns)
                            .map(|c| {
                                let w = block[c / 2 * 2 * BLOCK_ROWS + row * 2 + c % 2];
                                w.to_f64() * x[t * columns + c].to_f64()
                            })
                            .sum();
                        let error = (f64::from(*sum) - exact).abs();
                        assert!(
                            error < 1e-5 * columns as f64,
                            "{isa} {columns} {t} {row}: {error}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_pair_of_blocks_is_two_blocks() {
        let columns = 66;
        let both = numbers(2 * columns * BLOCK_ROWS, 3);
        let (a, b) = both.split_at(columns * BLOCK_ROWS);
        let values = numbers(columns * TILE, 2);
        let x = Rows { values: &values, stride: columns, sums: &[], order: None };
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for n in 1..=TILE {
                let zeros = || [[0.0; BLOCK_ROWS]; TILE];
                let (mut pair, mut apart) = ([zeros(), zeros()], [zeros(), zeros()]);
                multiply_pair(isa, [a, b], columns, x, 0, n, &mut pair);
                multiply(isa, a, columns, x, 0, n, &mut apart[0]);
                multiply(isa, b, columns, x, 0, n, &mut apart[1]);
                assert_eq!(pair, apart, "{isa} {n}");
            }
        }
    }

    #[test]
    fn neighbours_in_a_tile_do_not_show() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let many = product(isa, 66, 11);
            for tokens in 1..11 {
                assert_eq!(product(isa, 66, tokens), many[..tokens], "{isa}");
            }
        }
    }
}
