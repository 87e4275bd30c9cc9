//! The weights of the CPU device: matrices in blocks, and vectors as f32.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use weft_core::config::Config;
use weft_core::weights::{LayerTensor, Tensor, Weights, WeightsError};

use crate::matrix::{Matrix, Twins};
use crate::pack::{Packed, read_vector};

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
    pub(crate) mlp: Mlp,
}

pub(crate) enum Mlp {
    Dense(Projections),
    /// The router, and the projections of all experts: whole blocks of each, one after the other.
    Sparse(Packed, Projections),
}

pub(crate) struct Projections {
    pub(crate) gate_up: Twins,
    pub(crate) down: Matrix,
}

impl Projections {
    /// Those of a layer's MLP, or of its experts.
    fn read(config: &Config, from: &dyn Weights, layer: u16) -> Result<Self, WeightsError> {
        use LayerTensor as T;
        let [gate, up, down] = match config.experts_of(layer) {
            None => [T::Gate, T::Up, T::Down],
            Some(_) => [T::ExpertGate, T::ExpertUp, T::ExpertDown],
        };
        Ok(Self {
            gate_up: Twins::read(config, from, [gate, up].map(|kind| Tensor::Layer(layer, kind)))?,
            down: Matrix::read(config, from, Tensor::Layer(layer, down))?,
        })
    }
}

/// The weights of a sparse layer's experts alone.
pub(crate) struct ExpertLayer {
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) experts: Projections,
}

impl ExpertLayer {
    /// Reads the experts of all layers by `threads` threads; none of dense layers.
    pub(crate) fn read_all(
        config: &Config,
        from: &dyn Weights,
        threads: usize,
    ) -> Result<Vec<Option<Self>>, WeightsError> {
        in_parallel(threads, config.layers, |layer| {
            let layer = u16::try_from(layer).expect("Config bounds the number of layers");
            let read = |_| {
                Ok(Self {
                    mlp_norm: read_vector(from, Tensor::Layer(layer, LayerTensor::MlpNorm))?,
                    experts: Projections::read(config, from, layer)?,
                })
            };
            config.experts_of(layer).map(read).transpose()
        })
    }
}

impl Mlp {
    pub(crate) fn dense(&self) -> &Projections {
        match self {
            Self::Dense(projections) => projections,
            Self::Sparse(..) => unreachable!("the plan has dense MLPs in dense layers"),
        }
    }

    /// The router and the experts.
    pub(crate) fn sparse(&self) -> (&Packed, &Projections) {
        match self {
            Self::Sparse(router, experts) => (router, experts),
            Self::Dense(_) => unreachable!("the plan has experts in sparse layers"),
        }
    }
}

/// What one thread reads at a time.
enum Part {
    Matrix(Matrix),
    Layer(Box<LayerWeights>),
}

impl ModelWeights {
    /// Reads all weights by `threads` threads: packing takes longer than reading.
    pub(crate) fn read(
        config: &Config,
        from: &dyn Weights,
        threads: usize,
    ) -> Result<Self, WeightsError> {
        let n_layers = u16::try_from(config.layers).expect("Config bounds the number of layers");
        let matrix = |tensor| Matrix::read(config, from, tensor).map(Part::Matrix);
        // The largest first.
        let read_part = |nth: usize| match nth {
            0 => matrix(Tensor::Embed),
            1 if !config.tied_head => matrix(Tensor::Head),
            _ => {
                let layer = nth - 1 - usize::from(!config.tied_head);
                let layer = LayerWeights::read(config, from, layer as u16)?;
                Ok(Part::Layer(Box::new(layer)))
            }
        };
        let n_parts = 1 + usize::from(!config.tied_head) + usize::from(n_layers);
        let (mut matrices, mut layers) = (Vec::new(), Vec::new());
        for part in in_parallel(threads, n_parts, read_part)? {
            match part {
                Part::Matrix(matrix) => matrices.push(matrix),
                Part::Layer(layer) => layers.push(*layer),
            }
        }
        let mut matrices = matrices.into_iter();
        Ok(Self {
            embed: matrices.next().expect("the first part is the embedding"),
            head: matrices.next(),
            layers,
            final_norm: read_vector(from, Tensor::FinalNorm)?,
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
            mlp: match config.experts_of(layer) {
                None => Mlp::Dense(Projections::read(config, from, layer)?),
                Some(_) => Mlp::Sparse(
                    Packed::read(config, from, Tensor::Layer(layer, T::Router))?,
                    Projections::read(config, from, layer)?,
                ),
            },
        })
    }
}

/// `read(0)` to `read(n - 1)`, by several threads. If some fail, the error is that of the first.
fn in_parallel<T: Send>(
    threads: usize,
    n: usize,
    read: impl Fn(usize) -> Result<T, WeightsError> + Sync,
) -> Result<Vec<T>, WeightsError> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        let mut done = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= n {
                break;
            }
            let part = read(nth);
            failed.fetch_or(part.is_err(), Ordering::Relaxed);
            done.push((nth, part));
        }
        done
    };
    let mut parts = thread::scope(|scope| {
        let workers: Vec<_> = (1..threads.min(n)).map(|_| scope.spawn(work)).collect();
        let mut parts = work();
        for worker in workers {
            match worker.join() {
                Ok(done) => parts.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        parts
    });
    // Parts are begun in order, so those before the first that failed are all there.
    parts.sort_unstable_by_key(|(nth, _)| *nth);
    parts.into_iter().map(|(_, part)| part).collect()
}
