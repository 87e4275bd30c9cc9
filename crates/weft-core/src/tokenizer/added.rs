//! Added tokens: strings such as `<|im_end|>` that are one token wherever they occur in markup.
//!
//! This module finds them in a text, with the options that Hugging Face defines.

use std::borrow::Cow;

use serde::Deserialize;

use super::TokenizerError;

/// An entry of `added_tokens` in `tokenizer.json`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) special: bool,
    /// Matches only if no letter, digit or underscore is adjacent.
    #[serde(default)]
    single_word: bool,
    /// Includes white space before it.
    #[serde(default)]
    lstrip: bool,
    /// Includes white space after it.
    #[serde(default)]
    rstrip: bool,
    /// Searched in the normalised text, not in the original.
    #[serde(default)]
    normalized: bool,
}

/// A part of a markup text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'t> {
    /// Normalised text between added tokens.
    Text(Cow<'t, str>),
    /// An added token.
    Token(u32),
}

/// The added tokens of a tokenizer.
#[derive(Debug, Default)]
pub(super) struct Added {
    /// Sorted by id, for binary search.
    tokens: Vec<AddedToken>,
    as_written: Finder,
    normalized: Finder,
}

/// Tokens to search for (as indices), by their first byte, the longest first.
#[derive(Debug)]
struct Finder {
    by_first_byte: Vec<Vec<usize>>,
}

impl Default for Finder {
    fn default() -> Self {
        Self { by_first_byte: vec![Vec::new(); 256] }
    }
}

impl AddedToken {
    /// A token that matches wherever its content occurs in a text as it is written.
    pub(super) fn verbatim(id: u32, content: String, special: bool) -> Self {
        let (single_word, lstrip, rstrip, normalized) = (false, false, false, false);
        Self { id, content, special, single_word, lstrip, rstrip, normalized }
    }

    /// Whether it matches wherever its content occurs, and takes nothing around it.
    pub(super) fn is_verbatim(&self) -> bool {
        !(self.single_word || self.lstrip || self.rstrip)
    }
}

impl Added {
    pub(super) fn new(mut tokens: Vec<AddedToken>) -> Result<Self, TokenizerError> {
        tokens.retain(|token| !token.content.is_empty());
        tokens.sort_by_key(|token| token.id);
        for pair in tokens.windows(2) {
            if pair[0].id == pair[1].id && pair[0].content != pair[1].content {
                return Err(TokenizerError::Inconsistent(format!(
                    "the added tokens {:?} and {:?} have the same id {}",
                    pair[0].content, pair[1].content, pair[0].id
                )));
            }
        }
        let mut added = Self::default();
        for (index, token) in tokens.iter().enumerate() {
            let finder =
                if token.normalized { &mut added.normalized } else { &mut added.as_written };
            finder.by_first_byte[usize::from(token.content.as_bytes()[0])].push(index);
        }
        for finder in [&mut added.as_written, &mut added.normalized] {
            for indices in &mut finder.by_first_byte {
                indices.sort_by_key(|&index| std::cmp::Reverse(tokens[index].content.len()));
            }
        }
        added.tokens = tokens;
        Ok(added)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AddedToken> {
        self.tokens.iter()
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        let found = self.tokens.binary_search_by_key(&id, |token| token.id);
        found.is_ok_and(|index| self.tokens[index].special)
    }

    pub(super) fn id_of(&self, content: &str) -> Option<u32> {
        self.tokens.iter().find(|token| token.content == content).map(|token| token.id)
    }

    /// Cuts `text` at the added tokens: first those that match the original text, then, between
    /// them, those that match after `normalize`.
    pub(super) fn pieces<'t>(
        &self,
        text: &'t str,
        normalize: impl Fn(&'t str) -> Cow<'t, str>,
    ) -> Vec<Piece<'t>> {
        let mut pieces = Vec::new();
        for (id, text) in self.find(&self.as_written, text) {
            if let Some(id) = id {
                pieces.push(Piece::Token(id));
                continue;
            }
            match normalize(text) {
                Cow::Borrowed(text) => {
                    pieces.extend(self.find(&self.normalized, text).into_iter().map(
                        |(id, text)| id.map_or(Piece::Text(Cow::Borrowed(text)), Piece::Token),
                    ));
                }
                Cow::Owned(text) => {
                    pieces.extend(self.find(&self.normalized, &text).into_iter().map(
                        |(id, text)| {
                            id.map_or_else(
                                || Piece::Text(Cow::Owned(text.to_owned())),
                                Piece::Token,
                            )
                        },
                    ));
                }
            }
        }
        pieces
    }

    /// The leftmost longest tokens of `finder` in `text`, and the text between them.
    fn find<'t>(&self, finder: &Finder, text: &'t str) -> Vec<(Option<u32>, &'t str)> {
        let (mut found, mut done, mut at) = (Vec::new(), 0, 0);
        while at < text.len() {
            let rest = &text.as_bytes()[at..];
            let hit = finder.by_first_byte[usize::from(rest[0])]
                .iter()
                .map(|&index| &self.tokens[index])
                .find(|token| rest.starts_with(token.content.as_bytes()));
            let Some(token) = hit else {
                at += 1;
                continue;
            };
            let (mut start, mut end) = (at, at + token.content.len());
            at = end;
            if token.single_word && touches_word(&text[..start], &text[end..]) {
                continue;
            }
            if token.lstrip {
                start = text[..start].trim_end().len().max(done);
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
                at = end;
            }
            if done < start {
                found.push((None, &text[done..start]));
            }
            found.push((Some(token.id), &text[start..end]));
            done = end;
        }
        if done < text.len() {
            found.push((None, &text[done..]));
        }
        found
    }
}

fn touches_word(before: &str, after: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    before.chars().next_back().is_some_and(word) || after.chars().next().is_some_and(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(options: &[(&str, &str)]) -> Added {
        // Ids that are not the tokens' places.
        let tokens = options.iter().zip(10..).map(|((content, option), id)| {
            let mut json = serde_json::json!({ "id": id, "content": content });
            json[*option] = true.into();
            serde_json::from_value(json).unwrap()
        });
        Added::new(tokens.collect()).unwrap()
    }

    fn cut(added: &Added, text: &str) -> Vec<String> {
        let normalize = |text| Cow::Owned(str::to_lowercase(text));
        let piece = |piece| match piece {
            Piece::Text(text) => text.into_owned(),
            Piece::Token(id) => id.to_string(),
        };
        added.pieces(text, normalize).into_iter().map(piece).collect()
    }

    #[test]
    fn the_longest_at_the_leftmost_place_wins() {
        let added = added(&[("<a", "special"), ("<a>", "special"), (">>", "special")]);
        assert_eq!(cut(&added, "x<a>>y<a<"), ["x", "11", ">y", "10", "<"]);
        assert_eq!(cut(&added, ""), [""; 0]);
    }

    #[test]
    fn options_are_as_in_hugging_face() {
        let added = added(&[
            ("<l>", "lstrip"),
            ("<r>", "rstrip"),
            ("<n>", "normalized"),
            ("w", "single_word"),
        ]);
        assert_eq!(cut(&added, "A \n<l> B"), ["a", "10", " b"]);
        assert_eq!(cut(&added, "A <r> \nB"), ["a ", "11", "b"]);
        assert_eq!(cut(&added, "A<N>B"), ["a", "12", "b"]);
        assert_eq!(cut(&added, "w ww -w-"), ["13", " ww -", "13", "-"]);
    }
}
