//! The ops, one file each, and their common parts: norms, and products over pairs of blocks.

pub(crate) mod attend;
pub(crate) mod down_add;
pub(crate) mod embed;
pub(crate) mod expert_down_add;
pub(crate) mod expert_gate_up;
pub(crate) mod norm_gate_up;
pub(crate) mod norm_head;
pub(crate) mod norm_qkv;
pub(crate) mod norm_route;
pub(crate) mod proj_add;
pub(crate) mod rope_store;

use half::bf16;

use crate::CpuDevice;
use crate::buffers::Activations;
use crate::isa::Isa;
use crate::matmul::{Pair, Rows, Sums, TILE};
use crate::matrix::{Block, Matrix};
use crate::memory::Disjoint;
use crate::pack::BLOCK_ROWS;
use crate::pool::Pool;
use crate::routing::Routing;
use crate::scratch::Scratch;
use crate::vector;
use crate::weights::Projections;

/// What the ops of experts work on: the memory of a device, or of [`crate::CpuExperts`].
pub(crate) struct ExpertStep<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) isa: Isa,
    pub(crate) n_tokens: usize,
    pub(crate) mlp_norm: &'a [f32],
    pub(crate) norm_eps: f32,
    pub(crate) experts: &'a Projections,
    pub(crate) x: &'a mut Activations,
    /// Its norm, inside one op.
    pub(crate) norm: &'a mut Activations,
    /// A row for each route.
    pub(crate) h: &'a mut Activations,
    pub(crate) routing: &'a mut Routing,
    pub(crate) scratch: &'a mut [Scratch],
}

impl<'a> ExpertStep<'a> {
    /// The current step of a device.
    pub(crate) fn of(device: &'a mut CpuDevice, layer: u16) -> Self {
        let CpuDevice { config, pool, isa, weights, buffers, lists, routing, scratch, .. } = device;
        let layer = &weights.layers[usize::from(layer)];
        Self {
            pool,
            isa: *isa,
            n_tokens: lists.tokens.len(),
            mlp_norm: &layer.mlp_norm,
            norm_eps: config.norm_eps,
            experts: layer.mlp.sparse().1,
            x: &mut buffers.x,
            norm: &mut buffers.norm,
            h: &mut buffers.expert_h,
            routing,
            scratch,
        }
    }
}

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
fn n_pairs(matrix: &Matrix) -> usize {
    matrix.n_blocks().div_ceil(2)
}

/// Passes the products of one pair of blocks with rows `0..n` of x to `store(row, column, sums)`,
/// tile by tile.
fn products(
    isa: Isa,
    (matrix, pair): (&Matrix, usize),
    x: Rows<'_>,
    n: usize,
    unpacked: &mut [bf16],
    mut store: impl FnMut(usize, usize, &[f32]),
) {
    let last = matrix.n_blocks() - 1;
    let blocks = [2 * pair, (2 * pair + 1).min(last)];
    let n_blocks = blocks[1] - blocks[0] + 1;
    let weights = blocks.map(|block| matrix.block(block));
    tiles(isa, weights, x, n, unpacked, |first, tile, sums| {
        for (block, sums) in blocks[..n_blocks].iter().zip(sums) {
            for (t, sums) in sums[..tile].iter().enumerate() {
                store(first + t, block * BLOCK_ROWS, &sums[..matrix.rows_in(*block)]);
            }
        }
    });
}

/// Passes the products of two blocks with rows `0..n` of x to `store(first row, rows, sums)`, tile
/// by tile.
fn tiles(
    isa: Isa,
    blocks: [Block<'_>; 2],
    x: Rows<'_>,
    n: usize,
    unpacked: &mut [bf16],
    mut store: impl FnMut(usize, usize, &[Sums; 2]),
) {
    let pair = Pair::new(isa, blocks, n, unpacked);
    let mut sums = [[[0.0; BLOCK_ROWS]; TILE]; 2];
    for first in (0..n).step_by(TILE) {
        let tile = TILE.min(n - first);
        pair.multiply(x, first, tile, &mut sums);
        store(first, tile, &sums);
    }
}

/// x += input · matrixᵀ, rounded once.
fn add_product(
    pool: &Pool,
    isa: Isa,
    matrix: &Matrix,
    input: &mut Activations,
    x: &mut Activations,
    n_tokens: usize,
    scratch: &mut [Scratch],
) {
    if matrix.needs_sums() {
        input.sum_runs(pool, n_tokens);
    }
    let (input, stride) = (input.rows(), x.stride);
    let (x, scratch) = (Disjoint::new(x.all_mut()), Disjoint::new(scratch));
    pool.for_each(n_pairs(matrix), |thread, pair| {
        // SAFETY: each thread has its own scratch.
        let unpacked = unsafe { &mut scratch.part(thread, 1)[0].unpacked };
        products(isa, (matrix, pair), input, n_tokens, unpacked, |token, column, sums| {
            // SAFETY: each item has its own columns in every row.
            let x = unsafe { x.part(token * stride + column, sums.len()) };
            vector::add_sums(isa, sums, x);
        });
    });
}
