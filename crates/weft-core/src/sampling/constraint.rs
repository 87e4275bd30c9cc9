//! Constraints on an answer, such as a grammar: a rule that allows some tokens at each step.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A rule that an answer follows, token by token.
pub trait Constraint: Send + fmt::Debug {
    /// Sets the bits of the tokens that may come next: bit `t % 32` of word `t / 32` for token `t`.
    /// All bits are clear before the call. If the answer must end here, sets the end token's bit.
    /// The error says why the rule cannot continue.
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), String>;

    /// Advances by a chosen token, which was allowed.
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// Takes back the last `n` accepted tokens.
    fn roll_back(&mut self, n: usize) -> Result<(), String>;

    /// An independent copy of the rule in the same state.
    fn boxed_clone(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

/// A constraint with the masks that it fills. Threads may compute the masks of several at once.
#[derive(Debug)]
pub(super) struct Constrained(Mutex<State>);

#[derive(Clone, Debug)]
struct State {
    rule: Box<dyn Constraint>,
    /// Tokens of a draft that the rule has accepted on trial. The answer may not get them.
    tried: Vec<u32>,
    /// The masks after none of these tokens, after the first, and so on; one more than `tried`. All
    /// but the last are filled. Those beyond are spare.
    masks: Vec<Mask>,
}

#[derive(Clone, Debug)]
struct Mask {
    words: Vec<u32>,
    /// Whether the mask is filled, or why it cannot be. `None` if nobody asked.
    filled: Option<Result<(), String>>,
}

impl Clone for Constrained {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.state().clone()))
    }
}

