//! The rotary position embedding: frequencies, the table of cos and sin, and the rotation itself.
//!
//! One table serves keys (rotated at their home position when they are stored) and queries (rotated
//! per span when they attend). Pairing is rotate-half: dimension i turns with i + head_dim/2.

use std::f64::consts::PI;

use crate::config::{RopeConfig, RopeScaling};

/// cos and sin of every position and frequency.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// f32 \[positions\]\[head_dim/2\], multiplied by YaRN's attention factor.
    cos: Vec<f32>,
    /// f32 \[positions\]\[head_dim/2\], multiplied by YaRN's attention factor.
    sin: Vec<f32>,
    half: usize,
}

impl RopeTable {
    /// Fills the table for positions `0..positions`.
    ///
    /// Angles are computed in f64. In f32 they would be off by up to 2e-3 rad at position 32,768,
    /// and a chunk that was moved that far would get other scores than at home.
    pub fn new(config: &RopeConfig, head_dim: usize, positions: usize) -> Self {
        let frequencies = frequencies(config, head_dim);
        let scale = match config.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) => 1.0,
        };
        let angles = (0..positions)
            .flat_map(|position| frequencies.iter().map(move |f| position as f64 * f64::from(*f)));
        let (cos, sin) =
            angles.map(|a| ((a.cos() * scale) as f32, (a.sin() * scale) as f32)).unzip();
        Self { cos, sin, half: head_dim / 2 }
    }

    /// cos and sin of one position, each f32 \[head_dim/2\].
    pub fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let row = position * self.half..(position + 1) * self.half;
        (&self.cos[row.clone()], &self.sin[row])
    }

    /// Rotates one head to `position`: f32 \[head_dim\] → f32 \[head_dim\].
    pub fn rotate(&self, position: usize, head: &[f32], out: &mut [f32]) {
        let (cos, sin) = self.at(position);
        let (low, high) = head.split_at(self.half);
        let (out_low, out_high) = out.split_at_mut(self.half);
        for i in 0..self.half {
            out_low[i] = low[i] * cos[i] - high[i] * sin[i];
            out_high[i] = high[i] * cos[i] + low[i] * sin[i];
        }
    }
}

/// The rotation per position of each pair of dimensions, f32 \[head_dim/2\].
pub fn frequencies(config: &RopeConfig, head_dim: usize) -> Vec<f32> {
    let half = head_dim / 2;
    let base: Vec<f64> =
        (0..half).map(|i| config.theta.powf(-((2 * i) as f64) / head_dim as f64)).collect();
    let scaled = match &config.scaling {
        RopeScaling::None => base,
        RopeScaling::Factors(factors) => {
            base.iter().zip(factors).map(|(f, factor)| f / f64::from(*factor)).collect()
        }
        RopeScaling::Llama3 { .. } => base.iter().map(|f| llama3(*f, &config.scaling)).collect(),
        RopeScaling::Yarn { .. } => yarn(&base, config, head_dim),
    };
    scaled.into_iter().map(|f| f as f32).collect()
}

/// The divisor of each frequency, f32 \[head_dim/2\], as GGUF files store Llama 3's scaling.
pub(crate) fn factors(config: &RopeConfig, head_dim: usize) -> Vec<f32> {
    if let RopeScaling::Factors(factors) = &config.scaling {
        return factors.clone();
    }
    let base = |i: usize| config.theta.powf(-((2 * i) as f64) / head_dim as f64);
    let divisor = |frequency: f64| frequency / llama3(frequency, &config.scaling);
    (0..head_dim / 2).map(|i| divisor(base(i)) as f32).collect()
}

/// Llama 3: long wavelengths are divided by the factor, short ones are unchanged, with a ramp
/// between.
fn llama3(frequency: f64, scaling: &RopeScaling) -> f64 {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } =
        *scaling
    else {
        return frequency;
    };
    let wavelength = 2.0 * PI / frequency;
    if wavelength > original_positions / low_freq_factor {
        return frequency / factor;
    }
    if wavelength < original_positions / high_freq_factor {
        return frequency;
    }
    let smooth =
        (original_positions / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
    (1.0 - smooth) * frequency / factor + smooth * frequency
}

