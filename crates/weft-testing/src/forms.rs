//! Forms that devices are tested with: every kind of code, scale and offset.

use weft_core::weights::{Code, Coded, Offset, Scale, Table};

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
