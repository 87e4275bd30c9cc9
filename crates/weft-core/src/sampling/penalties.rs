//! The penalties for repeated tokens: counts of seen tokens, and the arithmetic of the three
//! penalties, all in f32, one rounding per operation and no fused multiply-add.

use super::Sampling;

/// Counts use a word per vocabulary entry. There are none while every penalty is off.
#[derive(Clone)]
pub(super) struct Penalties {
    repetition: f32,
    frequency: f32,
    presence: f32,
    /// `[vocab]`: `None` for tokens never seen, else the number of occurrences in the output; 0 for
    /// a token that occurs only in the prompt. Empty while every penalty is off.
    counts: Vec<Option<u32>>,
    /// The tokens whose count is `Some`, so that a step visits only these.
    seen: Vec<u32>,
}

impl Penalties {
    /// Every id of `prompt` must be below `vocab`.
    pub(super) fn new(settings: &Sampling, prompt: &[u32], vocab: usize) -> Self {
        let mut penalties = Self {
            repetition: settings.repetition_penalty,
            frequency: settings.frequency_penalty,
            presence: settings.presence_penalty,
            counts: Vec::new(),
            seen: Vec::new(),
        };
        if penalties.are_on() {
            penalties.counts = vec![None; vocab];
            penalties.seen.reserve_exact(vocab);
        }
        // Only the repetition penalty considers the prompt.
        if penalties.repetition != 1.0 {
            prompt.iter().for_each(|&token| _ = penalties.see(token));
        }
        penalties
    }

    /// Whether any penalty has an effect.
    pub(super) fn are_on(&self) -> bool {
        self.repetition != 1.0 || self.frequency != 0.0 || self.presence != 0.0
    }

    /// Counts a generated token.
    pub(super) fn record(&mut self, token: u32) {
        if self.are_on() {
            *self.see(token) += 1;
        }
    }

    /// The tokens seen, with their number of occurrences in the output.
    pub(super) fn seen(&self) -> impl Iterator<Item = (u32, u32)> {
        let count = |token: u32| self.counts[token as usize].unwrap_or_default();
        self.seen.iter().map(move |&token| (token, count(token)))
    }

    fn see(&mut self, token: u32) -> &mut u32 {
        let count = &mut self.counts[token as usize];
        if count.is_none() {
            self.seen.push(token);
        }
        count.get_or_insert(0)
    }

    /// Changes the scores (`[vocab]`) of the tokens seen.
    pub(super) fn apply(&self, scores: &mut [f32]) {
        for &token in &self.seen {
            let score = &mut scores[token as usize];
            *score = if *score < 0.0 { *score * self.repetition } else { *score / self.repetition };
            if let Some(count @ 1..) = self.counts[token as usize] {
                *score -= self.frequency * count as f32;
                *score -= self.presence;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalised(settings: &Sampling, prompt: &[u32], output: &[u32]) -> Vec<f32> {
        let mut penalties = Penalties::new(settings, prompt, 4);
        output.iter().for_each(|&token| penalties.record(token));
        let mut scores = vec![4.0, -4.0, 3.0, 0.0];
        penalties.apply(&mut scores);
        scores
    }

    #[test]
    fn repetition_divides_positive_and_multiplies_negative_logits_once_per_token() {
        let settings = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        assert_eq!(penalised(&settings, &[0, 0, 1], &[]), [2.0, -8.0, 3.0, 0.0]);
        assert_eq!(penalised(&settings, &[], &[0, 0, 1, 3]), [2.0, -8.0, 3.0, 0.0]);
        assert_eq!(penalised(&settings, &[0], &[0, 2]), [2.0, -4.0, 1.5, 0.0]);
    }

    #[test]
    fn frequency_counts_the_output_only() {
        let settings = Sampling { frequency_penalty: 0.5, ..Sampling::default() };
        assert_eq!(penalised(&settings, &[0, 2, 2], &[1, 1, 1, 3]), [4.0, -5.5, 3.0, -0.5]);
    }

    #[test]
    fn presence_asks_the_output_only_and_may_be_negative() {
        let settings = Sampling { presence_penalty: 1.5, ..Sampling::default() };
        assert_eq!(penalised(&settings, &[0, 2, 2], &[1, 1, 1, 3]), [4.0, -5.5, 3.0, -1.5]);
        let settings = Sampling { presence_penalty: -1.5, ..Sampling::default() };
        assert_eq!(penalised(&settings, &[], &[1]), [4.0, -2.5, 3.0, 0.0]);
    }

    #[test]
    fn repetition_comes_before_the_other_two() {
        let settings = Sampling {
            repetition_penalty: 2.0,
            frequency_penalty: 1.0,
            presence_penalty: 0.25,
            ..Sampling::default()
        };
        // Token 0: 4 / 2 - 2 * 1 - 0.25; token 2 is in the prompt alone: 3 / 2.
        assert_eq!(penalised(&settings, &[2], &[0, 0]), [-0.25, -4.0, 1.5, 0.0]);
    }

    #[test]
    fn nothing_is_kept_while_every_penalty_is_off() {
        let mut penalties = Penalties::new(&Sampling::default(), &[1, 2], 4);
        penalties.record(3);
        assert_eq!((penalties.counts.capacity(), penalties.seen.capacity()), (0, 0));
    }
}
