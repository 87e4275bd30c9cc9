//! Unicode normal forms, applied to a text of any length in bounded memory.
//!
//! A text is cut into blocks so that the normalised blocks, joined, equal the normalised text.

use std::borrow::Cow;

use unicode_normalization_alignments::UnicodeNormalization;

/// A Unicode normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

/// A text that is normalised is there twice, so long texts are processed in blocks.
const BLOCK_BYTES: usize = 16 << 10;

/// Applies `forms` one after the other. ASCII is in every normal form.
pub(super) fn apply<'t>(forms: &[Form], text: &'t str) -> Cow<'t, str> {
    let mut text = Cow::Borrowed(text);
    for &form in forms {
        if !text.is_ascii() {
            text = Cow::Owned(blocks(&text).map(|block| normalize(form, block)).collect());
        }
    }
    text
}

fn normalize(form: Form, block: &str) -> String {
    if block.is_ascii() {
        return block.to_owned();
    }
    // Each character comes with its change of length, which nobody needs here.
    match form {
        Form::Nfc => block.nfc().map(|(c, _)| c).collect(),
        Form::Nfd => block.nfd().map(|(c, _)| c).collect(),
        Form::Nfkc => block.nfkc().map(|(c, _)| c).collect(),
        Form::Nfkd => block.nfkd().map(|(c, _)| c).collect(),
    }
}

/// Cuts `text` before characters that neither combine with nor reorder around the text before them:
/// ASCII and the unified ideographs. A block without any of them grows until there is one.
fn blocks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let cut = rest
            .char_indices()
            .skip_while(|&(at, _)| at < BLOCK_BYTES)
            .find(|&(_, c)| c.is_ascii() || ('\u{4e00}'..='\u{9fff}').contains(&c))
            .map_or(rest.len(), |(at, _)| at);
        let (block, after) = rest.split_at(cut);
        rest = after;
        Some(block)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_join_to_the_whole() {
        let unit = "ae\u{301}人\u{1100}\u{1161}\u{11a8}x\u{327}\u{301}é한글\u{9c7}\u{9be} ";
        for repeats in [1, 700, 5000] {
            let text = unit.repeat(repeats);
            for form in [Form::Nfc, Form::Nfd, Form::Nfkc, Form::Nfkd] {
                assert_eq!(apply(&[form], &text), normalize(form, &text), "{form:?}");
            }
        }
        assert!(blocks(&unit.repeat(5000)).count() > 5);
    }
}
