//! Products of coded blocks in plain loops, for machines without a specific kernel.

use half::bf16;
use weft_core::dtype::Element;

use super::super::Sums;
use super::RunSums;
use crate::coded::{CodedBlock, RUN, RunAt};
use crate::pack::BLOCK_ROWS;

/// See [`super::unpack`].
pub(super) fn unpack_block(block: &CodedBlock<'_>, to: &mut [bf16]) {
    let (runs, _) = to.as_chunks_mut::<{ RUN * BLOCK_ROWS }>();
    for (run, to) in block.layout.runs().zip(runs) {
        for (pair, to) in to.as_chunks_mut::<{ 2 * BLOCK_ROWS }>().0.iter_mut().enumerate() {
            for (i, to) in to.iter_mut().enumerate() {
                *to = bf16::from_f32(block.value(&run, i / 2, 2 * pair + i % 2));
            }
        }
    }
}

/// See [`super::Kernel`]; needs no instruction set, and unpacked codes.
pub(super) fn multiply<const T: usize>(
    block: &CodedBlock<'_>,
    x: [&[bf16]; T],
    x_sums: [RunSums<'_>; T],
    sums: &mut Sums,
) {
    let (layout, run) = (block.layout, block.layout.run);
    for t in 0..T {
        sums[t] = [0.0; BLOCK_ROWS];
        for (r, at) in layout.runs().enumerate() {
            for column in (r * RUN..(r + 1) * RUN).step_by(run) {
                let x = &x[t][column..column + run];
                add_run(block, &at, column, x, x_sums[t], &mut sums[t]);
            }
        }
    }
}

/// Adds the scaled sums of one run.
fn add_run(
    block: &CodedBlock<'_>,
    at: &RunAt,
    column: usize,
    x: &[bf16],
    x_sums: RunSums<'_>,
    sums: &mut [f32; BLOCK_ROWS],
) {
    let mut acc = [0.0_f32; BLOCK_ROWS];
    let pairs = &block.unpacked[column * BLOCK_ROWS..][..x.len() * BLOCK_ROWS];
    let (pairs, _) = pairs.as_chunks::<{ 2 * BLOCK_ROWS }>();
    for (weights, [even, odd]) in pairs.iter().zip(x.as_chunks::<2>().0) {
        let (even, odd) = (Element::to_f32(*even), Element::to_f32(*odd));
        for row in 0..BLOCK_ROWS {
            acc[row] += Element::to_f32(weights[2 * row]) * even;
            acc[row] += Element::to_f32(weights[2 * row + 1]) * odd;
        }
    }
    let half = column % RUN / (RUN / 2);
    let scales = block.scales(at, half);
    for (row, (sum, acc)) in sums.iter_mut().zip(acc).enumerate() {
        *sum += scales.get(row) * acc;
    }
    let Some(minimums) = block.minimums(at, half) else { return };
    let x_sum = x_sums.of(column, block.layout.run);
    for (row, sum) in sums.iter_mut().enumerate() {
        *sum += minimums.get(row) * x_sum;
    }
}
