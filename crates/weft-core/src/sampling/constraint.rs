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

    /// An independent copy of the rule in the same state.
    fn boxed_clone(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

/// A constraint with the mask that it fills. Threads may compute the masks of several at once.
#[derive(Debug)]
pub(super) struct Constrained(Mutex<State>);

#[derive(Clone, Debug)]
struct State {
    rule: Box<dyn Constraint>,
    mask: Vec<u32>,
    /// Whether the mask is that of the next token, or why there is none. `None` if nobody asked.
    filled: Option<Result<(), String>>,
}

impl Clone for Constrained {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.state().clone()))
    }
}

impl Constrained {
    pub(super) fn new(rule: Box<dyn Constraint>, vocab: usize) -> Self {
        Self(Mutex::new(State { rule, mask: vec![0; vocab.div_ceil(32)], filled: None }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Visits the mask of the next token, which is computed when it is first asked for.
    pub(super) fn read_mask(&self, visit: impl FnOnce(&[u32])) -> Result<(), String> {
        let State { rule, mask, filled } = &mut *self.state();
        let fill = || {
            mask.fill(0);
            rule.allow(mask)
        };
        filled.get_or_insert_with(fill).clone().map(|()| visit(mask))
    }

    /// Sets the scores of forbidden tokens to -inf.
    pub(super) fn apply(&self, scores: &mut [f32]) -> Result<(), String> {
        self.read_mask(|mask| {
            for (token, score) in scores.iter_mut().enumerate() {
                if mask[token / 32] >> (token % 32) & 1 == 0 {
                    *score = f32::NEG_INFINITY;
                }
            }
        })
    }

    pub(super) fn accept(&self, token: u32) -> Result<(), String> {
        let mut state = self.state();
        state.filled = None;
        state.rule.accept(token)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Sampler, Sampling, SamplingError};
    use super::*;

    /// Allows the tokens of a list in order.
    #[derive(Clone, Debug)]
    struct Recite(Vec<u32>);

    impl Constraint for Recite {
        fn allow(&mut self, mask: &mut [u32]) -> Result<(), String> {
            let next = self.0.first().ok_or("the text is over")?;
            mask[*next as usize / 32] |= 1 << (next % 32);
            Ok(())
        }

        fn accept(&mut self, token: u32) -> Result<(), String> {
            assert_eq!(self.0.remove(0), token);
            Ok(())
        }

        fn boxed_clone(&self) -> Box<dyn Constraint> {
            Box::new(self.clone())
        }
    }

    const VOCAB: usize = 70;

    fn sampler(settings: &Sampling, text: &[u32]) -> Sampler {
        let mut sampler = Sampler::new(settings, &[], &[], VOCAB).unwrap();
        sampler.constrain(Box::new(Recite(text.to_vec())));
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

    /// A device reads the mask, chooses and has its token accepted: the sampler goes on as if it had
    /// chosen itself, and the mask of a token is computed once.
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
            fn boxed_clone(&self) -> Box<dyn Constraint> {
                Box::new(self.clone())
            }
        }
        let n = std::sync::Arc::default();
        let mut sampler = Sampler::new(&Sampling::default(), &[], &[], VOCAB).unwrap();
        let unconstrained = sampler.next_draw().unwrap();
        sampler.read_mask(|_| panic!("it has none")).unwrap();
        let text = [69, 32, 31];
        sampler.constrain(Box::new(Counted(Recite(text.to_vec()), std::sync::Arc::clone(&n))));
        assert!(sampler.next_draw().unwrap().is_masked && !unconstrained.is_masked);
        assert!(!sampler.next_draw().unwrap().adjusts);
        let allowed = |sampler: &Sampler| {
            let mut tokens = Vec::new();
            let is_set =
                |mask: &[u32], token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
            let read = sampler.read_mask(|mask| {
                tokens.extend((0..VOCAB as u32).filter(|token| is_set(mask, *token)));
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
