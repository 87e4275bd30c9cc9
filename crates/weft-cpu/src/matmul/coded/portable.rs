//! Products of coded blocks in plain loops, for machines without a specific kernel.

use half::bf16;
use weft_core::dtype::Element;

use super::super::Sums;
use super::RunSums;
use crate::coded::CodedBlock;
use crate::pack::BLOCK_ROWS;

/// See [`super::unpack`].
pub(super) fn unpack_block(block: &CodedBlock<'_>, to: &mut [bf16]) {
    for (pair, to) in to.as_chunks_mut::<{ 2 * BLOCK_ROWS }>().0.iter_mut().enumerate() {
        for (i, to) in to.iter_mut().enumerate() {
            *to = bf16::from_f32(block.value(i / 2, 2 * pair + i % 2));
        }
    }
}

/// See [`super::Kernel`]; needs no instruction set, and unpacked codes.
pub(super) fn multiply<const B: usize, const T: usize>(
    blocks: [&CodedBlock<'_>; B],
    x: [&[bf16]; T],
    x_sums: [RunSums<'_>; T],
    sums: [&mut Sums; B],
) {
    for (block, sums) in blocks.into_iter().zip(sums) {
        for t in 0..T {
            sums[t] = [0.0; BLOCK_ROWS];
            for (r, x) in x[t].chunks(block.run).enumerate() {
                let column = r * block.run;
                add_run(block, column, x, x_sums[t], &mut sums[t]);
            }
        }
    }
}

/// Adds the scaled sums of one run.
fn add_run(
    block: &CodedBlock<'_>,
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
    let group = column / block.group;
    for (row, (sum, acc)) in sums.iter_mut().zip(acc).enumerate() {
        *sum += block.scales.get(group, block.group, row) * acc;
    }
    let Some(minimums) = &block.minimums else { return };
    let x_sum = x_sums.of(column, block.run);
    for (row, sum) in sums.iter_mut().enumerate() {
        *sum += minimums.get(group, block.group, row) * x_sum;
    }
}
