//! The plan: the model as a list of ops.
//!
//! Every device interprets the list that [`plan`] makes, so there is no second copy of the model
//! anywhere. The same list gives parity bisection (run a prefix, compare the buffers) and the bytes
//! that a step must move.

use std::fmt;

use crate::config::Config;

/// One fused operation of the forward pass.
///
/// A new variant does not compile until every device runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// tokens → x
    Embed,
    /// x → q, k, v: RMSNorm, the three projections, their bias where the model has one
    NormQkv {
        /// The decoder layer.
        layer: u16,
    },
    /// q, k, v → q, kv\[layer\]: per-head norm of q and k where the model has it, RoPE of k, store.
    /// q stays unrotated: how far it turns depends on the span it meets, see [`Op::Attend`].
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
    /// x → logits, for the tokens whose logits were asked for
    NormHead,
}

/// The model as the list of ops that one step runs, in order.
pub fn plan(config: &Config) -> Vec<Op> {
    let layers = u16::try_from(config.layers).expect("Config bounds the number of layers");
    let mut ops = vec![Op::Embed];
    for layer in 0..layers {
        ops.extend([
            Op::NormQkv { layer },
            Op::RopeStore { layer },
            Op::Attend { layer },
            Op::ProjAdd { layer },
            Op::NormGateUp { layer },
            Op::DownAdd { layer },
        ]);
    }
    ops.push(Op::NormHead);
    ops
}

impl Op {
    /// The op's one name: of its file, its test, its bench row.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::NormQkv { .. } => "norm_qkv",
            Self::RopeStore { .. } => "rope_store",
            Self::Attend { .. } => "attend",
            Self::ProjAdd { .. } => "proj_add",
            Self::NormGateUp { .. } => "norm_gate_up",
            Self::DownAdd { .. } => "down_add",
            Self::NormHead => "norm_head",
        }
    }

    /// The decoder layer the op belongs to, if it belongs to one.
    pub const fn layer(self) -> Option<u16> {
        match self {
            Self::Embed | Self::NormHead => None,
            Self::NormQkv { layer }
            | Self::RopeStore { layer }
            | Self::Attend { layer }
            | Self::ProjAdd { layer }
            | Self::NormGateUp { layer }
            | Self::DownAdd { layer } => Some(layer),
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
