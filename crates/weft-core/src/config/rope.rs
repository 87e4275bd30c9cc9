//! Settings of the rotary embedding, from the newer `rope_parameters` or the older `rope_theta` and
//! `rope_scaling` keys. [`crate::rope`] computes with them.

use serde::Deserialize;

use super::ConfigError;
use super::parse::value;

/// Base and scaling of the rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// The base of the frequencies.
    pub theta: f64,
    /// Scaling of the frequencies for contexts longer than the trained one.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    /// The context length after YaRN scaling. Its authors ask users to add YaRN to a config and to
    /// leave `max_position_embeddings` unchanged.
    pub(super) fn stretched_positions(&self) -> usize {
        match self.scaling {
            RopeScaling::Yarn { factor, original_positions, .. } => {
                (original_positions * factor) as usize
            }
            RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) => 0,
        }
    }
}

impl RopeConfig {
    /// Whether YaRN scales cos and sin as its authors do.
    pub(crate) fn has_default_attention_factor(&self) -> bool {
        match self.scaling {
            RopeScaling::Yarn { factor, attention_factor, .. } => {
                (yarn_mscale(factor, 1.0) - attention_factor).abs() < 1e-6
            }
            _ => true,
        }
    }
}

/// Scaling of the rotary frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Llama 3: low frequencies divided by `factor`, a smooth ramp between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_positions / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_positions / high_freq_factor` are unchanged.
        high_freq_factor: f64,
        /// The trained context.
        original_positions: f64,
    },
    /// YaRN: per-dimension ramp, and cos and sin scaled by `attention_factor`.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Dimensions with more rotations than this over the trained context are unchanged.
        beta_fast: f64,
        /// Dimensions with fewer rotations than this over the trained context are divided.
        beta_slow: f64,
        /// The trained context.
        original_positions: f64,
        /// Scale of cos and sin, hence of q and of k, applied once to each.
        attention_factor: f64,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
    },
    /// The divisor of each frequency, \[head_dim/2\]: how GGUF files store Llama 3's scaling.
    Factors(Vec<f32>),
}

/// The keys as files write them.
#[derive(Deserialize)]
pub(super) struct RawRope {
    rope_theta: Option<f64>,
    rope_parameters: Option<RawScaling>,
    rope_scaling: Option<RawScaling>,
    partial_rotary_factor: Option<f64>,
}

#[derive(Deserialize)]
struct RawScaling {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
    r#type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    partial_rotary_factor: Option<f64>,
}

/// The base of the first rotary models, which is the default if a file has none.
const DEFAULT_THETA: f64 = 10_000.0;

pub(super) fn parse(raw: &RawRope, max_positions: usize) -> Result<RopeConfig, ConfigError> {
    let settings = raw.rope_parameters.as_ref().or(raw.rope_scaling.as_ref());
    let theta = settings.and_then(|s| s.rope_theta).or(raw.rope_theta).unwrap_or(DEFAULT_THETA);
    if !(theta.is_finite() && theta > 1.0) {
        return Err(value("rope_theta", theta, "a number above 1"));
    }
    let partial = settings.and_then(|s| s.partial_rotary_factor).or(raw.partial_rotary_factor);
    if let Some(share) = partial.filter(|share| *share != 1.0) {
        return Err(value("partial_rotary_factor", share, "1: the whole head is rotated"));
    }
    let scaling = match settings {
        Some(settings) => scaling(settings, max_positions as f64)?,
        None => RopeScaling::None,
    };
    Ok(RopeConfig { theta, scaling })
}

fn scaling(raw: &RawScaling, max_positions: f64) -> Result<RopeScaling, ConfigError> {
    match raw.rope_type.as_deref().or(raw.r#type.as_deref()).unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "llama3" => llama3(raw),
        "yarn" => yarn(raw, max_positions),
        other => Err(value("rope_type", other, "default, llama3 or yarn")),
    }
}

fn llama3(raw: &RawScaling) -> Result<RopeScaling, ConfigError> {
    let low_freq_factor = positive("low_freq_factor", raw.low_freq_factor)?;
    let high_freq_factor = positive("high_freq_factor", raw.high_freq_factor)?;
    if high_freq_factor <= low_freq_factor {
        let expected = format!("a number above low_freq_factor ({low_freq_factor})");
        return Err(value("high_freq_factor", high_freq_factor, expected));
    }
    Ok(RopeScaling::Llama3 {
        factor: at_least_one("factor", raw.factor)?,
        low_freq_factor,
        high_freq_factor,
        original_positions: positive(
            "original_max_position_embeddings",
            raw.original_max_position_embeddings,
        )?,
    })
}

fn yarn(raw: &RawScaling, max_positions: f64) -> Result<RopeScaling, ConfigError> {
    let original = raw.original_max_position_embeddings.unwrap_or(max_positions);
    let original_positions = positive("original_max_position_embeddings", Some(original))?;
    let factor = raw.factor.unwrap_or(max_positions / original_positions);
    let factor = at_least_one("factor", Some(factor))?;
    let attention_factor = match (raw.attention_factor, raw.mscale, raw.mscale_all_dim) {
        (Some(given), ..) => given,
        (None, Some(m), Some(all)) if m != 0.0 && all != 0.0 => {
            yarn_mscale(factor, m) / yarn_mscale(factor, all)
        }
        _ => yarn_mscale(factor, 1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: positive("beta_fast", Some(raw.beta_fast.unwrap_or(32.0)))?,
        beta_slow: positive("beta_slow", Some(raw.beta_slow.unwrap_or(1.0)))?,
        original_positions,
        attention_factor: positive("attention_factor", Some(attention_factor))?,
        truncate: raw.truncate.unwrap_or(true),
    })
}

/// YaRN's temperature for a scaling by `factor`.
fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

fn positive(field: &'static str, found: Option<f64>) -> Result<f64, ConfigError> {
    match found {
        Some(number) if number.is_finite() && number > 0.0 => Ok(number),
        Some(number) => Err(value(field, number, "a positive number")),
        None => Err(value(field, "absent", "a positive number")),
    }
}

fn at_least_one(field: &'static str, found: Option<f64>) -> Result<f64, ConfigError> {
    let number = positive(field, found)?;
    if number < 1.0 { Err(value(field, number, "a number of at least 1")) } else { Ok(number) }
}
