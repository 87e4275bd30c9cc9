//! `rope_store`: per-head norm of q and k if the model has one, RoPE of k, k and v into KV.

use half::bf16;
use weft_core::dtype::Element;

use crate::buffers::KvLayout;
use crate::memory::Disjoint;
use crate::scratch::Scratch;
use crate::{CpuDevice, Isa, vector};

pub(crate) fn run(device: &mut CpuDevice, layer: u16) {
    let CpuDevice { config, pool, isa, weights, rope, kv, buffers, scratch, lists, .. } = device;
    let (isa, dim, group) = (*isa, config.head_dim, config.group());
    let norms = weights.layers[usize::from(layer)].head_norms.as_ref();
    let [q, k, v] = buffers.qkv.each_mut();
    let (q_stride, kv_stride) = (q.stride, k.stride);
    let (q, k) = (Disjoint::new(q.all_mut()), Disjoint::new(k.all_mut()));
    let (layout, k_pages, v_pages) = kv.parts();
    let scratch = Disjoint::new(scratch);

    // An item is one KV head of one token, with the query heads that read it.
    pool.for_each(lists.tokens.len() * config.kv_heads, |thread, item| {
        let (t, head) = (item / config.kv_heads, item % config.kv_heads);
        let (page, row) = layout.place(layer, lists.tokens[t].slot, head);
        // SAFETY: each thread has its own scratch, each item has its own heads in every buffer, and
        // no two tokens of a step have the same slot.
        let (scratch, queries, key, value) = unsafe {
            (
                &mut scratch.part(thread, 1)[0],
                q.part(t * q_stride + head * group * dim, group * dim),
                k.part(t * kv_stride + head * dim, dim),
                v_pages.part(page + row * layout.stride, dim),
            )
        };
        if let Some([q_norm, k_norm]) = norms {
            for query in queries.chunks_exact_mut(dim) {
                normalise(isa, query, q_norm, config.norm_eps, scratch);
            }
            normalise(isa, key, k_norm, config.norm_eps, scratch);
        }
        scratch.head.iter_mut().zip(&*key).for_each(|(to, from)| *to = Element::to_f32(*from));
        rope.rotate(lists.tokens[t].key_position, &scratch.head, &mut scratch.rotated);
        vector::store_sums(isa, &scratch.rotated, None, &mut scratch.rounded);
        for (i, element) in scratch.rounded.iter().enumerate() {
            // SAFETY: as above; a key's elements lie between those of its page's other rows.
            unsafe { k_pages.part(page + KvLayout::key_offset(row, i), 1)[0] = *element };
        }
        value.copy_from_slice(&v.row(t)[head * dim..][..dim]);
    });
}

fn normalise(isa: Isa, head: &mut [bf16], weight: &[f32], eps: f32, scratch: &mut Scratch) {
    vector::rms_norm(isa, head, weight, eps, &mut scratch.rounded);
    head.copy_from_slice(&scratch.rounded);
}
