//! `norm_gate_up`: n = rms_norm(x); h = silu(n · W_gate) · (n · W_up).

use super::{BlockInput, Pass};
use crate::CudaDevice;
use crate::driver::Argument;
use crate::error::CudaError;

pub(crate) fn launch(pass: &Pass<'_>, layer: u16) -> Result<(), CudaError> {
    let CudaDevice { config, kernels, weights, buffers, shape, .. } = pass.device;
    let (layer, variants) = (usize::from(layer), &shape.matrices.gate_up);
    let (weights, kernels) = (&weights.layers[layer], &kernels.norm_gate_up[variants.of(layer)]);
    let (matrix, norm) = (weights.gate_up.address(), weights.mlp_norm.address());
    if let Some(groups) = pass.groups_of_few() {
        return groups.iter().try_for_each(|group| {
            let (x, h) = (buffers.x.row(group.first), buffers.h.row(group.first));
            let arguments: &[&dyn Argument] = &[&group.step, &matrix, &norm, &x, &h];
            pass.stream(kernels, group, variants.cut(layer), arguments)
        });
    }
    pass.norm_rows(norm)?;
    let rows = 2 * config.intermediate.next_multiple_of(8);
    let h = buffers.h.for_block();
    let product = BlockInput { matrix, input: &buffers.norm, to: &h };
    pass.multiply_block(&kernels.block, rows, &product)
}
