//! The names of tensors in GGUF files.

use crate::weights::{LayerTensor, Tensor};

/// The output head; if it is absent, the head is tied to the embedding.
pub(super) const HEAD: &str = "output.weight";
/// The embedding, whose rows are the vocabulary.
pub(super) const EMBEDDING: &str = "token_embd.weight";
/// Divisors of the rotary frequencies, if the model has them.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The name of a tensor.
pub(super) fn name(tensor: Tensor) -> String {
    match tensor {
        Tensor::Embed => EMBEDDING.to_owned(),
        Tensor::FinalNorm => "output_norm.weight".to_owned(),
        Tensor::Head => HEAD.to_owned(),
        Tensor::Layer(layer, kind) => format!("blk.{layer}.{}", in_layer(kind)),
    }
}

fn in_layer(kind: LayerTensor) -> &'static str {
    match kind {
        LayerTensor::AttentionNorm => "attn_norm.weight",
        LayerTensor::Q => "attn_q.weight",
        LayerTensor::K => "attn_k.weight",
        LayerTensor::V => "attn_v.weight",
        LayerTensor::QBias => "attn_q.bias",
        LayerTensor::KBias => "attn_k.bias",
        LayerTensor::VBias => "attn_v.bias",
        LayerTensor::QNorm => "attn_q_norm.weight",
        LayerTensor::KNorm => "attn_k_norm.weight",
        LayerTensor::O => "attn_output.weight",
        LayerTensor::MlpNorm => "ffn_norm.weight",
        LayerTensor::Gate => "ffn_gate.weight",
        LayerTensor::Up => "ffn_up.weight",
        LayerTensor::Down => "ffn_down.weight",
        LayerTensor::Router => "ffn_gate_inp.weight",
        LayerTensor::ExpertGate => "ffn_gate_exps.weight",
        LayerTensor::ExpertUp => "ffn_up_exps.weight",
        LayerTensor::ExpertDown => "ffn_down_exps.weight",
    }
}
