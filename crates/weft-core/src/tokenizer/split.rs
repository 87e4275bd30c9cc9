//! Cuts a text into words. Byte pairs merge only inside a word.
//!
//! It runs the regular expressions of a tokenizer's pre-tokenizer. Nearly every one ends in
//! `|\s+(?!\S)|\s+`: a run of white space leaves its last character to the next word. The
//! look-ahead forces the regex crate into backtracking with a stack of a million entries.
//! `tokenizers` takes an overflow of this stack for the end of the text: everything after a longer
//! run of white space becomes one word. Here, the look-ahead is removed from the expression and
//! done by hand, which is exact for any text and faster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use fancy_regex::{CompileError, Error, Regex, RegexBuilder};

use super::TokenizerError;
use crate::expressions::check_repeats;

/// GPT-2's expression, and the default of the `ByteLevel` step.
pub(super) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The end of an expression that leaves the last white space of a run to the next word.
const GIVE_BACK: &str = r"|\s+(?!\S)|\s+";

/// Bytes of a compiled expression that does not look around. Those of real tokenizers take up to
/// 450 kB.
const COMPILED_BYTES: usize = 2 << 20;

/// The splitting steps of a tokenizer, in order; each cuts the pieces of the one before it.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    steps: Vec<Arc<Step>>,
}

/// One expression: its matches and the text between them are the pieces.
#[derive(Debug)]
enum Step {
    AsWritten(Regex),
    /// `head|\s+(?!\S)|\s+`, as `head|\s+` and `\A(?:head)`.
    GiveBack {
        all: Regex,
        head: Regex,
    },
}

impl Splitter {
    /// Adds a step that cuts at the matches of `pattern`.
    pub(super) fn push(&mut self, pattern: &str) -> Result<(), TokenizerError> {
        self.steps.push(Arc::new(Step::new(pattern)?));
        Ok(())
    }

    /// The same for an expression of this program. It is compiled once for all tokenizers, because
    /// that takes longer than all else that makes a small one.
    pub(super) fn push_known(&mut self, pattern: &'static str) -> Result<(), TokenizerError> {
        static COMPILED: Mutex<BTreeMap<&str, Arc<Step>>> = Mutex::new(BTreeMap::new());
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        let step = match compiled.get(pattern) {
            Some(step) => Arc::clone(step),
            None => Arc::new(Step::new(pattern)?),
        };
        compiled.insert(pattern, Arc::clone(&step));
        self.steps.push(step);
        Ok(())
    }

    /// Calls `each` with every word of `text`, in order. The concatenated words are the text.
    pub(super) fn words<'t>(&self, text: &'t str, each: &mut dyn FnMut(&'t str)) {
        Self::cut(&self.steps, text, each);
    }

    fn cut<'t>(steps: &[Arc<Step>], text: &'t str, each: &mut dyn FnMut(&'t str)) {
        if text.is_empty() {
            return;
        }
        let Some((step, rest)) = steps.split_first() else { return each(text) };
        step.cut(text, &mut |piece| Self::cut(rest, piece, each));
    }
}

impl Step {
    fn new(pattern: &str) -> Result<Self, TokenizerError> {
        let refused = |why: String| {
            let text: String = pattern.chars().take(80).collect();
            TokenizerError::Unsupported(format!(
                "its pre-tokenizer's expression {text:?} is refused: {why}; take another model"
            ))
        };
        check_repeats(pattern).map_err(refused)?;
        let compile = |pattern: &str| {
            let regex = RegexBuilder::new(pattern).delegate_size_limit(COMPILED_BYTES).build();
            regex.map_err(|error| refused(reason(&error)))
        };
        Ok(match pattern.strip_suffix(GIVE_BACK) {
            Some(head) if is_blind(head) => Self::GiveBack {
                all: compile(&format!(r"{head}|\s+"))?,
                head: compile(&format!(r"\A(?:{head})"))?,
            },
            _ => Self::AsWritten(compile(pattern)?),
        })
    }