/// YaRN: dimensions that rotate often over the trained context are unchanged, slow ones are
/// divided.
fn yarn(base: &[f64], config: &RopeConfig, head_dim: usize) -> Vec<f64> {
    let RopeScaling::Yarn { factor, beta_fast, beta_slow, original_positions, truncate, .. } =
        config.scaling
    else {
        return base.to_vec();
    };
    // The (fractional) pair of dimensions that makes `rotations` turns over the trained context.
    let pair_with = |rotations: f64| {
        head_dim as f64 * (original_positions / (rotations * 2.0 * PI)).ln()
            / (2.0 * config.theta.ln())
    };
    let (mut low, mut high) = (pair_with(beta_fast), pair_with(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
    if low == high {
        high += 0.001;
    }
    let ramp = |i: usize| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
    base.iter().enumerate().map(|(i, f)| f / factor * ramp(i) + f * (1.0 - ramp(i))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: RopeConfig = RopeConfig { theta: 1e6, scaling: RopeScaling::None };

    #[test]
    fn pairs_are_half_a_head_apart() {
        let table = RopeTable::new(&PLAIN, 8, 4);
        let (cos, sin) = table.at(3);
        let mut out = [0.0; 8];
        table.rotate(3, &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], &mut out);
        assert_eq!(out, [cos[0], 0.0, 0.0, 0.0, sin[0], 0.0, 0.0, 0.0]);
    }

    /// The values of transformers for Qwen3 with YaRN, at unchanged, ramped and divided dimensions.
    /// Without `original_max_position_embeddings`, the model's own maximum is used.
    #[test]
    fn yarn_of_the_real_shape() {
        let stretched = |original: &str| {
            let json = format!(
                r#"{{"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 1,
                    "num_attention_heads": 16, "head_dim": 128, "intermediate_size": 1,
                    "vocab_size": 1, "max_position_embeddings": 40960, "rope_theta": 1e6,
                    "rope_scaling": {{"rope_type": "yarn", "factor": 4.0 {original}}}}}"#
            );
            let config = crate::config::Config::from_json(json.as_bytes()).unwrap();
            (frequencies(&config.rope, 128), config)
        };
        let check = |ours: &[f32], theirs: &[(usize, f32)]| {
            for (i, theirs) in theirs {
                assert!((ours[*i] - theirs).abs() < 1e-6 * theirs, "{i}: {} {theirs}", ours[*i]);
            }
        };
        let (given, config) = stretched(r#", "original_max_position_embeddings": 32768"#);
        check(&given, &[(15, 0.039_241_9), (23, 0.006_978_306), (25, 0.004_131_738)]);
        check(&given, &[(30, 1.064_361e-3), (40, 4.445_698_5e-5), (63, 3.102_344_4e-7)]);
        assert_eq!(config.max_positions, 131_072, "the stretched context");
        let RopeScaling::Yarn { attention_factor, .. } = config.rope.scaling else { panic!() };
        assert!((attention_factor - 1.138_629_436_111_989).abs() < 1e-12);
        let (absent, _) = stretched("");
        check(&absent, &[(23, 0.006_978_306), (25, 0.004_331_661), (40, 5.230_233_4e-5)]);
    }

    /// Factors of a GGUF file give the frequencies that the scaling gives which they stand for.
    #[test]
    fn factors_divide_each_frequency() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_positions: 8192.0,
        };
        let scaled = frequencies(&RopeConfig { theta: 5e5, scaling }, 128);
        let plain = frequencies(&RopeConfig { theta: 5e5, scaling: RopeScaling::None }, 128);
        let factors: Vec<f32> = plain.iter().zip(&scaled).map(|(a, b)| a / b).collect();
        assert!(factors[0] == 1.0 && factors[63] == 8.0);
        assert!(factors.iter().any(|factor| *factor > 1.1 && *factor < 7.9));
        let scaling = RopeScaling::Factors(factors);
        let divided = frequencies(&RopeConfig { theta: 5e5, scaling }, 128);
        for (ours, theirs) in divided.iter().zip(&scaled) {
            assert!((ours - theirs).abs() <= 2e-7 * theirs, "{ours} {theirs}");
        }
    }

    #[test]
    fn scores_depend_on_the_distance_alone() {
        let table = RopeTable::new(&PLAIN, 128, 40_000);
        let q: Vec<f32> = (0..128).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
        let k: Vec<f32> = (0..128).map(|i| ((i * 53 % 97) as f32 - 48.0) / 48.0).collect();
        let score = |m: usize, n: usize| {
            let (mut qr, mut kr) = ([0.0; 128], [0.0; 128]);
            table.rotate(m, &q, &mut qr);
            table.rotate(n, &k, &mut kr);
            qr.iter().zip(&kr).map(|(a, b)| f64::from(a * b)).sum::<f64>()
        };
        for shift in [1, 1_000, 30_000] {
            let moved = score(9_000 + shift, 8_000 + shift);
            assert!((moved - score(9_000, 8_000)).abs() < 1e-4, "shift {shift}: {moved}");
        }
    }
}
