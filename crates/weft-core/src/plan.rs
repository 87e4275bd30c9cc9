//! The plan: the model as a list of ops.
//!
//! Every device interprets the list from [`plan`], so the model is defined once. The same list
//! serves to bisect differences between devices (run a prefix, compare the buffers), and to count
//! the bytes that a step must move.

use std::fmt;

use crate::config::Config;
use crate::dtype::Dtype;
use crate::weights::{Forms, LayerTensor, Tensor, TensorShape};

/// One fused operation of the forward pass.
///
/// A new variant does not compile until every device runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// tokens → x
    Embed,
    /// x → q, k, v: RMSNorm, the three projections, and their bias if the model has one
    NormQkv {
        /// The decoder layer.
        layer: u16,
    },
    /// q, k, v → q, kv\[layer\]: per-head norm of q and k if the model has one, RoPE of k, store. q
    /// stays unrotated: its rotation depends on the span, see [`Op::Attend`].
    RopeStore {
        /// The decoder layer.
        layer: u16,
    },
    /// q, kv\[layer\] → a: RoPE of q for each span, softmax over all visible rows of all spans
    Attend {
        /// The decoder layer.
        layer: u16,
    },
    /// a, x → x: output projection plus residual
    ProjAdd {
        /// The decoder layer.
        layer: u16,
    },
    /// x → h: RMSNorm, gate and up projections, SiLU, product
    NormGateUp {
        /// The decoder layer.
        layer: u16,
    },
    /// h, x → x: down projection plus residual
    DownAdd {
        /// The decoder layer.
        layer: u16,
    },
    /// x → routes: RMSNorm, router, the experts of each token and their weights
    NormRoute {
        /// The decoder layer.
        layer: u16,
    },
    /// x, routes → expert_h: RMSNorm, gate and up projections of each chosen expert, SiLU, product
    ExpertGateUp {
        /// The decoder layer.
        layer: u16,
    },
    /// expert_h, routes, x → x: down projection of each chosen expert, weighted sum, residual
    ExpertDownAdd {
        /// The decoder layer.
        layer: u16,
    },
    /// x → logits, for the tokens that need logits
    NormHead,
}

/// The list of ops that one step runs, in order.
pub fn plan(config: &Config) -> Vec<Op> {
    let layers = u16::try_from(config.layers).expect("Config bounds the number of layers");
    let mut ops = vec![Op::Embed];
    for layer in 0..layers {
        ops.extend([
            Op::NormQkv { layer },
            Op::RopeStore { layer },
            Op::Attend { layer },
            Op::ProjAdd { layer },
        ]);
        if config.experts_of(layer).is_none() {
            ops.extend([Op::NormGateUp { layer }, Op::DownAdd { layer }]);
        } else {
            ops.push(Op::NormRoute { layer });
            ops.extend([Op::ExpertGateUp { layer }, Op::ExpertDownAdd { layer }]);
        }
    }
    ops.push(Op::NormHead);
    ops
}

impl Op {
    /// The op's name, in its file, its test and its bench row.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::NormQkv { .. } => "norm_qkv",
            Self::RopeStore { .. } => "rope_store",
            Self::Attend { .. } => "attend",
            Self::ProjAdd { .. } => "proj_add",
            Self::NormGateUp { .. } => "norm_gate_up",
            Self::DownAdd { .. } => "down_add",
            Self::NormRoute { .. } => "norm_route",
            Self::ExpertGateUp { .. } => "expert_gate_up",
            Self::ExpertDownAdd { .. } => "expert_down_add",
            Self::NormHead => "norm_head",
        }
    }

    /// Whether the op reads the matrices of experts.
    pub const fn is_of_experts(self) -> bool {
        matches!(self, Self::ExpertGateUp { .. } | Self::ExpertDownAdd { .. })
    }

    /// The decoder layer of the op, if it has one.
    pub const fn layer(self) -> Option<u16> {
        match self {
            Self::Embed | Self::NormHead => None,
            Self::NormQkv { layer }
            | Self::RopeStore { layer }
            | Self::Attend { layer }
            | Self::ProjAdd { layer }
            | Self::NormGateUp { layer }
            | Self::DownAdd { layer }
            | Self::NormRoute { layer }
            | Self::ExpertGateUp { layer }
            | Self::ExpertDownAdd { layer } => Some(layer),
        }
    }
}