impl Constrained {
    pub(super) fn new(rule: Box<dyn Constraint>, vocab: usize) -> Self {
        let masks = vec![Mask { words: vec![0; vocab.div_ceil(32)], filled: None }];
        Self(Mutex::new(State { rule, tried: Vec::new(), masks }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Visits the mask of the token after a draft, which is computed when it is first asked for.
    pub(super) fn read_mask_after(
        &self,
        drafted: &[u32],
        visit: impl FnOnce(&[u32]),
    ) -> Result<(), String> {
        let mut state = self.state();
        state.try_tokens(drafted)?;
        state.mask(drafted.len()).map(visit)
    }

    /// The number of tokens of a draft, from its first on, that the rule allows.
    pub(super) fn n_allowed(&self, drafted: &[u32]) -> usize {
        let mut state = self.state();
        let fits = |n: &usize| state.try_tokens(&drafted[..*n]).is_ok();
        (1..=drafted.len()).take_while(fits).count()
    }

    /// Sets the scores of forbidden tokens to -inf.
    pub(super) fn apply(&self, scores: &mut [f32]) -> Result<(), String> {
        self.read_mask_after(&[], |mask| {
            for (token, score) in scores.iter_mut().enumerate() {
                if !is_set(mask, token) {
                    *score = f32::NEG_INFINITY;
                }
            }
        })
    }

    pub(super) fn accept(&self, token: u32) -> Result<(), String> {
        let state = &mut *self.state();
        if state.tried.first() == Some(&token) {
            state.tried.remove(0);
            state.masks.rotate_left(1);
            let spare = state.masks.last_mut().expect("there is always a mask");
            spare.filled = None;
            return Ok(());
        }
        state.keep_tried(0)?;
        state.masks[0].filled = None;
        state.rule.accept(token)
    }
}

impl State {
    /// Takes all tried tokens back but the first `n`.
    fn keep_tried(&mut self, n: usize) -> Result<(), String> {
        if n < self.tried.len() {
            self.rule.roll_back(self.tried.len() - n)?;
            self.tried.truncate(n);
            self.masks[n + 1..].iter_mut().for_each(|mask| mask.filled = None);
        }
        Ok(())
    }

    /// Makes the tried tokens start with a draft.
    fn try_tokens(&mut self, drafted: &[u32]) -> Result<(), String> {
        let common = self.tried.iter().zip(drafted).take_while(|(a, b)| a == b).count();
        if common == drafted.len() {
            return Ok(());
        }
        self.keep_tried(common)?;
        for &token in &drafted[common..] {
            if !is_set(self.mask(self.tried.len())?, token as usize) {
                return Err(format!("the drafted token {token} is not allowed here"));
            }
            self.rule.accept(token)?;
            self.tried.push(token);
            if self.masks.len() == self.tried.len() {
                let words = vec![0; self.masks[0].words.len()];
                self.masks.push(Mask { words, filled: None });
            }
        }
        Ok(())
    }

    /// The mask after the first `n` tried tokens. If there are more, it is filled.
    fn mask(&mut self, n: usize) -> Result<&[u32], String> {
        let Self { rule, masks, .. } = self;
        let Mask { words, filled } = &mut masks[n];
        let fill = || {
            words.fill(0);
            rule.allow(words)
        };
        filled.get_or_insert_with(fill).clone().map(|()| &words[..])
    }
}

fn is_set(mask: &[u32], token: usize) -> bool {
    mask[token / 32] >> (token % 32) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::super::{Sampler, Sampling, SamplingError};
    use super::*;

    /// Allows the tokens of a list in order.
    #[derive(Clone, Debug)]
    struct Recite {
        text: Vec<u32>,
        at: usize,
    }

    impl Constraint for Recite {
        fn allow(&mut self, mask: &mut [u32]) -> Result<(), String> {
            let next = self.text.get(self.at).ok_or("the text is over")?;
            mask[*next as usize / 32] |= 1 << (next % 32);
            Ok(())
        }

        fn accept(&mut self, token: u32) -> Result<(), String> {
            assert_eq!(self.text[self.at], token);
            self.at += 1;
            Ok(())
        }

        fn roll_back(&mut self, n: usize) -> Result<(), String> {
            self.at -= n;
            Ok(())
        }

        fn boxed_clone(&self) -> Box<dyn Constraint> {
            Box::new(self.clone())
        }
    }

    const VOCAB: usize = 70;

    fn sampler(settings: &Sampling, text: &[u32]) -> Sampler {
        let mut sampler = Sampler::new(settings, &[], &[], VOCAB).unwrap();
        sampler.constrain(Box::new(Recite { text: text.to_vec(), at: 0 }));
        sampler
    }

    #[test]
    fn only_what_is_allowed_is_chosen_however_unlikely() {
        let mut logits = vec![0.0; VOCAB];
        (logits[1], logits[69]) = (9.0, -9.0);
        for temperature in [0.0, 1.0] {
            let settings = Sampling { temperature, top_k: 3, top_p: 0.5, ..Sampling::default() };
            let mut sampler = sampler(&settings, &[69, 32, 31]);
            let mut fork = sampler.clone();
            for wanted in [69, 32, 31] {
                assert_eq!(sampler.sample(&logits).unwrap().token, wanted);
            }
            assert_eq!(fork.sample(&logits).unwrap().token, 69, "a copy goes its own way");
        }
    }

    /// A device reads the mask, chooses and has its token accepted: the sampler goes on as if it
    /// had chosen itself, and the mask of a token is computed once.
    #[test]
    fn a_device_that_chooses_by_the_mask_gives_the_sampler_s_tokens() {
        #[derive(Clone, Debug)]
        struct Counted(Recite, std::sync::Arc<std::sync::atomic::AtomicUsize>);
        impl Constraint for Counted {
            fn allow(&mut self, mask: &mut [u32]) -> Result<(), String> {
                self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                self.0.allow(mask)
            }
            fn accept(&mut self, token: u32) -> Result<(), String> {
                self.0.accept(token)
            }
            fn roll_back(&mut self, n: usize) -> Result<(), String> {
                self.0.roll_back(n)
            }
            fn boxed_clone(&self) -> Box<dyn Constraint> {
                Box::new(self.clone())
            }
        }
        let n = std::sync::Arc::default();
        let mut sampler = Sampler::new(&Sampling::default(), &[], &[], VOCAB).unwrap();
        let unconstrained = sampler.next_draw().unwrap();
        sampler.read_mask_after(&[], |_| panic!("it has none")).unwrap();
        let text = [69, 32, 31];
        let recite = Recite { text: text.to_vec(), at: 0 };
        sampler.constrain(Box::new(Counted(recite, std::sync::Arc::clone(&n))));
        assert!(sampler.next_draw().unwrap().is_masked && !unconstrained.is_masked);
        assert!(!sampler.next_draw().unwrap().adjusts);
        let allowed = |sampler: &Sampler| {
            let mut tokens = Vec::new();
            let read = sampler.read_mask_after(&[], |mask| {
                tokens.extend((0..VOCAB as u32).filter(|token| is_set(mask, *token as usize)));
            });
            read.map(|()| tokens)
        };
        for (i, wanted) in text.into_iter().enumerate() {
            for _ in 0..2 {
                assert_eq!(allowed(&sampler).unwrap(), [wanted]);
            }
            assert_eq!(n.load(std::sync::atomic::Ordering::Relaxed), i + 1, "computed once");
            // A choice that a device leaves to the sampler takes the same mask.
            if i == 1 {
                assert_eq!(sampler.sample(&[0.0; VOCAB]).unwrap().token, wanted);
            } else {
                sampler.accept(wanted).unwrap();
            }
        }
        fn is_shared<T: Send + Sync>(_: &T) {}
        is_shared(&sampler);
        let over = Err(SamplingError::Constraint("the text is over".into()));
        assert_eq!(allowed(&sampler), over);
        assert_eq!(sampler.sample(&[0.0; VOCAB]).map(|_| Vec::new()), over);
        assert_eq!(sampler.n_generated(), 3);
    }

    /// The masks after a draft are those of the sampler when it gets there, whatever else was
    /// looked at before, and looking ahead leaves no trace.
    #[test]
    fn a_look_ahead_shows_what_will_be_allowed_and_leaves_no_trace() {
        let text = [69, 32, 31, 5, 6, 7];
        let allowed = |sampler: &Sampler, drafted: &[u32]| {
            let mut tokens = Vec::new();
            let read = sampler.read_mask_after(drafted, |mask| {
                tokens.extend((0..VOCAB as u32).filter(|token| is_set(mask, *token as usize)));
            });
            read.map(|()| tokens)
        };
        for seed in 0..50_usize {
            let mut sampler = sampler(&Sampling::default(), &text);
            for at in 0..text.len() {
                for look in 0..4 {
                    let n = (seed * 7 + at * 3 + look * 5) % (text.len() - at);
                    assert_eq!(allowed(&sampler, &text[at..at + n]).unwrap(), [text[at + n]]);
                    let mut wrong = text[at..at + n].to_vec();
                    wrong.push(68);
                    assert!(allowed(&sampler, &wrong).is_err(), "a forbidden draft");
                    assert_eq!(sampler.possible(&wrong), n);
                    assert_eq!(sampler.possible(&text[at..]), text.len() - at);
                }
                if (seed + at).is_multiple_of(2) {
                    allowed(&sampler, &[]).unwrap();
                }
                let logits = [0.0; VOCAB];
                match (seed + at).is_multiple_of(3) {
                    true => assert_eq!(sampler.sample(&logits).unwrap().token, text[at]),
                    false => sampler.accept(text[at]).unwrap(),
                }
            }
            assert!(allowed(&sampler, &[]).is_err());
        }
    }

    #[test]
    fn a_rule_that_cannot_go_on_ends_the_answer() {
        let mut sampler = sampler(&Sampling::default(), &[]);
        let error = sampler.sample(&[0.0; VOCAB]).unwrap_err();
        assert_eq!(error, SamplingError::Constraint("the text is over".into()));
        let mut logits = [0.0; VOCAB];
        logits[5] = f32::NEG_INFINITY;
        let mut sampler = self::sampler(&Sampling::default(), &[5]);
        assert!(matches!(sampler.sample(&logits), Err(SamplingError::NoCandidate { .. })));
        let mut sampler = self::sampler(&Sampling::default(), &[5]);
        logits[6] = f32::NAN;
        assert!(matches!(sampler.sample(&logits), Err(SamplingError::BadLogit { .. })));
    }
}
