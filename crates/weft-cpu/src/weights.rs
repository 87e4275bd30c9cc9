//! The weights of the CPU device: matrices in blocks, and vectors as f32.

use weft_core::config::Config;
use weft_core::weights::{LayerTensor, Tensor, Weights, WeightsError};

use crate::matrix::Matrix;
use crate::pack::read_vector;

pub(crate) struct ModelWeights {
    pub(crate) embed: Matrix,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) final_norm: Vec<f32>,
    /// `None` if the head shares the embedding's weights.
    head: Option<Matrix>,
}

pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Vec<f32>,
    /// q, k and v.
    pub(crate) qkv: [Matrix; 3],
    /// Their bias, if the model has one.
    pub(crate) bias: Option<[Vec<f32>; 3]>,
    /// Of q and k, if the model has them.
    pub(crate) head_norms: Option<[Vec<f32>; 2]>,
    pub(crate) o: Matrix,
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
}

impl ModelWeights {
    pub(crate) fn read(config: &Config, from: &dyn Weights) -> Result<Self, WeightsError> {
        let layers = u16::try_from(config.layers).expect("Config bounds the number of layers");
        let head = (!config.tied_head).then(|| Matrix::read(config, from, Tensor::Head));
        Ok(Self {
            embed: Matrix::read(config, from, Tensor::Embed)?,
            layers: (0..layers)
                .map(|layer| LayerWeights::read(config, from, layer))
                .collect::<Result<_, _>>()?,
            final_norm: read_vector(from, Tensor::FinalNorm)?,
            head: head.transpose()?,
        })
    }

    pub(crate) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embed)
    }
}

impl LayerWeights {
    fn read(config: &Config, from: &dyn Weights, layer: u16) -> Result<Self, WeightsError> {
        use LayerTensor as T;
        let matrix = |kind| Matrix::read(config, from, Tensor::Layer(layer, kind));
        let vector = |kind| read_vector(from, Tensor::Layer(layer, kind));
        Ok(Self {
            attention_norm: vector(T::AttentionNorm)?,
            qkv: [matrix(T::Q)?, matrix(T::K)?, matrix(T::V)?],
            bias: match config.qkv_bias {
                true => Some([vector(T::QBias)?, vector(T::KBias)?, vector(T::VBias)?]),
                false => None,
            },
            head_norms: match config.qk_norm {
                true => Some([vector(T::QNorm)?, vector(T::KNorm)?]),
                false => None,
            },
            o: matrix(T::O)?,
            mlp_norm: vector(T::MlpNorm)?,
            gate: matrix(T::Gate)?,
            up: matrix(T::Up)?,
            down: matrix(T::Down)?,
        })
    }
}
