//! Weights from a seed, for benchmarks and tests on real shapes without a download.
//!
//! The values are those of an untrained model, with one property of trained models that breaks
//! careless kernels: a few channels of the key norm are about 96 times the others, as in
//! Qwen3-0.6B.

use super::{LayerTensor, Tensor, TensorShape, Weights, WeightsError};
use crate::config::Config;

/// Standard deviation of the matrices.
const SPREAD: f32 = 0.02;
/// The largest key-norm weight; every `OUTLIER_EVERY`-th channel has it.
const OUTLIER: f32 = 96.0;
const OUTLIER_EVERY: usize = 37;

/// Random weights for given dimensions; the same seed gives the same weights.
pub struct RandomWeights {
    config: Config,
    seed: u64,
}

impl RandomWeights {
    /// Weights for `config`.
    pub fn new(config: &Config, seed: u64) -> Self {
        Self { config: config.clone(), seed }
    }
}

impl Weights for RandomWeights {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        let shape = TensorShape::new(tensor, &self.config);
        let mut state = self.seed ^ hash(&tensor.name());
        let mut values = vec![0.0; shape.row()];
        for row in 0..shape.rows() {
            for (i, value) in values.iter_mut().enumerate() {
                *value = make(tensor, i, spread_about_zero(&mut state));
            }
            visit(row, &values);
        }
        Ok(())
    }

    fn fingerprint(&self) -> [u8; 32] {
        *blake3::hash(format!("random {}", self.seed).as_bytes()).as_bytes()
    }
}

/// The value of one weight, from a random number with mean 0 and deviation 1.
fn make(tensor: Tensor, channel: usize, noise: f32) -> f32 {
    match tensor {
        Tensor::Layer(_, LayerTensor::KNorm) if channel.is_multiple_of(OUTLIER_EVERY) => OUTLIER,
        Tensor::FinalNorm
        | Tensor::Layer(
            _,
            LayerTensor::AttentionNorm
            | LayerTensor::MlpNorm
            | LayerTensor::QNorm
            | LayerTensor::KNorm,
        ) => 1.0 + 0.1 * noise,
        _ => SPREAD * noise,
    }
}

/// The sum of four uniform numbers: close to a normal distribution, for one multiplication each.
fn spread_about_zero(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let bits = *state ^ (*state >> 29);
    let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
    // Four uniforms on [0, 1): mean 2, deviation sqrt(4/12).
    (sum as f32 / 65_536.0 - 2.0) * 1.732
}

fn hash(name: &str) -> u64 {
    // FNV-1a.
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}
