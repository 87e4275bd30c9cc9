//! The mixture of experts of a model: how many experts a sparse layer has, how many of them a token
//! uses, and which layers are sparse. [`crate::routing`] chooses by it.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::parse::{LIMIT_LAYERS, LIMIT_WIDTH, value, within};
use super::{Config, ConfigError, Family};

/// Experts of a layer. Real models have up to 512.
const LIMIT_EXPERTS: usize = 1024;
/// Experts of a token. Real models have up to 22.
const LIMIT_CHOSEN: usize = 64;

/// The experts of a model's sparse layers: small gated MLPs, of which a router chooses a few for
/// each token.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a sparse layer.
    pub count: usize,
    /// Experts that the router chooses for a token; at most `count`.
    pub chosen: usize,
    /// Width of an expert's gated MLP.
    pub intermediate: usize,
    /// Whether the weights of a token's experts sum to 1.
    pub normalised: bool,
    /// Layers n − 1, 2n − 1, 3n − 1 … are sparse, where n is this number.
    pub every: usize,
    /// Layers among them that are dense all the same.
    pub dense_layers: Vec<usize>,
}

impl Experts {
    /// Whether a layer is sparse.
    fn has(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.every) && !self.dense_layers.contains(&layer)
    }

    /// The share of a layer's experts that some token of `n_tokens` chooses on average, if each
    /// expert is as likely as any other.
    pub(crate) fn share_read(&self, n_tokens: u64) -> f64 {
        let idle = 1.0 - self.chosen as f64 / self.count as f64;
        1.0 - idle.powf(n_tokens as f64)
    }

    pub(super) fn to_json(&self) -> Map<String, Value> {
        let json = json!({
            "num_experts": self.count,
            "num_experts_per_tok": self.chosen,
            "moe_intermediate_size": self.intermediate,
            "norm_topk_prob": self.normalised,
            "decoder_sparse_step": self.every,
            "mlp_only_layers": self.dense_layers,
        });
        match json {
            Value::Object(keys) => keys,
            _ => unreachable!("an object"),
        }
    }
}

impl Config {
    /// The experts of a layer; `None` if it is dense.
    pub fn experts_of(&self, layer: u16) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.has(usize::from(layer)))
    }

    /// Width of the widest dense MLP; 0 if every layer is sparse.
    pub fn dense_width(&self) -> usize {
        let is_sparse = |layer| self.experts.as_ref().is_some_and(|experts| experts.has(layer));
        if (0..self.layers).all(is_sparse) { 0 } else { self.intermediate }
    }
}

/// The keys of `config.json`.
#[derive(Deserialize)]
pub(super) struct RawExperts {
    num_experts: Option<usize>,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<usize>,
    mlp_only_layers: Option<Vec<usize>>,
}

/// The experts of a family that has them. Other families ignore the keys.
pub(super) fn parse(raw: &RawExperts, family: Family) -> Result<Option<Experts>, ConfigError> {
    if family != Family::Qwen3Moe {
        return Ok(None);
    }
    let need = |field, value: Option<usize>| {
        let model_type = family.model_type().to_owned();
        value.ok_or(ConfigError::Missing { field, model_type })
    };
    let count = need("num_experts", raw.num_experts.or(raw.num_local_experts))?;
    let count = within("num_experts", count, LIMIT_EXPERTS)?;
    let chosen = need("num_experts_per_tok", raw.num_experts_per_tok)?;
    let chosen = within("num_experts_per_tok", chosen, LIMIT_CHOSEN.min(count))?;
    let width = need("moe_intermediate_size", raw.moe_intermediate_size)?;
    let every = raw.decoder_sparse_step.unwrap_or(1);
    let dense_layers = raw.mlp_only_layers.clone().unwrap_or_default();
    if dense_layers.len() > LIMIT_LAYERS {
        let expected = format!("a list of at most {LIMIT_LAYERS} layers");
        return Err(value("mlp_only_layers", format!("{} layers", dense_layers.len()), expected));
    }
    Ok(Some(Experts {
        count,
        chosen,
        intermediate: within("moe_intermediate_size", width, LIMIT_WIDTH)?,
        normalised: raw.norm_topk_prob.unwrap_or(false),
        every: within("decoder_sparse_step", every, LIMIT_LAYERS)?,
        dense_layers,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experts(every: usize, dense_layers: &[usize]) -> Experts {
        let dense_layers = dense_layers.to_vec();
        Experts { count: 8, chosen: 2, intermediate: 4, normalised: true, every, dense_layers }
    }

    #[test]
    fn layers_are_sparse_as_transformers_has_it() {
        let sparse = |experts: Experts| -> Vec<usize> {
            (0..6).filter(|layer| experts.has(*layer)).collect()
        };
        assert_eq!(sparse(experts(1, &[])), [0, 1, 2, 3, 4, 5]);
        assert_eq!(sparse(experts(2, &[])), [1, 3, 5]);
        assert_eq!(sparse(experts(2, &[0, 3, 99])), [1, 5]);
    }

    #[test]
    fn more_tokens_read_more_experts_and_never_more_than_all() {
        let experts = experts(1, &[]);
        assert_eq!([experts.share_read(0), experts.share_read(1)], [0.0, 0.25]);
        assert_eq!(experts.share_read(2), 0.4375);
        assert!(experts.share_read(1000) <= 1.0 && experts.share_read(1000) > 0.999);
    }
}
