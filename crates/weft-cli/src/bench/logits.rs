//! Fingerprints of logits: equal bits give equal hashes, which exposes a fast but wrong run.

use serde::{Deserialize, Serialize};

/// A summary of the logits at the end of a test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Logits {
    /// The hash of all lanes; at batch 1, the hash of its lane.
    pub(crate) hash: String,
    /// The hash of each lane. It depends only on the weights and the lane's tokens.
    pub(crate) lane_hashes: Vec<String>,
    /// The largest magnitude.
    pub(crate) max_abs: f64,
    /// Whether all of them are finite.
    pub(crate) finite: bool,
}

impl Logits {
    /// From one row of logits per lane.
    pub(crate) fn of<'l>(lanes: impl Iterator<Item = &'l [f32]>) -> Self {
        let mut hashes = Vec::new();
        let (mut max_abs, mut finite) = (0.0_f32, true);
        for lane in lanes {
            hashes.push(fnv(lane.iter().map(|logit| logit.to_bits())));
            finite &= lane.iter().all(|logit| logit.is_finite());
            max_abs = lane.iter().fold(max_abs, |max, logit| max.max(logit.abs()));
        }
        let all = match hashes.as_slice() {
            [one] => *one,
            many => fnv(many.iter().flat_map(|hash| [*hash as u32, (hash >> 32) as u32])),
        };
        let text = |hash: &u64| format!("{hash:016x}");
        Self {
            hash: text(&all),
            lane_hashes: hashes.iter().map(text).collect(),
            max_abs: if finite { f64::from(max_abs) } else { 0.0 },
            finite,
        }
    }
}

/// FNV-1a of the words' bytes.
fn fnv(words: impl Iterator<Item = u32>) -> u64 {
    words.flat_map(u32::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lanes: &[&[f32]]) -> Logits {
        Logits::of(lanes.iter().copied())
    }

    #[test]
    fn any_bit_shows_in_the_hash() {
        let one = of(&[&[1.0, -2.0, 0.0]]);
        assert_eq!(one, of(&[&[1.0, -2.0, 0.0]]));
        assert_eq!((one.max_abs, one.finite), (2.0, true));
        assert_ne!(one.hash, of(&[&[1.0, -2.0, -0.0]]).hash);
        assert_ne!(one.hash, of(&[&[-2.0, 1.0, 0.0]]).hash);
    }

    #[test]
    fn a_lane_has_the_hash_it_has_alone() {
        let both = of(&[&[1.0], &[2.0]]);
        assert_eq!(both.lane_hashes, [of(&[&[1.0]]).hash, of(&[&[2.0]]).hash]);
        assert_ne!(both.hash, of(&[&[2.0], &[1.0]]).hash);
    }

    #[test]
    fn logits_that_are_not_finite_are_reported() {
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(!of(&[&[1.0], &[bad]]).finite);
        }
    }
}
