//! Converts the bytes of tokens to text that may be shown: only complete characters, and nothing
//! that could still become part of a stop string.

/// The text that one token released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextPiece {
    /// The text, possibly empty.
    pub text: String,
    /// The index of the stop string that ended the text, if one did.
    pub stopped: Option<usize>,
}

/// Converts the bytes of one answer's tokens to its text.
///
/// Bytes become characters as in [`String::from_utf8_lossy`] over all bytes together: an invalid
/// sequence becomes U+FFFD, an incomplete one waits for its rest. The text ends before the stop
/// string that is completed first; if several are completed by the same character, before the one
/// that started first. The text and its end therefore do not depend on how the bytes are cut into
/// tokens.
#[derive(Clone)]
pub struct TextStream {
    matchers: Vec<Matcher>,
    /// The start of a character: at most three bytes between calls.
    unfinished: Vec<u8>,
    /// Text that is the start of a stop string.
    held: String,
    stopped: Option<usize>,
}

impl TextStream {
    /// A stream that ends at any of `stops`. An empty one never matches.
    pub fn new(stops: &[String]) -> Self {
        let matchers = stops.iter().map(|stop| Matcher::new(stop)).collect();
        Self { matchers, unfinished: Vec::new(), held: String::new(), stopped: None }
    }

    /// Takes the bytes of the next token, and returns the text that may be shown now. After a stop
    /// string, every further call returns no text and the same stop.
    pub fn push(&mut self, bytes: &[u8]) -> TextPiece {
        if self.stopped.is_none() {
            self.unfinished.extend_from_slice(bytes);
            let mut pending = std::mem::take(&mut self.unfinished);
            let n_read = self.read(&pending);
            pending.drain(..n_read);
            self.unfinished = pending;
        }
        let text = self.release();
        TextPiece { text, stopped: self.stopped }
    }

    /// Which stop string ended the text, if one did.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Ends the stream, and returns the text that was held back, with U+FFFD for an incomplete
    /// character. Empty if a stop string was found.
    pub fn finish(&mut self) -> String {
        if self.stopped.is_none() && !self.unfinished.is_empty() {
            self.unfinished.clear();
            self.extend("\u{FFFD}");
        }
        let held = std::mem::take(&mut self.held);
        // Text before the end must not match together with text that is pushed after it.
        self.matchers.iter_mut().for_each(|matcher| matcher.n_matched = 0);
        held
    }

    /// Reads the characters of `bytes` up to an incomplete one at the end, and returns the number
    /// of bytes read.
    fn read(&mut self, bytes: &[u8]) -> usize {
        let mut n_read = 0;
        for chunk in bytes.utf8_chunks() {
            self.extend(chunk.valid());
            n_read += chunk.valid().len();
            let invalid = chunk.invalid();
            if n_read + invalid.len() == bytes.len() && may_become_valid(invalid) {
                break;
            }
            if !invalid.is_empty() {
                self.extend("\u{FFFD}");
            }
            n_read += invalid.len();
        }
        n_read
    }

    /// Appends text to the held text, up to the first complete stop string, which is cut off.
    fn extend(&mut self, text: &str) {
        if self.stopped.is_some() {
            return;
        }
        for (n, &byte) in text.as_bytes().iter().enumerate() {
            if let Some((stop, len)) = self.advance(byte) {
                self.held.push_str(&text[..=n]);
                self.held.truncate(self.held.len() - len);
                self.stopped = Some(stop);
                return;
            }
        }
        self.held.push_str(text);
    }

    /// Feeds one byte to every matcher. Returns the completed stop string and its length: the
    /// longest of several, never an empty one. Stop strings are whole characters, so a match starts
    /// and ends between characters.
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut found: Option<(usize, usize)> = None;
        for (stop, matcher) in self.matchers.iter_mut().enumerate() {
            let longest = found.map_or(0, |(_, len)| len);
            if matcher.advance(byte) && matcher.stop.len() > longest {
                found = Some((stop, matcher.stop.len()));
            }
        }
        found
    }

    /// Takes the part of the held text with which no stop string can start.
    fn release(&mut self) -> String {
        let n_kept = match self.stopped {
            Some(_) => 0,
            None => self.matchers.iter().map(|matcher| matcher.n_matched).max().unwrap_or(0),
        };
        let kept = self.held.split_off(self.held.len() - n_kept);
        std::mem::replace(&mut self.held, kept)
    }
}

