//! The tensors of a model: one enum for all families, their names in files, their shapes.

use crate::config::Config;

/// One tensor of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tensor {
    /// Token embedding, \[vocab, hidden\].
    Embed,
    /// A tensor of one decoder layer.
    Layer(u16, LayerTensor),
    /// Weight of the last RMSNorm, \[hidden\].
    FinalNorm,
    /// Output head, \[vocab, hidden\]; absent if it is tied to the embedding.
    Head,
}

/// One tensor of a decoder layer. Matrices are \[out, in\]: a row gives one output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerTensor {
    /// RMSNorm before attention, \[hidden\].
    AttentionNorm,
    /// Query projection, \[q_width, hidden\].
    Q,
    /// Key projection, \[kv_width, hidden\].
    K,
    /// Value projection, \[kv_width, hidden\].
    V,
    /// Query bias, \[q_width\].
    QBias,
    /// Key bias, \[kv_width\].
    KBias,
    /// Value bias, \[kv_width\].
    VBias,
    /// Per-head query norm, \[head_dim\].
    QNorm,
    /// Per-head key norm, \[head_dim\].
    KNorm,
    /// Output projection, \[hidden, q_width\].
    O,
    /// RMSNorm before the MLP, \[hidden\].
    MlpNorm,
    /// Gate projection of a dense layer, \[intermediate, hidden\].
    Gate,
    /// Up projection, \[intermediate, hidden\].
    Up,
    /// Down projection, \[hidden, intermediate\].
    Down,
    /// The router of a sparse layer, \[experts, hidden\]. Always plain.
    Router,
    /// Gate projections of all experts of a layer, \[experts, expert intermediate, hidden\]. Row r
    /// of expert e is row e · intermediate + r; all experts of a layer have one form.
    ExpertGate,
    /// Up projections of all experts, \[experts, expert intermediate, hidden\].
    ExpertUp,
    /// Down projections of all experts, \[experts, hidden, expert intermediate\].
    ExpertDown,
}

use LayerTensor::{
    AttentionNorm, Down, ExpertDown, ExpertGate, ExpertUp, Gate, K, KBias, KNorm, MlpNorm, O, Q,
    QBias, QNorm, Router, Up, V, VBias,
};

/// Number of weights, the tied head counted once.
pub fn parameters(config: &Config) -> u64 {
    tensors(config).iter().map(|tensor| tensor.elements() as u64).sum()
}

/// Number of weights that a token uses, the tied head counted once: of the experts, those chosen
/// for it.
pub fn active_parameters(config: &Config) -> u64 {
    let idle = |tensor: &TensorShape| match (tensor.tensor, &config.experts) {
        (Tensor::Layer(_, ExpertGate | ExpertUp | ExpertDown), Some(experts)) => {
            tensor.elements() / experts.count * (experts.count - experts.chosen)
        }
        _ => 0,
    };
    parameters(config) - tensors(config).iter().map(|t| idle(t) as u64).sum::<u64>()
}

/// Every tensor the model has, with its shape, in the order they are used.
pub fn tensors(config: &Config) -> Vec<TensorShape> {
    let mut kinds = vec![AttentionNorm, Q, K, V];
    if config.qkv_bias {
        kinds.extend([QBias, KBias, VBias]);
    }
    if config.qk_norm {
        kinds.extend([QNorm, KNorm]);
    }
    kinds.extend([O, MlpNorm]);

    let layers = u16::try_from(config.layers).expect("Config bounds the number of layers");
    let mut all = vec![Tensor::Embed];
    for layer in 0..layers {
        let mlp = match config.experts_of(layer) {
            None => &[Gate, Up, Down][..],
            Some(_) => &[Router, ExpertGate, ExpertUp, ExpertDown],
        };
        all.extend(kinds.iter().chain(mlp).map(|kind| Tensor::Layer(layer, *kind)));
    }
    all.push(Tensor::FinalNorm);
    if !config.tied_head {
        all.push(Tensor::Head);
    }
    all.into_iter().map(|tensor| TensorShape::new(tensor, config)).collect()
}

