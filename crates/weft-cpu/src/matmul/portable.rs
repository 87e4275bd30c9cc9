//! The matrix product in plain loops, for machines without a specific kernel.

use half::bf16;
use weft_core::dtype::Element;

use super::Sums;
use crate::pack::BLOCK_ROWS;

/// See [`super::Kernel`]; needs no instruction set.
pub(super) fn multiply<const T: usize>(block: &[bf16], x: [&[bf16]; T], sums: &mut Sums) {
    for t in 0..T {
        let mut sum = [0.0_f32; BLOCK_ROWS];
        let (pairs, _) = block.as_chunks::<{ 2 * BLOCK_ROWS }>();
        let (x_pairs, _) = x[t].as_chunks::<2>();
        for (weights, [even, odd]) in pairs.iter().zip(x_pairs) {
            let (even, odd) = (Element::to_f32(*even), Element::to_f32(*odd));
            for row in 0..BLOCK_ROWS {
                sum[row] += Element::to_f32(weights[2 * row]) * even;
                sum[row] += Element::to_f32(weights[2 * row + 1]) * odd;
            }
        }
        sums[t] = sum;
    }
}
