//! Quantises plain matrices while they are read.

use half::{bf16, f16};

use crate::config::Config;

use super::{
    Code, Coded, CodedRow, Form, LayerTensor, Offset, Offsets, Scale, Scales, Tensor, UNIT_COLUMNS,
    Weights, WeightsError,
};

/// Largest step of a scale that is stored in steps.
const MAX_STEP: f32 = 63.0;

/// A source whose matrices are quantised when they are read. Norms and biases stay plain, and so do
/// matrices that are coded already.
pub struct Quantised<W> {
    from: W,
    recipe: Recipe,
    name: String,
}

/// The forms that matrices are quantised to.
#[derive(Clone, Copy, Debug)]
enum Recipe {
    /// All to one.
    One(Coded),
    /// Those of llama.cpp's Q4_K_M.
    Q4KM { layers: usize, tied_head: bool },
}

impl Recipe {
    fn form(self, tensor: Tensor) -> Coded {
        use LayerTensor as T;
        let (layers, tied_head) = match self {
            Self::One(form) => return form,
            Self::Q4KM { layers, tied_head } => (layers, tied_head),
        };
        let is_six = match tensor {
            Tensor::Head => true,
            Tensor::Embed => tied_head,
            Tensor::Layer(layer, T::V | T::Down | T::ExpertDown) => {
                takes_more_bits(layer.into(), layers)
            }
            _ => false,
        };
        if is_six { Coded::Q6_K } else { Coded::Q4_K }
    }
}

/// The layers whose values and `down` have six bits: the first and the last eighth, and every third
/// between them.
fn takes_more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

impl Coded {
    /// Signed integers with a bf16 scale for each 32 columns.
    pub const fn int(bits: u8) -> Self {
        let (scale, offset) = (Scale::Bf16, Offset::None);
        Self { code: Code::Int { bits }, group: 32, scale, offset }
    }

    /// GGUF's Q4_K.
    pub const Q4_K: Self = Self {
        code: Code::Uint { bits: 4 },
        group: 32,
        scale: Scale::Steps,
        offset: Offset::Minimum,
    };

    /// GGUF's Q6_K.
    pub const Q6_K: Self =
        Self { code: Code::Int { bits: 6 }, group: 16, scale: Scale::Steps, offset: Offset::None };
}

impl<W: Weights> Quantised<W> {
    /// The weights of `from` in this form.
    pub fn new(from: W, form: Coded) -> Self {
        Self { from, recipe: Recipe::One(form), name: format!("{form:?}") }
    }

    /// The weights of a model's `from` in the mix of forms that llama.cpp calls `Q4_K_M`.
    pub fn q4_k_m(from: W, config: &Config) -> Self {
        let recipe = Recipe::Q4KM { layers: config.layers, tied_head: config.tied_head };
        Self { from, recipe, name: format!("{recipe:?}") }
    }
}

impl<W: Weights> Weights for Quantised<W> {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        if self.form(tensor) == self.from.form(tensor) {
            return self.from.read(tensor, visit);
        }
        let mut widened = Vec::new();
        let form = self.recipe.form(tensor);
        let values = form.code.values();
        self.read_coded(tensor, &mut |row, codes| {
            widened.resize(codes.codes.len(), 0.0);
            codes.widen(form.group, &values, &mut widened);
            visit(row, &widened);
        })
    }

    fn form(&self, tensor: Tensor) -> Form {
        match self.from.form(tensor) {
            Form::Plain if is_matrix(tensor) => Form::Coded(self.recipe.form(tensor)),
            form => form,
        }
    }

    fn read_coded(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        if let Form::Coded(_) = self.from.form(tensor) {
            return self.from.read_coded(tensor, visit);
        }
        let mut quantiser = Quantiser::new(self.recipe.form(tensor));
        self.from.read(tensor, &mut |row, values| visit(row, &quantiser.quantise(values)))
    }

    fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.from.fingerprint()).update(self.name.as_bytes());
        *hasher.finalize().as_bytes()
    }
}

fn is_matrix(tensor: Tensor) -> bool {
    use LayerTensor as T;
    match tensor {
        Tensor::Embed | Tensor::Head => true,
        Tensor::FinalNorm => false,
        Tensor::Layer(_, kind) => match kind {
            T::Q | T::K | T::V | T::O | T::Gate | T::Up | T::Down => true,
            T::ExpertGate | T::ExpertUp | T::ExpertDown => true,
            // A router's choices are worth more than its few bytes.
            T::Router => false,
            T::AttentionNorm | T::MlpNorm | T::QNorm | T::KNorm => false,
            T::QBias | T::KBias | T::VBias => false,
        },
    }
}

/// Quantises rows; its memory serves one row after the other.
pub struct Quantiser {
    form: Coded,
    values: Vec<f32>,
    codes: Vec<u8>,
    scales: Numbers,
    zeros: Vec<i8>,
    minimums: Numbers,
}

/// The scales or minimums of a row: as numbers, and as units and steps.
#[derive(Default)]
struct Numbers {
    wanted: Vec<f32>,
    units: Vec<f32>,
    steps: Vec<i8>,
}