/// A tensor and its shape in one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// The tensor.
    pub tensor: Tensor,
    /// Its shape: one to three sizes.
    pub shape: Vec<usize>,
}

impl TensorShape {
    /// The shape of a tensor in a model.
    pub fn new(tensor: Tensor, config: &Config) -> Self {
        Self { tensor, shape: tensor.shape(config) }
    }

    /// Number of values.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Names and shapes of the tensor in Hugging Face files: one for each expert, in order.
    pub fn in_files(&self) -> Vec<(String, Vec<usize>)> {
        match self.shape[..] {
            [count, ..] if self.shape.len() == 3 => (0..count)
                .map(|expert| (self.tensor.expert_name(expert), self.shape[1..].to_vec()))
                .collect(),
            _ => vec![(self.tensor.name(), self.shape.clone())],
        }
    }

    /// Number of rows; a vector is one row.
    pub fn rows(&self) -> usize {
        self.elements() / self.row()
    }

    /// Length of a row.
    pub fn row(&self) -> usize {
        *self.shape.last().expect("every tensor has a shape")
    }
}

impl Tensor {
    /// The tensor's name in Hugging Face files.
    pub fn name(self) -> String {
        match self {
            Self::Embed => "model.embed_tokens.weight".to_owned(),
            Self::FinalNorm => "model.norm.weight".to_owned(),
            Self::Head => "lm_head.weight".to_owned(),
            Self::Layer(layer, kind) => format!("model.layers.{layer}.{}", kind.name()),
        }
    }

    /// The name of one expert's part of the tensor.
    pub(super) fn expert_name(self, expert: usize) -> String {
        self.name().replacen('*', &expert.to_string(), 1)
    }

    /// Whether devices get the tensor as plain numbers, whatever its files hold.
    pub(super) fn is_always_plain(self) -> bool {
        matches!(self, Self::Layer(_, Router))
    }

    /// The tensor's shape in a model.
    pub fn shape(self, config: &Config) -> Vec<usize> {
        match self {
            Self::Embed | Self::Head => vec![config.vocab, config.hidden],
            Self::FinalNorm => vec![config.hidden],
            Self::Layer(_, kind) => kind.shape(config),
        }
    }
}

impl LayerTensor {
    fn name(self) -> &'static str {
        match self {
            AttentionNorm => "input_layernorm.weight",
            Q => "self_attn.q_proj.weight",
            K => "self_attn.k_proj.weight",
            V => "self_attn.v_proj.weight",
            QBias => "self_attn.q_proj.bias",
            KBias => "self_attn.k_proj.bias",
            VBias => "self_attn.v_proj.bias",
            QNorm => "self_attn.q_norm.weight",
            KNorm => "self_attn.k_norm.weight",
            O => "self_attn.o_proj.weight",
            MlpNorm => "post_attention_layernorm.weight",
            Gate => "mlp.gate_proj.weight",
            Up => "mlp.up_proj.weight",
            Down => "mlp.down_proj.weight",
            Router => "mlp.gate.weight",
            ExpertGate => "mlp.experts.*.gate_proj.weight",
            ExpertUp => "mlp.experts.*.up_proj.weight",
            ExpertDown => "mlp.experts.*.down_proj.weight",
        }
    }

    fn shape(self, config: &Config) -> Vec<usize> {
        let hidden = config.hidden;
        match self {
            AttentionNorm | MlpNorm => vec![hidden],
            Q => vec![config.q_width(), hidden],
            K | V => vec![config.kv_width(), hidden],
            QBias => vec![config.q_width()],
            KBias | VBias => vec![config.kv_width()],
            QNorm | KNorm => vec![config.head_dim],
            O => vec![hidden, config.q_width()],
            Gate | Up => vec![config.intermediate, hidden],
            Down => vec![hidden, config.intermediate],
            Router | ExpertGate | ExpertUp | ExpertDown => {
                let experts = config.experts.as_ref().expect("the layer is sparse");
                let (count, intermediate) = (experts.count, experts.intermediate);
                match self {
                    Router => vec![count, hidden],
                    ExpertDown => vec![count, hidden, intermediate],
                    _ => vec![count, intermediate, hidden],
                }
            }
        }
    }
}
