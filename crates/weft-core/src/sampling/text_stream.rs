//! Bytes of tokens to text that may be shown: only whole characters, and nothing that may yet turn
//! out to be part of a stop string. Owns the bytes of an unfinished character and the text held
//! back. It must not know tokens, templates, or where the text goes.

/// The text that one token set free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Possibly empty.
    pub text: String,
    /// Which stop string ended the text, if one did, by its place in the list given.
    pub stopped: Option<usize>,
}

/// Turns the bytes of one answer's tokens into its text.
///
/// Bytes become characters as in [`String::from_utf8_lossy`] over all bytes together: an invalid
/// sequence becomes U+FFFD, an unfinished one waits for its rest. The text ends before the stop
/// string that is complete first; of several complete at the same character, the one that began
/// first. So how the bytes are cut into tokens makes no difference to the text or where it ends.
#[derive(Clone)]
pub struct TextStream {
    matchers: Vec<Matcher>,
    /// The beginning of a character: at most three bytes between calls.
    unfinished: Vec<u8>,
    /// Text that is the beginning of a stop string.
    held: String,
    stopped: Option<usize>,
}

impl TextStream {
    /// A stream that ends at any of `stops`. An empty one never matches.
    pub fn new(stops: &[String]) -> Self {
        let matchers = stops.iter().map(|stop| Matcher::new(stop)).collect();
        Self { matchers, unfinished: Vec::new(), held: String::new(), stopped: None }
    }

    /// Takes the bytes of the next token; returns what may be shown now. Once a stop string was
    /// found, every further call returns no text and the same stop.
    pub fn push(&mut self, bytes: &[u8]) -> Piece {
        if self.stopped.is_none() {
            self.unfinished.extend_from_slice(bytes);
            let mut pending = std::mem::take(&mut self.unfinished);
            let n_read = self.read(&pending);
            pending.drain(..n_read);
            self.unfinished = pending;
        }
        let text = self.release();
        Piece { text, stopped: self.stopped }
    }

    /// Ends the stream: returns what was held back, an unfinished character as U+FFFD. Empty if a
    /// stop string was found.
    pub fn finish(&mut self) -> String {
        if self.stopped.is_none() && !self.unfinished.is_empty() {
            self.unfinished.clear();
            self.extend("\u{FFFD}");
        }
        let held = std::mem::take(&mut self.held);
        // Nothing the stop strings have seen may match text that is pushed after the end.
        self.matchers.iter_mut().for_each(|matcher| matcher.n_matched = 0);
        held
    }

    /// Reads the characters of `bytes` up to an unfinished one at the end; returns how many bytes
    /// that was.
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

    /// Appends text to what is held, up to the first complete stop string, which is cut off.
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

    /// Shows every matcher one byte; the stop string it completes and its length, the longest of
    /// several and never an empty one. Stop strings are whole characters, so a match begins and ends
    /// between characters.
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

    /// Takes from what is held all that no stop string can begin with.
    fn release(&mut self) -> String {
        let n_kept = match self.stopped {
            Some(_) => 0,
            None => self.matchers.iter().map(|matcher| matcher.n_matched).max().unwrap_or(0),
        };
        let kept = self.held.split_off(self.held.len() - n_kept);
        std::mem::replace(&mut self.held, kept)
    }
}

/// Whether these bytes are the beginning of a character.
fn may_become_valid(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Looks for one stop string byte by byte (Knuth, Morris and Pratt), so no text is read twice.
#[derive(Clone)]
struct Matcher {
    stop: Vec<u8>,
    /// For each length of a matched beginning, the next shorter beginning that is also its end.
    shorter: Vec<usize>,
    /// How many bytes of the stop string the text now ends with.
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

    /// Whether this byte completes the stop string. Not to be called after it did.
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

    /// The pieces of each push, `|` after each, then the flushed rest; and which stop was found.
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
        // A lead byte whose continuation never comes is one character, and what follows is kept.
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
        // The same lead bytes, another character: é is set free with it.
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
    fn nothing_comes_after_a_stop() {
        let mut stream = stream(&["."]);
        let stopped = Some(0);
        assert_eq!(stream.push(b"a.b\xF0"), Piece { text: "a".into(), stopped });
        assert_eq!(stream.push(b"c"), Piece { text: String::new(), stopped });
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn an_empty_stop_never_matches() {
        assert_eq!(show(&["", "b"], &[b"ab"]), ("a|".into(), Some(1)));
    }
}
