//! Weights from a seed, for benchmarks and tests on real shapes without a download.
//!
//! The values are those of an untrained model, with one property of trained models that breaks
//! careless kernels: a few channels of the key norm are about 96 times the others, as in
//! Qwen3-0.6B.

use std::ops::Range;

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
        self.read_rows(tensor, 0..TensorShape::new(tensor, &self.config).rows(), visit)
    }

    fn read_rows(
        &self,
        tensor: Tensor,
        rows: Range<usize>,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        let shape = TensorShape::new(tensor, &self.config);
        let mut state = after(self.seed ^ hash(&tensor.name()), rows.start * shape.row());
        let mut values = vec![0.0; shape.row()];
        for row in rows {
            for (i, value) in values.iter_mut().enumerate() {
                *value = make(tensor, i, spread_about_zero(&mut state));
            }
            visit(row, &values);
        }
        Ok(())
    }

    fn is_shared_by_rows(&self, _tensor: Tensor) -> bool {
        true
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

/// The step from one state to the next.
const FACTOR: u64 = 6_364_136_223_846_793_005;
const SUMMAND: u64 = 1_442_695_040_888_963_407;

/// A state after some steps. Two steps are one with another factor and summand, and so on.
fn after(mut state: u64, mut n_steps: usize) -> u64 {
    let (mut factor, mut summand) = (FACTOR, SUMMAND);
    while n_steps > 0 {
        if n_steps % 2 == 1 {
            state = state.wrapping_mul(factor).wrapping_add(summand);
        }
        summand = summand.wrapping_mul(factor.wrapping_add(1));
        factor = factor.wrapping_mul(factor);
        n_steps /= 2;
    }
    state
}

/// The sum of four uniform numbers: close to a normal distribution, for one multiplication each.
fn spread_about_zero(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(FACTOR).wrapping_add(SUMMAND);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_same_wherever_reading_begins() {
        let config = crate::shapes::config("qwen3-0.6b").unwrap();
        let config = Config { vocab: 40, ..config };
        let weights = RandomWeights::new(&config, 7);
        for tensor in [Tensor::Embed, Tensor::Layer(3, LayerTensor::KNorm)] {
            let mut all = Vec::new();
            weights.read(tensor, &mut |_, values| all.push(values.to_vec())).unwrap();
            for first in [0, 1, 17, 39].into_iter().filter(|first| *first < all.len()) {
                let mut rows = Vec::new();
                let mut keep = |row: usize, values: &[f32]| rows.push((row, values.to_vec()));
                weights.read_rows(tensor, first..all.len(), &mut keep).unwrap();
                let expected: Vec<_> = all.iter().cloned().enumerate().skip(first).collect();
                assert!(rows == expected, "{tensor:?} from row {first}");
            }
        }
    }
}
