//! A small model with large logits, for tests that choose tokens on the GPU, and its device's limits.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_core::config::Config;
use weft_core::device::Limits;
use weft_core::weights::{RandomWeights, Tensor, Weights, WeightsError};
use weft_cuda::{Launches, Options, compile_ahead};

use crate::gpu::gpu_is_there;

pub const LIMITS: Limits =
    Limits { step_tokens: 160, step_outputs: 16, positions: 1024, pages: 64 };

/// The vocabulary that has the persistent kernels of all numbers of lanes; others have those that
/// one test needs.
pub const VOCAB: usize = 5003;

/// The options of a device that can be launched in all ways, with the persistent kernels of some
/// numbers of lanes.
pub fn all_ways(config: &Config, lanes: &'static [usize]) -> Options {
    let all = Options { launches: Launches::Persistent, ..Options::new(LIMITS) };
    if config.vocab == VOCAB { all } else { Options { lanes, ..all } }
}

/// The GPU for one test, if there is one: tests of one program take turns. The kernels of the test
/// are compiled before, beside those of others.
pub fn gpu_alone(config: &Config, options: &Options) -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    gpu_is_there().then(|| {
        compile_ahead(config, &RandomWeights::new(config, 1), options).unwrap();
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    })
}

pub fn config(vocab: usize) -> Config {
    let json = format!(
        r#"{{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "intermediate_size": 96, "vocab_size": {vocab}, "rope_theta": 10000.0,
            "max_position_embeddings": 1024, "tie_word_embeddings": false}}"#
    );
    Config::from_json(json.as_bytes()).unwrap()
}

/// Random weights with a head of larger logits, some rows of which are changed.
pub struct Head<F> {
    random: RandomWeights,
    change: F,
}

impl<F: Fn(usize, &mut Vec<f32>) + Send + Sync> Weights for Head<F> {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        self.random.read(tensor, &mut |row, values| {
            if tensor != Tensor::Head {
                return visit(row, values);
            }
            let mut values: Vec<f32> = values.iter().map(|value| value * 12.0).collect();
            (self.change)(row, &mut values);
            visit(row, &values);
        })
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.random.fingerprint()
    }
}

pub fn head<F: Fn(usize, &mut Vec<f32>) + Send + Sync>(config: &Config, change: F) -> Head<F> {
    Head { random: RandomWeights::new(config, 7), change }
}
