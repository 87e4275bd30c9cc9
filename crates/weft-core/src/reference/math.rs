//! Arithmetic that the ops share: dot products, RMSNorm, SiLU.

use crate::dtype::Element;

/// Partial sums of a dot product: element i belongs to sum i % 16. The order is fixed, because it
/// is part of the result. There are 16 sums so that the compiler vectorises the loop.
const PARTIALS: usize = 16;

/// Σ a·b in f32.
pub(super) fn dot<E: Element>(a: &[f32], b: &[E]) -> f32 {
    let (a_blocks, a_rest) = a.as_chunks::<PARTIALS>();
    let (b_blocks, b_rest) = b.as_chunks::<PARTIALS>();
    let mut partial = [0.0; PARTIALS];
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for i in 0..PARTIALS {
            partial[i] += a[i] * b[i].to_f32();
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        partial[i] += a * b.to_f32();
    }
    sum(partial)
}

/// The partial sums, added as a tree.
fn sum(mut partial: [f32; PARTIALS]) -> f32 {
    let mut n = PARTIALS;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            partial[i] += partial[i + n];
        }
    }
    partial[0]
}

/// Widens a row to f32.
pub(super) fn widen<E: Element>(from: &[E], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
}

/// Rounds a row to `E`.
pub(super) fn round<E: Element>(from: &[f32], to: &mut [E]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = E::from_f32(*from));
}

/// RMSNorm of one row. It rounds twice, as in the models' training: the normalised value to `E`,
/// then its product with the weight to `E`.
pub fn rms_norm<E: Element>(x: &[E], weight: &[E], eps: f32, out: &mut [f32]) {
    widen(x, out);
    let mean = dot(out, x) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for (out, weight) in out.iter_mut().zip(weight) {
        let normalised = E::from_f32(*out * scale);
        *out = E::from_f32(normalised.to_f32() * weight.to_f32()).to_f32();
    }
}

/// x · sigmoid(x)
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}
