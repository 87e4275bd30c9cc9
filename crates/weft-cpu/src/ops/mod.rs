//! The ops, one file each, and what they share: the norm of all tokens, products over all blocks.

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
use crate::matmul::{self, Rows, Sums, TILE};
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
        // SAFETY: each item has a row of its own.
        let out = unsafe { out.part(i * stride, width) };
        vector::rms_norm(isa, x.row(token(i)), weight, eps, out);
    });
}

/// Hands the products of one block with rows `0..n` of x to `store(row, sums)`, tile by tile.
fn products(
    isa: Isa,
    matrix: &Packed,
    block: usize,
    x: Rows<'_>,
    n: usize,
    mut store: impl FnMut(usize, &[f32]),
) {
    let weights = matrix.block(block);
    let mut sums: Sums = [[0.0; BLOCK_ROWS]; TILE];
    for first in (0..n).step_by(TILE) {
        let tile = TILE.min(n - first);
        matmul::multiply(isa, weights, matrix.padded_columns(), x, first, tile, &mut sums);
        for (t, sums) in sums[..tile].iter().enumerate() {
            store(first + t, &sums[..matrix.rows_in(block)]);
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
    pool.for_each(matrix.n_blocks(), |_, block| {
        products(isa, matrix, block, input, n_tokens, |token, sums| {
            // SAFETY: each item has columns of its own in every row.
            let x = unsafe { x.part(token * stride + block * BLOCK_ROWS, sums.len()) };
            vector::add_sums(isa, sums, x);
        });
    });
}
