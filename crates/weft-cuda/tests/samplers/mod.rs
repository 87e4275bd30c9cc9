//! Samplers of every kind that lanes may have, and a lane after some more tokens.

use weft_core::sampling::{Sampler, Sampling};

use weft_testing::{Work, tokens};

/// How a lane chooses its tokens, and a seed.
fn sampler(kind: usize, seed: u64, vocab: usize) -> Sampler {
    let drawn = Sampling { temperature: 0.8, top_k: 20, seed, ..Sampling::default() };
    let settings = match kind {
        0 => Sampling { temperature: 0.0, ..Sampling::default() },
        1 => Sampling { top_p: 0.8, ..drawn },
        2 => Sampling { repetition_penalty: 1.3, min_p: 0.01, ..drawn },
        3 => Sampling { temperature: 0.0, frequency_penalty: 0.7, presence_penalty: 1.5, ..drawn },
        _ => Sampling { min_tokens: 9, stop_ids: vec![2, 3, 4], top_k: 100, ..drawn },
    };
    Sampler::new(&settings, &tokens(30, seed as u32, vocab), &[0], vocab).unwrap()
}
/// The first takes the best logit of every lane.
pub const KINDS: usize = 5;

/// A sampler for each lane: all of a kind, or in turn of all kinds.
pub fn samplers(kind: usize, n_lanes: usize, seed: u32, vocab: usize) -> Vec<Sampler> {
    let of = |lane: usize| if kind < KINDS { kind } else { lane % KINDS };
    (0..n_lanes).map(|lane| sampler(of(lane), u64::from(seed) + lane as u64, vocab)).collect()
}

/// The lane after `n` more tokens: the one that was drawn last stands at the end of its span.
pub fn moved_on(work: &Work, token: u32, n: usize) -> Work {
    let mut work = work.clone();
    let span = work.spans.last_mut().unwrap();
    span.len += n;
    work.store_at = vec![span.slot(span.len - 1)];
    work.positions[0] += n as u32;
    work.key_positions[0] += n as u32;
    work.tokens = vec![token];
    work
}
