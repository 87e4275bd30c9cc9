//! A grammar of sorts for tests: a function says which tokens may follow an answer.

use weft_core::sampling::Constraint;

/// Whether a token may come next, by the answer's last token (0 before the first) and the number of
/// its tokens.
pub type Allows = fn(token: u32, last: u32, n_tokens: u32) -> bool;

/// A rule that a function defines.
#[derive(Clone, Debug)]
pub struct Rule {
    vocab: u32,
    allows: Allows,
    answer: Vec<u32>,
}

impl Rule {
    /// A rule for an answer of tokens below `vocab`.
    pub fn new(vocab: usize, allows: Allows) -> Self {
        let vocab = u32::try_from(vocab).expect("a vocabulary");
        Self { vocab, allows, answer: Vec::new() }
    }

    fn allows(&self, token: u32) -> bool {
        let last = self.answer.last().copied().unwrap_or_default();
        token < self.vocab && (self.allows)(token, last, self.answer.len() as u32)
    }
}

impl Constraint for Rule {
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), String> {
        for (word, bits) in (0..).zip(mask) {
            let bit = |bit: u32| u32::from(self.allows(word * 32 + bit)) << bit;
            *bits = (0..32).map(bit).sum();
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        if !self.allows(token) {
            return Err(format!("{token} is forbidden"));
        }
        self.answer.push(token);
        Ok(())
    }

    fn roll_back(&mut self, n: usize) -> Result<(), String> {
        self.answer.truncate(self.answer.len() - n);
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}