impl Quantiser {
    /// A quantiser for rows of this form.
    pub fn new(form: Coded) -> Self {
        Self {
            form,
            values: form.code.values(),
            codes: Vec::new(),
            scales: Numbers::default(),
            zeros: Vec::new(),
            minimums: Numbers::default(),
        }
    }

    /// The row's codes: nearest to the weights, given scales that cover each group's extremes.
    pub fn quantise(&mut self, weights: &[f32]) -> CodedRow<'_> {
        let Self { form, values, codes, scales, zeros, minimums } = self;
        let most = values.iter().copied().fold(f32::MIN, f32::max);
        let least = values.iter().copied().fold(f32::MAX, f32::min);
        scales.wanted.clear();
        minimums.wanted.clear();
        zeros.clear();
        for group in weights.chunks(form.group) {
            let high = group.iter().copied().fold(0.0, f32::max);
            let low = group.iter().copied().fold(0.0, f32::min);
            match form.offset {
                Offset::None => scales.wanted.push((high / most).max(low / least)),
                Offset::Zero | Offset::Minimum => {
                    scales.wanted.push((high - low) / (most - least));
                    minimums.wanted.push(low - least * scales.wanted[scales.wanted.len() - 1]);
                }
            }
        }
        scales.store(form);
        if form.offset == Offset::Minimum {
            minimums.store(form);
        }
        codes.clear();
        for (g, group) in weights.chunks(form.group).enumerate() {
            let scale = scales.get().of(g, form.group);
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            let offset = match form.offset {
                Offset::None => 0.0,
                Offset::Minimum => -minimums.get().of(g, form.group),
                Offset::Zero => {
                    let zero = (-minimums.wanted[g] * inverse).round().clamp(-128.0, 127.0);
                    zeros.push(zero as i8);
                    zero * scale
                }
            };
            codes.extend(group.iter().map(|w| nearest(form.code, values, (w + offset) * inverse)));
        }
        CodedRow {
            codes,
            scales: scales.get(),
            offsets: match form.offset {
                Offset::None => Offsets::None,
                Offset::Zero => Offsets::Zeros(zeros),
                Offset::Minimum => Offsets::Minimums(minimums.get()),
            },
        }
    }
}

/// The code of the nearest number; the lower one of two.
fn nearest(code: Code, values: &[f32], wanted: f32) -> u8 {
    if let Code::Int { .. } | Code::Uint { .. } = code {
        let code = (wanted - values[0]).round_ties_even();
        return code.clamp(0.0, values.len() as f32 - 1.0) as u8;
    }
    let far = |code: &usize| {
        let distance = (values[*code] - wanted).abs();
        if distance.is_nan() { f32::INFINITY } else { distance }
    };
    (0..values.len()).min_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or(0) as u8
}

impl Numbers {
    /// Rounds what is wanted as the form stores it.
    fn store(&mut self, form: &Coded) {
        let round: fn(f32) -> f32 = match form.scale {
            Scale::F16 => |x| f16::from_f32(x).to_f32(),
            Scale::Bf16 => |x| bf16::from_f32(x).to_f32(),
            Scale::F32 => |x| x,
            Scale::Steps => return self.store_steps(form.group),
        };
        self.units.clear();
        self.units.extend(self.wanted.iter().map(|number| round(*number)));
    }

    fn store_steps(&mut self, group: usize) {
        self.units.clear();
        self.steps.clear();
        for wanted in self.wanted.chunks(UNIT_COLUMNS / group) {
            let most = wanted.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()));
            let unit = f16::from_f32(most.unwrap_or(0.0) / MAX_STEP).to_f32();
            let inverse = if unit == 0.0 { 0.0 } else { 1.0 / unit };
            self.units.push(unit);
            self.steps.extend(wanted.iter().map(|number| (number * inverse).round() as i8));
        }
    }

    fn get(&self) -> Scales<'_> {
        Scales { units: &self.units, steps: &self.steps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q4_k_m_has_six_bits_where_llama_cpp_has_them() {
        let of = |tied_head| Recipe::Q4KM { layers: 36, tied_head };
        let six = |kind| -> Vec<u16> {
            let is_six = |layer: &u16| of(false).form(Tensor::Layer(*layer, kind)) == Coded::Q6_K;
            (0..36).filter(is_six).collect()
        };
        // Qwen3-8B-Q4_K_M.gguf has these.
        let more = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 31, 32, 33, 34, 35];
        assert_eq!((six(LayerTensor::V), six(LayerTensor::Down)), (more.to_vec(), more.to_vec()));
        assert_eq!((six(LayerTensor::Q), six(LayerTensor::Gate)), (vec![], vec![]));
        let ends = |recipe: Recipe| [Tensor::Embed, Tensor::Head].map(|t| recipe.form(t));
        assert_eq!(ends(of(false)), [Coded::Q4_K, Coded::Q6_K]);
        assert_eq!(ends(of(true)), [Coded::Q6_K; 2]);
    }
}
