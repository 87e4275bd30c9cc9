//! `norm_qkv`: n = rms_norm(x); q, k, v = n · W (+ bias).

use super::{BlockInput, Pass};
use crate::CudaDevice;
use crate::driver::{Address, Argument};
use crate::error::CudaError;
use crate::layouts::{Layout, layout};

/// Kernels call it `QkvStore`.
#[repr(C)]
pub(crate) struct QkvStore {
    pub(crate) bias: Address,
    pub(crate) q: Address,
    pub(crate) k: Address,
    pub(crate) v: Address,
}

// SAFETY: `repr(C)`, with the fields of the kernels' `QkvStore`.
unsafe impl Argument for QkvStore {}

/// Structs that kernels must lay out as here.
pub(crate) fn layout() -> Layout {
    layout!(QkvStore as "QkvStore" { bias, q, k, v })
}

pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { config, kernels, weights, buffers, shape, .. } = pass.device;
    let (layer, variants) = (usize::from(layer), &shape.matrices.qkv);
    let (weights, kernels) = (&weights.layers[layer], &kernels.norm_qkv[variants.of(layer)]);
    let to = |first: usize| QkvStore {
        bias: weights.bias.address(),
        q: buffers.q.row(first),
        k: buffers.k.row(first),
        v: buffers.v.row(first),
    };
    let (matrix, norm) = (weights.qkv.address(), weights.attention_norm.address());
    if let Some(groups) = pass.groups_of_few() {
        return groups.iter().try_for_each(|group| {
            let (x, to) = (buffers.x.row(group.first), to(group.first));
            let arguments: &[&dyn Argument] = &[&group.step, &matrix, &norm, &x, &to];
            pass.stream(kernels, group, variants.cut(layer), arguments)
        });
    }
    pass.norm_rows(norm)?;
    let rows = config.q_width() + 2 * config.kv_width();
    let product = BlockInput { matrix, input: &buffers.norm, to: &to(0) };
    pass.multiply_block(&kernels.block, rows, &product)
}