    fn cut<'t>(&self, text: &'t str, each: &mut dyn FnMut(&'t str)) {
        // The search starts at `from`; the text up to `done` has been returned.
        let (mut from, mut done) = (0, 0);
        'search: loop {
            let regex = match self {
                Self::AsWritten(regex) | Self::GiveBack { all: regex, .. } => regex,
            };
            for (start, end) in matches(regex, &text[from..]) {
                let (start, end) = (start + from, end + from);
                each(&text[done..start]);
                done = end;
                if let Some(kept) = self.give_back(text, start, end) {
                    each(&text[start..kept]);
                    (from, done) = (kept, kept);
                    continue 'search;
                }
                each(&text[start..end]);
            }
            return each(&text[done..]);
        }
    }

    /// The corrected end of the match `start..end`, if the match is a run of white space by
    /// `\s+(?!\S)` with more than one character that does not end the text.
    fn give_back(&self, text: &str, start: usize, end: usize) -> Option<usize> {
        let Self::GiveBack { head, .. } = self else { return None };
        let run = &text[start..end];
        let last = run.chars().next_back().filter(|c| c.is_whitespace())?;
        if end == text.len() || last.len_utf8() == run.len() || !run.trim_start().is_empty() {
            return None;
        }
        // An earlier alternative (`\s*[\r\n]+`) may have matched white space too; it leaves
        // nothing.
        let by_head = matches(head, &text[start..]).next().is_some();
        (!by_head).then(|| end - last.len_utf8())
    }
}

/// Where an expression matches. A search that takes too many steps ends as if there were no further
/// match, as it does in `tokenizers`.
fn matches(regex: &Regex, text: &str) -> impl Iterator<Item = (usize, usize)> {
    regex.find_iter(text).map_while(|found| found.ok().map(|found| (found.start(), found.end())))
}

/// Whether the expression has no look-around, so that it can be matched at the start of a slice.
fn is_blind(pattern: &str) -> bool {
    let looks = ["(?=", "(?!", "(?<", r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G", "$"];
    let mut before = None;
    let anchored = pattern.chars().any(|c| {
        let hit = c == '^' && before != Some('[');
        before = Some(c);
        hit
    });
    !anchored && !looks.iter().any(|look| pattern.contains(look))
}

/// Why an expression cannot be compiled.
fn reason(error: &Error) -> String {
    if let Error::CompileError(error) = error
        && let CompileError::InnerError(error) = &**error
        && let Some(limit) = error.size_limit()
    {
        return format!("compiled, it has more than {limit} bytes");
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const LLAMA: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    fn words<'t>(step: &Step, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        step.cut(text, &mut |word| {
            if !word.is_empty() {
                words.push(word);
            }
        });
        words
    }

    fn splitter(pattern: &str) -> Splitter {
        let mut splitter = Splitter::default();
        splitter.push(pattern).unwrap();
        splitter
    }

    proptest! {
        #[test]
        fn giving_back_by_hand_equals_the_look_ahead(
            text in "([ \t\r\n\u{a0}\u{2003}]|[a-c]|'s|'|[0-9]|[.!<|>]|é|人|\u{301}){0,40}"
        ) {
            for pattern in [QWEN, LLAMA, GPT2] {
                let ours = splitter(pattern);
                let by_hand = matches!(*ours.steps[0], Step::GiveBack { .. });
                prop_assert!(by_hand);
                let plain = Step::AsWritten(Regex::new(pattern).unwrap());
                prop_assert_eq!(words(&ours.steps[0], &text), words(&plain, &text));
            }
        }
    }

    #[test]
    fn a_run_longer_than_the_regex_stack_keeps_its_words() {
        let text = format!("{}one two", " \t".repeat(600_000));
        let ours = splitter(QWEN);
        let found = words(&ours.steps[0], &text);
        assert_eq!(found.len(), 3);
        assert_eq!(&found[1..], ["\tone", " two"]);
    }

    #[test]
    fn expressions_that_look_around_are_run_as_written() {
        for pattern in
            [r"^a|\s+(?!\S)|\s+", r"a(?=b)|\s+(?!\S)|\s+", r"\s+", r"[^a]$|\s+(?!\S)|\s+"]
        {
            assert!(matches!(*splitter(pattern).steps[0], Step::AsWritten(_)), "{pattern}");
        }
    }

    #[test]
    fn a_known_expression_is_compiled_once() {
        let known = |pattern| {
            let mut splitter = Splitter::default();
            splitter.push_known(pattern).unwrap();
            splitter.steps.remove(0)
        };
        let (first, again, other) = (known(QWEN), known(QWEN), known(LLAMA));
        assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
        assert_eq!(words(&again, "a 123"), ["a", " ", "1", "2", "3"]);
        assert_eq!(words(&other, "a 123"), ["a", " ", "123"]);
    }

    #[test]
    fn steps_cut_one_after_the_other() {
        let mut splitter = splitter(r"\p{N}");
        splitter.push(GPT2).unwrap();
        let mut words = Vec::new();
        splitter.words("ab  12 c", &mut |word| words.push(word));
        assert_eq!(words, ["ab", "  ", "1", "2", " c"]);
    }
}