/// Whether these bytes are the start of a character.
fn may_become_valid(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Looks for one stop string byte by byte (Knuth, Morris and Pratt), so no text is read twice.
#[derive(Clone)]
struct Matcher {
    stop: Vec<u8>,
    /// For each length of a matched prefix, the next shorter prefix that is also its suffix.
    shorter: Vec<usize>,
    /// Number of bytes of the stop string that the text now ends with.
    n_matched: usize,
}

impl Matcher {
    fn new(stop: &str) -> Self {
        let stop = stop.as_bytes().to_vec();
        let mut shorter = vec![0; stop.len() + 1];
        let mut n_matched = 0;
        for n in 1..stop.len() {
            while n_matched > 0 && stop[n_matched] != stop[n] {
                n_matched = shorter[n_matched];
            }
            n_matched += usize::from(stop[n_matched] == stop[n]);
            shorter[n + 1] = n_matched;
        }
        Self { stop, shorter, n_matched: 0 }
    }

    /// Whether this byte completes the stop string. Must not be called after that.
    fn advance(&mut self, byte: u8) -> bool {
        while self.n_matched > 0 && self.stop[self.n_matched] != byte {
            self.n_matched = self.shorter[self.n_matched];
        }
        self.n_matched += usize::from(self.stop.get(self.n_matched) == Some(&byte));
        self.n_matched == self.stop.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(stops: &[&str]) -> TextStream {
        TextStream::new(&stops.iter().map(|&s| s.to_owned()).collect::<Vec<_>>())
    }

    /// The pieces of each push, `|` after each, then the flushed rest; and the stop string found.
    fn show(stops: &[&str], tokens: &[&[u8]]) -> (String, Option<usize>) {
        let mut stream = stream(stops);
        let (mut shown, mut stopped) = (String::new(), None);
        for token in tokens {
            let piece = stream.push(token);
            shown += &piece.text;
            shown.push('|');
            stopped = piece.stopped;
        }
        (shown + &stream.finish(), stopped)
    }

    #[test]
    fn characters_split_over_tokens_come_whole() {
        assert_eq!(show(&[], &[b"a\xF0\x9F", b"\x98", b"\x80b"]), ("a||😀b|".into(), None));
        assert_eq!(show(&[], &[b"\xE4", b"\xBD", b"\xA0"]), ("||你|".into(), None));
    }

    #[test]
    fn invalid_bytes_become_replacement_characters() {
        assert_eq!(show(&[], &[b"a\xFFb", b"\x80"]), ("a\u{FFFD}b|\u{FFFD}|".into(), None));
        // A lead byte without its continuation is one character, and the text after it is kept.
        assert_eq!(show(&[], &[b"\xF0\x9F", b"x"]), ("|\u{FFFD}x|".into(), None));
        assert_eq!(show(&[], &[b"x\xF0\x9F"]), ("x|\u{FFFD}".into(), None));
    }

    #[test]
    fn a_stop_string_over_many_tokens_never_leaks() {
        let (shown, stopped) = show(&["STOP"], &[b"a S", b"T", b"O", b"P b", b"c"]);
        assert_eq!((shown.as_str(), stopped), ("a |||||", Some(0)));
    }

    #[test]
    fn held_text_leaves_as_soon_as_it_cannot_match() {
        let (shown, stopped) = show(&["aab"], &[b"a", b"a", b"a", b"c", b"aa"]);
        assert_eq!((shown.as_str(), stopped), ("||a|aac||aa", None));
        assert_eq!(show(&[], &[b"aa"]).0, "aa|");
    }

    #[test]
    fn the_stop_that_is_complete_first_wins_then_the_one_that_began_first() {
        let found = |stops: &[&str], text: &str| show(stops, &[text.as_bytes()]);
        assert_eq!(found(&["abc", "ab"], "xabc"), ("x|".into(), Some(1)));
        assert_eq!(found(&["abcd", "bc"], "abcd"), ("a|".into(), Some(1)));
        assert_eq!(found(&["c", "abc", "bc"], "xabc"), ("x|".into(), Some(1)));
        assert_eq!(found(&["ab", "ab"], "ab"), ("|".into(), Some(0)));
    }

    #[test]
    fn stops_may_have_any_characters() {
        let smile = "😀".as_bytes();
        let (shown, stopped) = show(&["é😀"], &[b"x\xC3", b"\xA9", &smile[..2], &smile[2..], b"y"]);
        assert_eq!((shown.as_str(), stopped), ("x|||||", Some(0)));
        // The same lead bytes, another character: é is released with it.
        let grin = "😁".as_bytes();
        let (shown, stopped) = show(&["é😀"], &[b"x\xC3\xA9", &grin[..3], &grin[3..]]);
        assert_eq!((shown.as_str(), stopped), ("x||é😁|", None));
    }

    #[test]
    fn replacement_characters_can_complete_a_stop_also_at_the_end() {
        assert_eq!(show(&["a\u{FFFD}"], &[b"xa", b"\xFF", b"y"]), ("x|||".into(), Some(0)));
        let mut stream = stream(&["a\u{FFFD}"]);
        assert_eq!(stream.push(b"xa\xF0").text, "x");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn text_before_the_end_does_not_match_with_text_after_it() {
        let mut stream = stream(&["ab"]);
        assert_eq!(stream.push(b"xa").text, "x");
        assert_eq!(stream.finish(), "a");
        assert_eq!(stream.push(b"b"), TextPiece { text: "b".into(), stopped: None });
    }

    #[test]
    fn nothing_comes_after_a_stop() {
        let mut stream = stream(&["."]);
        let stopped = Some(0);
        assert_eq!(stream.push(b"a.b\xF0"), TextPiece { text: "a".into(), stopped });
        assert_eq!(stream.push(b"c"), TextPiece { text: String::new(), stopped });
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn an_empty_stop_never_matches() {
        assert_eq!(show(&["", "b"], &[b"ab"]), ("a|".into(), Some(1)));
    }
}
