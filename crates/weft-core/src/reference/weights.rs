//! The weights as the reference device keeps them: every tensor row by row.

use super::matrix::{Matrix, read_plain};
use crate::config::Config;
use crate::dtype::Element;
use crate::weights::{LayerTensor, Tensor, Weights, WeightsError};

pub(super) struct ModelWeights<E> {
    pub(super) embed: Matrix<E>,
    pub(super) layers: Vec<LayerWeights<E>>,
    pub(super) final_norm: Vec<E>,
    /// `None` if the head shares the embedding's weights.
    head: Option<Matrix<E>>,
}

pub(super) struct LayerWeights<E> {
    pub(super) attention_norm: Vec<E>,
    pub(super) q: Matrix<E>,
    pub(super) k: Matrix<E>,
    pub(super) v: Matrix<E>,
    /// Of q, k and v, if the model has them.
    pub(super) bias: Option<[Vec<E>; 3]>,
    /// Of q and k, if the model has them.
    pub(super) head_norms: Option<[Vec<E>; 2]>,
    pub(super) o: Matrix<E>,
    pub(super) mlp_norm: Vec<E>,
    pub(super) mlp: Mlp<E>,
}

pub(super) enum Mlp<E> {
    Dense(Projections<E>),
    Sparse(Experts<E>),
}

pub(super) struct Projections<E> {
    pub(super) gate: Matrix<E>,
    pub(super) up: Matrix<E>,
    pub(super) down: Matrix<E>,
}

/// The matrices of all experts, one after the other, and the router.
pub(super) struct Experts<E> {
    pub(super) router: Matrix<E>,
    pub(super) gate: Matrix<E>,
    pub(super) up: Matrix<E>,
    pub(super) down: Matrix<E>,
}

impl<E> Mlp<E> {
    pub(super) fn dense(&self) -> &Projections<E> {
        match self {
            Self::Dense(projections) => projections,
            Self::Sparse(_) => unreachable!("the plan has dense MLPs in dense layers"),
        }
    }

    pub(super) fn sparse(&self) -> &Experts<E> {
        match self {
            Self::Sparse(experts) => experts,
            Self::Dense(_) => unreachable!("the plan has experts in sparse layers"),
        }
    }
}

impl<E: Element> ModelWeights<E> {
    pub(super) fn read(config: &Config, from: &dyn Weights) -> Result<Self, WeightsError> {
        let layers = u16::try_from(config.layers).expect("Config bounds the number of layers");
        let head =
            |tied: bool| (!tied).then(|| Matrix::read(config, from, Tensor::Head)).transpose();
        Ok(Self {
            embed: Matrix::read(config, from, Tensor::Embed)?,
            layers: (0..layers)
                .map(|layer| LayerWeights::read(config, from, layer))
                .collect::<Result<_, _>>()?,
            final_norm: read_plain(config, from, Tensor::FinalNorm)?,
            head: head(config.tied_head)?,
        })
    }

    pub(super) fn head(&self) -> &Matrix<E> {
        self.head.as_ref().unwrap_or(&self.embed)
    }
}

impl<E: Element> LayerWeights<E> {
    fn read(config: &Config, from: &dyn Weights, layer: u16) -> Result<Self, WeightsError> {
        use LayerTensor as T;
        let matrix = |kind| Matrix::read(config, from, Tensor::Layer(layer, kind));
        let vector = |kind| read_plain(config, from, Tensor::Layer(layer, kind));
        Ok(Self {
            attention_norm: vector(T::AttentionNorm)?,
            q: matrix(T::Q)?,
            k: matrix(T::K)?,
            v: matrix(T::V)?,
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
            mlp: match config.experts_of(layer) {
                None => Mlp::Dense(Projections {
                    gate: matrix(T::Gate)?,
                    up: matrix(T::Up)?,
                    down: matrix(T::Down)?,
                }),
                Some(_) => Mlp::Sparse(Experts {
                    router: matrix(T::Router)?,
                    gate: matrix(T::ExpertGate)?,
                    up: matrix(T::ExpertUp)?,
                    down: matrix(T::ExpertDown)?,
                }),
            },
        })
    }
}
