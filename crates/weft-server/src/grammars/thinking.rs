//! A limit on how long a model thinks: after so many tokens the thought is closed, and the answer
//! follows.

use std::sync::Arc;

use weft_core::sampling::Constraint;
use weft_core::tokenizer::Tokenizer;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Allows every token while the thought is short enough; then only those that close it.
#[derive(Clone, Debug)]
pub(crate) struct ThinkingLimit {
    tokenizer: Arc<Tokenizer>,
    /// The most tokens of a thought.
    limit: usize,
    /// The tokens that close it.
    closing: Vec<u32>,
    /// Whether the prompt has opened the thought.
    is_opened: bool,
    /// The text up to the end of the thought, and how long it was before each token.
    text: Vec<u8>,
    lengths: Vec<usize>,
    /// How many tokens there were when the thought was closed.
    closed_after: Option<usize>,
}

impl ThinkingLimit {
    /// A limit for the answer to a prompt that ends with `prompt_end`. None if the tokenizer has no
    /// tokens that close a thought.
    pub(crate) fn new(tokenizer: &Arc<Tokenizer>, limit: usize, prompt_end: &str) -> Option<Self> {
        Some(Self {
            tokenizer: Arc::clone(tokenizer),
            limit,
            closing: tokenizer.encode_markup(&format!("\n{CLOSE}")).ok()?,
            is_opened: prompt_end.trim_end().ends_with(OPEN),
            text: Vec::new(),
            lengths: Vec::new(),
            closed_after: None,
        })
    }

    fn is_thinking(&self) -> bool {
        let opens = || self.text.trim_ascii_start().starts_with(OPEN.as_bytes());
        self.closed_after.is_none() && (self.is_opened || opens())
    }

    /// The token that must come next, if the thought is too long.
    fn forced(&self) -> Option<u32> {
        let over = self.lengths.len().checked_sub(self.limit)?;
        self.closing.get(over).copied().filter(|_| self.is_thinking())
    }
}

impl Constraint for ThinkingLimit {
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), String> {
        match self.forced() {
            Some(token) => mask[token as usize / 32] |= 1 << (token % 32),
            None => mask.fill(u32::MAX),
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.lengths.push(self.text.len());
        if self.closed_after.is_none() {
            // The tag may have begun in the tokens before.
            let from = self.text.len().saturating_sub(CLOSE.len());
            self.text.extend_from_slice(self.tokenizer.token_bytes(token).unwrap_or_default());
            let mut ends = self.text[from..].windows(CLOSE.len());
            if ends.any(|bytes| bytes == CLOSE.as_bytes()) {
                self.closed_after = Some(self.lengths.len());
            }
        }
        Ok(())
    }

    fn roll_back(&mut self, n: usize) -> Result<(), String> {
        let left = self.lengths.len().saturating_sub(n);
        if let Some(length) = self.lengths.get(left) {
            self.text.truncate(*length);
        }
        self.lengths.truncate(left);
        self.closed_after = self.closed_after.filter(|closed| *closed <= left);
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer() -> Arc<Tokenizer> {
        let json = include_bytes!("../../../../assets/weft-tiny/tokenizer.json");
        Arc::new(Tokenizer::from_bytes(json).unwrap())
    }

    /// The text of a model that always writes "a", except where it must not.
    fn written(limit: &mut ThinkingLimit, n: usize) -> String {
        let tokenizer = tokenizer();
        let a = tokenizer.encode_text("a").unwrap()[0];
        let mut tokens = Vec::new();
        for _ in 0..n {
            let mut mask = vec![0_u32; tokenizer.vocab_size().div_ceil(32) as usize];
            limit.allow(&mut mask).unwrap();
            let may = |token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
            let next = if may(a) { a } else { (0..).find(|token| may(*token)).unwrap() };
            limit.accept(next).unwrap();
            tokens.push(next);
        }
        tokenizer.decode(&tokens, false)
    }

    #[test]
    fn a_long_thought_is_closed_and_an_answer_is_left_alone() {
        let tokenizer = tokenizer();
        let limit = |prompt_end| ThinkingLimit::new(&tokenizer, 3, prompt_end).unwrap();
        let thought = written(&mut limit("<|im_start|>assistant\n<think>\n"), 40);
        assert!(thought.starts_with("aaa\n</think>aaaa"), "{thought}");
        assert_eq!(written(&mut limit("assistant\n"), 9), "aaaaaaaaa", "it does not think");
        let mut short = limit("<think>");
        for token in tokenizer.encode_markup("b</think>").unwrap() {
            short.accept(token).unwrap();
        }
        assert_eq!(written(&mut short, 9), "aaaaaaaaa", "it has thought already");
    }

    #[test]
    fn what_is_taken_back_was_never_thought() {
        let tokenizer = tokenizer();
        let mut limit = ThinkingLimit::new(&tokenizer, 3, "<think>\n").unwrap();
        let whole = written(&mut limit.clone(), 30);
        for n in [1, 4, 12, 25] {
            written(&mut limit, n);
            limit.roll_back(n).unwrap();
            assert_eq!(written(&mut limit.clone(), 30), whole, "after {n}");
        }
    }
}
