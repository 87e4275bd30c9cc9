//! `rope_store`: per-head norm of q and k if the model has one, RoPE of k, k and v into KV.
//!
//! q is normalised and stays unrotated: each span rotates it by another angle, see `attend`.
//! Rounding: the norms as RMSNorm rounds; the rotated key once.

use super::Reference;
use super::math::{rms_norm, round, widen};
use crate::device::Step;
use crate::dtype::Element;

pub(super) fn run<E: Element>(device: &mut Reference<E>, step: &Step<'_>, layer: u16) {
    normalise_heads(device, step, layer);
    let Reference { config, buffers, kv, rope, scratch, .. } = device;
    let tokens = step.lanes.iter().flat_map(|lane| lane.key_positions.iter().zip(lane.store_at));
    for (t, (position, slot)) in tokens.enumerate() {
        let from = t * config.kv_width()..(t + 1) * config.kv_width();
        let to = kv.row(layer, *slot);
        kv.v[to.clone()].copy_from_slice(&buffers.v[from.clone()]);
        let heads = buffers.k[from].chunks_exact(config.head_dim);
        for (stored, key) in kv.k[to].chunks_exact_mut(config.head_dim).zip(heads) {
            widen(key, &mut scratch.head);
            rope.rotate(*position as usize, &scratch.head, &mut scratch.rotated);
            round(&scratch.rotated, stored);
        }
    }
}

fn normalise_heads<E: Element>(device: &mut Reference<E>, step: &Step<'_>, layer: u16) {
    let Reference { config, buffers, scratch, .. } = device;
    let Some([q_norm, k_norm]) = &device.weights.layers[usize::from(layer)].head_norms else {
        return;
    };
    let n_tokens = step.n_tokens();
    let q = buffers.q[..n_tokens * config.q_width()].chunks_exact_mut(config.head_dim);
    let k = buffers.k[..n_tokens * config.kv_width()].chunks_exact_mut(config.head_dim);
    let heads = q.map(|head| (head, q_norm)).chain(k.map(|head| (head, k_norm)));
    for (head, weight) in heads {
        rms_norm(head, weight, config.norm_eps, &mut scratch.head);
        round(&scratch.head, head);
    }
}
