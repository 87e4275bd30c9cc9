//! Forms that devices are tested with: every kind of code, scale and offset, alone and mixed.

use weft_core::config::Config;
use weft_core::weights::{
    Code, Coded, CodedRow, Form, Offset, Quantised, RandomWeights, Scale, Table, Tensor, Weights,
    WeightsError,
};

/// Numbers as unlike integers as those of a 4-bit float.
const FP4: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Every kind of code, and every way to store scales and offsets, in combinations that files have
/// and some that they have not.
pub fn all() -> Vec<Coded> {
    let int = |bits| Code::Int { bits };
    let uint = |bits| Code::Uint { bits };
    let table = Code::Table(Table::new(FP4));
    let form = |code, group, scale, offset| Coded { code, group, scale, offset };
    vec![
        form(int(8), 32, Scale::F16, Offset::None),
        form(int(4), 32, Scale::F16, Offset::None),
        form(int(5), 32, Scale::F16, Offset::None),
        form(uint(4), 32, Scale::F16, Offset::Minimum),
        form(uint(5), 32, Scale::F16, Offset::Minimum),
        form(uint(4), 32, Scale::Steps, Offset::Minimum),
        form(uint(5), 32, Scale::Steps, Offset::Minimum),
        form(uint(4), 16, Scale::Steps, Offset::Minimum),
        form(int(6), 16, Scale::Steps, Offset::None),
        form(int(4), 16, Scale::Steps, Offset::None),
        form(int(4), 128, Scale::F16, Offset::Zero),
        form(uint(8), 64, Scale::F32, Offset::Zero),
        form(uint(6), 64, Scale::F32, Offset::Minimum),
        form(Code::Fp8, 128, Scale::Bf16, Offset::None),
        form(Code::Fp8, 1 << 20, Scale::F32, Offset::None),
        form(table, 32, Scale::Bf16, Offset::None),
        form(table, 16, Scale::F32, Offset::None),
    ]
}

/// Random weights in forms as files mix them: by tensor and by layer, with plain matrices among
/// them.
pub struct Mixed {
    plain: RandomWeights,
    coded: Vec<Quantised<RandomWeights>>,
    /// The form of a tensor, if it is coded.
    which: fn(Tensor) -> Option<usize>,
}

impl Mixed {
    /// Weights of which each tensor has the form that `which` picks from `all`.
    pub fn new(config: &Config, all: &[Coded], which: fn(Tensor) -> Option<usize>) -> Self {
        let random = || RandomWeights::new(config, 7);
        let coded = all.iter().map(|form| Quantised::new(random(), *form)).collect();
        Self { plain: random(), coded, which }
    }

    fn of(&self, tensor: Tensor) -> &dyn Weights {
        (self.which)(tensor).map_or(&self.plain as &dyn Weights, |i| &self.coded[i])
    }
}

impl Weights for Mixed {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        self.of(tensor).read(tensor, visit)
    }

    fn form(&self, tensor: Tensor) -> Form {
        self.of(tensor).form(tensor)
    }

    fn read_coded(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        self.of(tensor).read_coded(tensor, visit)
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.plain.fingerprint()
    }
}
