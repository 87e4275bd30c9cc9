//! Quantises rows to GGUF's blocks, bit for bit as llama.cpp and gguf-py do.

use half::f16;

use super::kind::Kind;

/// Values of a block of Q8_0 and of Q4_0.
const BLOCK: usize = 32;

/// Writes a row of values as this format. Rows of blocks have whole blocks.
pub(crate) fn encode(kind: Kind, values: &[f32], to: &mut [u8]) {
    match kind {
        Kind::Q8_0 => encode_blocks::<34>(values, to, q8_0),
        Kind::Q4_0 => encode_blocks::<18>(values, to, q4_0),
        Kind::F32 => {
            let words = to.as_chunks_mut::<4>().0;
            words.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_le_bytes());
        }
        other => panic!("weft writes no {other:?}"),
    }
}

fn encode_blocks<const N: usize>(
    values: &[f32],
    to: &mut [u8],
    block: fn(&[f32; BLOCK], &mut [u8; N]),
) {
    let blocks = values.as_chunks::<BLOCK>().0;
    blocks.iter().zip(to.as_chunks_mut::<N>().0).for_each(|(values, to)| block(values, to));
}

/// A scale, then signed bytes.
fn q8_0(values: &[f32; BLOCK], to: &mut [u8; 34]) {
    let scale = values.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / 127.0;
    let inverse = inverse(scale);
    to[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (to, value) in to[2..].iter_mut().zip(values) {
        *to = ((value * inverse).round() as i8).cast_unsigned();
    }
}

/// A scale, then nibbles: the low ones are the first 16 values, the high ones the others. The value
/// with the largest magnitude becomes -8, whatever its sign.
fn q4_0(values: &[f32; BLOCK], to: &mut [u8; 18]) {
    let largest = |most: f32, value: &f32| if value.abs() > most.abs() { *value } else { most };
    let scale = values.iter().fold(0.0, largest) / -8.0;
    let inverse = inverse(scale);
    to[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    let code = |value: f32| ((value * inverse + 8.5) as u8).min(15);
    for (i, to) in to[2..].iter_mut().enumerate() {
        *to = code(values[i]) | code(values[i + BLOCK / 2]) << 4;
    }
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks that gguf-py makes (`tools/golden_gguf.py`).
    macro_rules! golden {
        ($name:literal) => {
            include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gguf/", $name))
        };
    }

    #[test]
    fn blocks_are_those_of_gguf_py() {
        let values: Vec<f32> = golden!("blocks.f32")
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| f32::from_le_bytes(*word))
            .collect();
        let q8_0: &[u8] = golden!("blocks.q8_0");
        let q4_0: &[u8] = golden!("blocks.q4_0");
        for (kind, theirs) in [(Kind::Q8_0, q8_0), (Kind::Q4_0, q4_0)] {
            let mut ours = vec![0; kind.row_bytes(values.len())];
            encode(kind, &values, &mut ours);
            let bytes = kind.block_bytes();
            for (i, pair) in ours.chunks(bytes).zip(theirs.chunks(bytes)).enumerate() {
                assert_eq!(pair.0, pair.1, "{kind:?}, block {i}");
            }
            assert_eq!(ours.len(), theirs.len());
        }
    }
}