/// The amount of work in one step, for counting bytes and operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Tokens, over all lanes.
    pub n_tokens: u64,
    /// Logit rows.
    pub n_outputs: u64,
    /// KV rows that any token of the step sees, each counted once per lane.
    pub n_rows: u64,
    /// Pairs of a token and a KV row that it sees.
    pub n_pairs: u64,
}

impl Op {
    /// The tensors that the op reads: in full for any number of tokens, but of the experts only
    /// those that were chosen. The embedding is read by rows and does not count here, but as the
    /// head.
    pub fn tensors(self, config: &Config) -> Vec<TensorShape> {
        use LayerTensor as T;
        let head = if config.tied_head { Tensor::Embed } else { Tensor::Head };
        let of_layer = |layer, kinds: &[T]| {
            kinds.iter().map(|kind| Tensor::Layer(layer, *kind)).collect::<Vec<_>>()
        };
        let tensors = match self {
            Self::Embed | Self::Attend { .. } => Vec::new(),
            Self::NormQkv { layer } if config.qkv_bias => {
                of_layer(layer, &[T::AttentionNorm, T::Q, T::K, T::V, T::QBias, T::KBias, T::VBias])
            }
            Self::NormQkv { layer } => of_layer(layer, &[T::AttentionNorm, T::Q, T::K, T::V]),
            Self::RopeStore { layer } if config.qk_norm => of_layer(layer, &[T::QNorm, T::KNorm]),
            Self::RopeStore { .. } => Vec::new(),
            Self::ProjAdd { layer } => of_layer(layer, &[T::O]),
            Self::NormGateUp { layer } => of_layer(layer, &[T::MlpNorm, T::Gate, T::Up]),
            Self::DownAdd { layer } => of_layer(layer, &[T::Down]),
            Self::NormRoute { layer } => of_layer(layer, &[T::MlpNorm, T::Router]),
            Self::ExpertGateUp { layer } => of_layer(layer, &[T::ExpertGate, T::ExpertUp]),
            Self::ExpertDownAdd { layer } => of_layer(layer, &[T::ExpertDown]),
            Self::NormHead => vec![Tensor::FinalNorm, head],
        };
        tensors.into_iter().map(|tensor| TensorShape::new(tensor, config)).collect()
    }

    /// Bytes that the op must move between memory and processor: its weights, once for all tokens;
    /// the KV rows that it reads, once per lane; and the rows that it stores. Activations and
    /// logits are left out, because caches hold them. A bandwidth computed from this count is a
    /// lower bound. Plain weights are stored as `dtype`. Of the experts, those count that so many
    /// tokens choose if each expert is as likely as any other.
    pub fn bytes(self, config: &Config, forms: &Forms, dtype: Dtype, work: &Work) -> u64 {
        let row = (2 * config.kv_width() * dtype.bytes()) as u64;
        let weights = || self.tensors(config).iter().map(|t| forms.bytes(t, dtype)).sum::<u64>();
        match self {
            Self::Embed => {
                let form = forms.of_tensor(Tensor::Embed);
                work.n_tokens * form.bytes(1, config.hidden, dtype)
            }
            Self::RopeStore { .. } => weights() + work.n_tokens * row,
            Self::Attend { .. } => work.n_rows * row,
            Self::ExpertGateUp { .. } | Self::ExpertDownAdd { .. } => {
                let share = config.experts.as_ref().map_or(0.0, |e| e.share_read(work.n_tokens));
                (weights() as f64 * share).round() as u64
            }
            Self::NormHead if work.n_outputs == 0 => 0,
            _ => weights(),
        }
    }

