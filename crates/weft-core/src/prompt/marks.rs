//! Marks: a pair of characters around each string of a conversation while a template renders it.
//!
//! This module chooses, reads and writes marks. A [`Marked`] string can be cut anywhere, and the
//! marks of each piece stay balanced.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use minijinja::{Error, ErrorKind};

/// Three characters that occur neither in the template nor in the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    begin: char,
    end: char,
    /// Separates adjacent contents that are tokenised separately.
    border: char,
}

impl Marks {
    /// The first three of Unicode's 66 noncharacters that are not `taken`.
    pub(super) fn choose(taken: &BTreeSet<char>) -> Option<Self> {
        let block = '\u{fdd0}'..='\u{fdef}';
        let ends = (0..=0x10_u32).flat_map(|plane| [plane << 16 | 0xfffe, plane << 16 | 0xffff]);
        let mut free =
            block.chain(ends.filter_map(char::from_u32)).filter(|char| !taken.contains(char));
        Some(Self { begin: free.next()?, end: free.next()?, border: free.next()? })
    }

    /// `text` between marks. An empty text stays empty, so that it stays false in conditions.
    pub(super) fn wrap(self, text: &str) -> String {
        if text.is_empty() { String::new() } else { format!("{}{text}{}", self.begin, self.end) }
    }

    /// Texts one after the other, each between marks, with borders between adjacent ones.
    pub(super) fn wrap_pieces(self, pieces: &[String]) -> String {
        let wrapped: Vec<String> =
            pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| self.wrap(piece)).collect();
        wrapped.join(self.border.encode_utf8(&mut [0; 4]))
    }

    fn all(self) -> [char; 3] {
        [self.begin, self.end, self.border]
    }
}

/// `string` without marks.
pub(super) fn plain(marks: Option<Marks>, string: &str) -> Cow<'_, str> {
    match marks.filter(|marks| string.contains(marks.all())) {
        Some(marks) => Cow::Owned(string.replace(marks.all(), "")),
        None => Cow::Borrowed(string),
    }
}

/// Whether `char` is a noncharacter, from which marks are chosen.
pub(super) fn is_nonchar(char: char) -> bool {
    matches!(char, '\u{fdd0}'..='\u{fdef}') || u32::from(char) & 0xfffe == 0xfffe
}

/// A string with parts that are content of the conversation.
#[derive(Debug)]
pub(super) struct Marked<'t> {
    /// The string without marks.
    pub(super) text: Cow<'t, str>,
    /// The ranges of `text` that are content: ascending, never empty. Two adjacent ranges have a
    /// border between them.
    runs: Vec<Range<usize>>,
    marks: Option<Marks>,
}

impl<'t> Marked<'t> {
    /// Parses a string with marks. Fails if the marks are unbalanced, because something that
    /// ignores marks has cut the string.
    pub(super) fn parse(string: &'t str, marks: Option<Marks>) -> Result<Self, Error> {
        let Some(Marks { begin, end, border }) = marks.filter(|marks| string.contains(marks.all()))
        else {
            return Ok(Self { text: Cow::Borrowed(string), runs: Vec::new(), marks });
        };
        let unpaired =
            || Error::new(ErrorKind::InvalidOperation, "a content was cut inside its marks");
        let (mut text, mut runs) = (String::with_capacity(string.len()), Vec::new());
        let (mut depth, mut start, mut done) = (0_usize, 0, 0);
        // The position of the last border.
        let mut cut = None;
        for (at, mark) in string.match_indices([begin, end, border]) {
            text.push_str(&string[done..at]);
            done = at + mark.len();
            if mark.starts_with(border) {
                cut = Some(text.len());
            } else if mark.starts_with(begin) {
                if depth == 0 {
                    start = text.len();
                }
                depth += 1;
            } else {
                depth = depth.checked_sub(1).ok_or_else(unpaired)?;
                if depth == 0 {
                    push_run(&mut runs, start..text.len(), cut);
                }
            }
        }
        if depth > 0 {
            return Err(unpaired());
        }
        text.push_str(&string[done..]);
        Ok(Self { text: Cow::Owned(text), runs, marks })
    }

    /// The parts of a range of `text`, each with a flag that says whether it is content. None is
    /// empty.
    pub(super) fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = (&str, bool)> {
        let mut next = self.runs.partition_point(|run| run.end <= range.start);
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let run = self.runs.get(next).filter(|run| run.start < range.end);
            let is_content = run.is_some_and(|run| run.start <= at);
            let stop = match run {
                Some(run) if is_content => run.end.min(range.end),
                Some(run) => run.start,
                None => range.end,
            };
            next += usize::from(is_content);
            let piece = &self.text[at..stop];
            at = stop;
            Some((piece, is_content))
        })
    }

    /// A range of `text` with its marks.
    pub(super) fn slice(&self, range: Range<usize>) -> String {
        self.map(range, str::to_owned)
    }

    /// A range of `text` with its marks, after applying `change` to each piece.
    pub(super) fn map(
        &self,
        range: Range<usize>,
        mut change: impl FnMut(&str) -> String,
    ) -> String {
        let mut string = String::with_capacity(range.len() + 8);
        let mut after_content = false;
        for (piece, is_content) in self.pieces(range) {
            match self.marks.filter(|_| is_content) {
                Some(marks) => {
                    string.extend(after_content.then_some(marks.border));
                    string.push_str(&marks.wrap(&change(piece)));
                }
                None => string.push_str(&change(piece)),
            }
            after_content = is_content;
        }
        string
    }

    /// All of `text`.
    pub(super) fn all(&self) -> Range<usize> {
        0..self.text.len()
    }
}

/// Adds a range of content. Extends the last one if both touch and there is no border at `cut`.
fn push_run(runs: &mut Vec<Range<usize>>, run: Range<usize>, cut: Option<usize>) {
    match runs.last_mut() {
        _ if run.is_empty() => {}
        Some(last) if last.end == run.start && cut != Some(run.start) => last.end = run.end,
        _ => runs.push(run),
    }
}
