//! Quantises plain matrices while they are read.

use half::{bf16, f16};

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
    form: Coded,
    name: String,
}

impl Coded {
    /// Signed integers with a bf16 scale for each 32 columns.
    pub const fn int(bits: u8) -> Self {
        let (scale, offset) = (Scale::Bf16, Offset::None);
        Self { code: Code::Int { bits }, group: 32, scale, offset }
    }
}

impl<W: Weights> Quantised<W> {
    /// The weights of `from` in this form.
    pub fn new(from: W, form: Coded) -> Self {
        Self { from, form, name: format!("{form:?}") }
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
        let values = self.form.code.values();
        self.read_coded(tensor, &mut |row, codes| {
            widened.resize(codes.codes.len(), 0.0);
            codes.widen(self.form.group, &values, &mut widened);
            visit(row, &widened);
        })
    }

    fn form(&self, tensor: Tensor) -> Form {
        match self.from.form(tensor) {
            Form::Plain if is_matrix(tensor) => Form::Coded(self.form),
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
        let mut quantiser = Quantiser::new(self.form);
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
        Tensor::Layer(_, kind) => {
            matches!(kind, T::Q | T::K | T::V | T::O | T::Gate | T::Up | T::Down)
        }
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