    /// Floating-point operations of the op's matrix products and attention; a multiply-add counts
    /// as two. Norms, rotations and softmax are left out.
    pub fn flops(self, config: &Config, work: &Work) -> u64 {
        let (hidden, q) = (config.hidden as u64, config.q_width() as u64);
        let intermediate = config.intermediate as u64;
        let experts = config.experts.as_ref();
        let routed = experts.map_or(0, |e| (e.chosen * e.intermediate) as u64);
        2 * match self {
            Self::Embed | Self::RopeStore { .. } => 0,
            Self::NormQkv { .. } => work.n_tokens * (q + 2 * config.kv_width() as u64) * hidden,
            Self::Attend { .. } => work.n_pairs * 2 * q,
            Self::ProjAdd { .. } => work.n_tokens * q * hidden,
            Self::NormGateUp { .. } => work.n_tokens * 2 * intermediate * hidden,
            Self::DownAdd { .. } => work.n_tokens * intermediate * hidden,
            Self::NormRoute { .. } => {
                work.n_tokens * experts.map_or(0, |e| e.count as u64) * hidden
            }
            Self::ExpertGateUp { .. } => work.n_tokens * 2 * routed * hidden,
            Self::ExpertDownAdd { .. } => work.n_tokens * routed * hidden,
            Self::NormHead => work.n_outputs * config.vocab as u64 * hidden,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer() {
            Some(layer) => write!(f, "{}[{layer}]", self.name()),
            None => f.write_str(self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes;

    const ONE_TOKEN: Work = Work { n_tokens: 1, n_outputs: 1, n_rows: 0, n_pairs: 0 };

    fn bytes(config: &Config, work: &Work) -> u64 {
        plan(config).iter().map(|op| op.bytes(config, &Forms::default(), Dtype::Bf16, work)).sum()
    }

    #[test]
    fn weights_of_the_plan_are_those_of_the_model() {
        for name in shapes::NAMES {
            let config = shapes::config(name).unwrap();
            let read = plan(&config).into_iter().flat_map(|op| op.tensors(&config));
            let read: u64 = read.map(|tensor| tensor.elements() as u64).sum();
            // If the embedding is not also the head, it is only read by rows.
            let rows = if config.tied_head { 0 } else { config.vocab * config.hidden };
            assert_eq!(read, crate::weights::parameters(&config) - rows as u64, "{name}");
        }
    }

    #[test]
    fn a_token_moves_the_bytes_that_the_shape_says() {
        let gigabytes = [
            ("0.6b", 1.19),
            ("1.7b", 3.44),
            ("4b", 8.04),
            ("8b", 15.1),
            ("14b", 28.0),
            ("32b", 64.0),
        ];
        for (name, expected) in gigabytes {
            let config = shapes::config(&format!("qwen3-{name}")).unwrap();
            let found = bytes(&config, &ONE_TOKEN) as f64 / 1e9;
            assert!((found / expected - 1.0).abs() < 0.005, "{name}: {found}");
        }
    }

    #[test]
    fn each_row_of_context_costs_what_it_keeps() {
        let config = shapes::config("qwen3-0.6b").unwrap();
        let kv = config.kv_bytes_per_token(Dtype::Bf16);
        assert_eq!(kv, 112 * 1024);
        let deep = Work { n_rows: 1000, n_pairs: 1000, ..ONE_TOKEN };
        assert_eq!(bytes(&config, &deep) - bytes(&config, &ONE_TOKEN), 1000 * kv);
        // A second token shares the weights. It adds a row of the embedding and the rows that it
        // stores.
        let two = Work { n_tokens: 2, n_outputs: 2, ..ONE_TOKEN };
        assert_eq!(bytes(&config, &two) - bytes(&config, &ONE_TOKEN), kv + 2 * 1024);
    }
}
