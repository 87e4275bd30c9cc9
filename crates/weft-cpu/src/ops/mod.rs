//! The ops, one file each, and their common parts: norms, and products over pairs of blocks.

pub(crate) mod attend;
pub(crate) mod down_add;
pub(crate) mod embed;
pub(crate) mod norm_gate_up;
pub(crate) mod norm_head;
pub(crate) mod norm_qkv;
pub(crate) mod proj_add;
pub(crate) mod rope_store;

use crate::buffers::Activations;
use crate::isa::Isa;
use crate::matmul::{self, Rows, TILE};
use crate::memory::Disjoint;
use crate::pack::{BLOCK_ROWS, Packed};
use crate::pool::Pool;
use crate::vector;

/// norm\[i\] = rms_norm(x\[token(i)\]) for the first `n` rows of `norm`.
fn rms_norms(
    pool: &Pool,
    isa: Isa,
    (x, weight, eps): (&Activations, &[f32], f32),
    norm: &mut Activations,
    n: usize,
    token: impl Fn(usize) -> usize + Sync,
) {
    let (width, stride) = (norm.width, norm.stride);
    let out = Disjoint::new(norm.all_mut());
    pool.for_each(n, |_, i| {
        // SAFETY: each item has its own row.
        let out = unsafe { out.part(i * stride, width) };
        vector::rms_norm(isa, x.row(token(i)), weight, eps, out);
    });
}

/// Pairs of blocks of a matrix; the last may be one block.
fn n_pairs(matrix: &Packed) -> usize {
    matrix.n_blocks().div_ceil(2)
}

/// Passes the products of one pair of blocks with rows `0..n` of x to `store(row, column, sums)`,
/// tile by tile.
fn products(
    isa: Isa,
    matrix: &Packed,
    pair: usize,
    x: Rows<'_>,
    n: usize,
    mut store: impl FnMut(usize, usize, &[f32]),
) {
    let blocks = [2 * pair, (2 * pair + 1).min(matrix.n_blocks() - 1)];
    let columns = matrix.padded_columns();
    let n_blocks = blocks[1] - blocks[0] + 1;
    let mut sums = [[[0.0; BLOCK_ROWS]; TILE]; 2];
    for first in (0..n).step_by(TILE) {
        let tile = TILE.min(n - first);
        if n_blocks == 2 {
            let weights = blocks.map(|block| matrix.block(block));
            matmul::multiply_pair(isa, weights, columns, x, first, tile, &mut sums);
        } else {
            let weights = matrix.block(blocks[0]);
            matmul::multiply(isa, weights, columns, x, first, tile, &mut sums[0]);
        }
        for (block, sums) in blocks[..n_blocks].iter().zip(&sums) {
            for (t, sums) in sums[..tile].iter().enumerate() {
                store(first + t, block * BLOCK_ROWS, &sums[..matrix.rows_in(*block)]);
            }
        }
    }
}

/// x += input · matrixᵀ, rounded once.
fn add_product(
    pool: &Pool,
    isa: Isa,
    matrix: &Packed,
    input: Rows<'_>,
    x: &mut Activations,
    n_tokens: usize,
) {
    let stride = x.stride;
    let x = Disjoint::new(x.all_mut());
    pool.for_each(n_pairs(matrix), |_, pair| {
        products(isa, matrix, pair, input, n_tokens, |token, column, sums| {
            // SAFETY: each item has its own columns in every row.
            let x = unsafe { x.part(token * stride + column, sums.len()) };
            vector::add_sums(isa, sums, x);
        });
    });
}
