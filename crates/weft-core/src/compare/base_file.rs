//! llama.cpp's file of distributions: what `llama-perplexity --kl-divergence-base` writes and
//! reads.
//!
//! All numbers are little endian. `_logits_`, u32 tokens of a window (llama.cpp's chunk), i32
//! vocabulary, i32 windows, the i32 tokens of all windows; then a row for each scored token: f32
//! scale, f32 smallest log-probability, and a u16 for each token of the vocabulary, padded to an
//! even number. A log-probability is `scale · u16 + smallest`. The smallest is at most 16 below the
//! largest, and tokens at -16 or less are left out of divergences.
//!
//! A file is untrusted: its header is held against its length before anything is allocated.

use std::io::{self, Read, Write};

use thiserror::Error;

use super::{Distribution, scored};

const MAGIC: &[u8; 8] = b"_logits_";
const HEADER_BYTES: u64 = 20;
/// Log-probabilities are stored down to this far below the largest, and count above its negative.
const DEPTH: f32 = 16.0;
/// A row's range is rounded by less than this.
const CUT_MARGIN: f32 = 1e-4;

/// Why a file of distributions cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BaseError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is another kind of file.
    #[error(
        "it is not a file of log-probabilities; make one with --save-base, or with llama-perplexity \
         --kl-divergence-base"
    )]
    OtherFile,
    /// Its header has a number out of range.
    #[error("its header says {what} {found}; make the file again")]
    Header {
        /// What the number is.
        what: &'static str,
        /// The number.
        found: i64,
    },
    /// It was cut, or has more than its header says.
    #[error("it has {found} bytes, and its header says {expected}; make the file again")]
    Length {
        /// Bytes of the file.
        found: u64,
        /// Bytes that it must have.
        expected: u64,
    },
    /// A token is not in the vocabulary.
    #[error("its token {token} is not in its vocabulary of {vocab}; make the file again")]
    Token {
        /// The token.
        token: i64,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A row's scale or smallest log-probability is no number.
    #[error("row {row} has a scale that is not a number; make the file again")]
    Scale {
        /// The row, counted from 0.
        row: u64,
    },
}

/// What a file says before its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseHeader {
    /// Tokens of a window.
    pub window: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// The tokens of all windows.
    pub tokens: Vec<u32>,
}

impl BaseHeader {
    /// The scored rows of all windows.
    pub fn n_rows(&self) -> usize {
        self.tokens.len() / self.window * scored(self.window).len()
    }
}

/// Bytes of a row.
fn row_bytes(vocab: u64) -> u64 {
    (vocab.div_ceil(2) * 2 + 4) * 2
}

/// Reads a file row by row.
pub struct BaseReader<R> {
    header: BaseHeader,
    from: R,
    row: Vec<u8>,
    n_read: u64,
}

impl<R: Read> BaseReader<R> {
    /// Reads the header of a file of `length` bytes, and checks one against the other.
    pub fn new(mut from: R, length: u64) -> Result<Self, BaseError> {
        let mut magic = [0; 8];
        if length < HEADER_BYTES {
            return Err(BaseError::OtherFile);
        }
        from.read_exact(&mut magic)?;
        if magic != *MAGIC {
            return Err(BaseError::OtherFile);
        }
        let mut number = |what| -> Result<u64, BaseError> {
            let mut bytes = [0; 4];
            from.read_exact(&mut bytes)?;
            let found = i64::from(i32::from_le_bytes(bytes));
            u64::try_from(found).map_err(|_| BaseError::Header { what, found })
        };
        let window = number("tokens of a window")?;
        let vocab = number("tokens of the vocabulary")?;
        let n_windows = number("windows")?;
        let n_scored = scored(window as usize).len() as u64;
        for (what, found, least) in [
            ("tokens of a window", window, 3),
            ("tokens of the vocabulary", vocab, 1),
            ("windows", n_windows, 1),
        ] {
            if found < least {
                return Err(BaseError::Header { what, found: found as i64 });
            }
        }
        // Each number has 31 bits, so 128 bits hold the product.
        let rows = u128::from(n_windows * n_scored) * u128::from(row_bytes(vocab));
        let expected = u128::from(HEADER_BYTES) + 4 * u128::from(n_windows * window) + rows;
        if u128::from(length) != expected {
            let expected = u64::try_from(expected).unwrap_or(u64::MAX);
            return Err(BaseError::Length { found: length, expected });
        }
        let (window, vocab) = (window as usize, vocab as usize);
        let mut bytes = vec![0; n_windows as usize * window * 4];
        from.read_exact(&mut bytes)?;
        let tokens = bytes.as_chunks().0.iter().map(|bytes| {
            let token = i32::from_le_bytes(*bytes);
            let known = u32::try_from(token).ok().filter(|token| (*token as usize) < vocab);
            known.ok_or(BaseError::Token { token: i64::from(token), vocab })
        });
        let header = BaseHeader { window, vocab, tokens: tokens.collect::<Result<_, _>>()? };
        let row = vec![0; row_bytes(vocab as u64) as usize];
        Ok(Self { header, from, row, n_read: 0 })
    }

    /// What the file says before its rows.
    pub fn header(&self) -> &BaseHeader {
        &self.header
    }

    /// The next row. The caller counts them.
    pub fn read(&mut self) -> Result<Distribution, BaseError> {
        self.from.read_exact(&mut self.row)?;
        let words = self.row.as_chunks().0;
        let [scale, smallest] = [0, 2].map(|at| {
            let [[a, b], [c, d]]: [[u8; 2]; 2] = [words[at], words[at + 1]];
            f32::from_le_bytes([a, b, c, d])
        });
        if !(scale.is_finite() && smallest.is_finite()) {
            return Err(BaseError::Scale { row: self.n_read });
        }
        self.n_read += 1;
        let log_p =
            |word: &[u8; 2]| f64::from(scale * f32::from(u16::from_le_bytes(*word)) + smallest);
        let log_p = words[4..4 + self.header.vocab].iter().map(log_p).collect();
        // Of a row that spans the whole depth, the lowest may have been lower.
        let is_cut = scale * f32::from(u16::MAX) > DEPTH - CUT_MARGIN;
        let cut = if is_cut { f64::from(smallest) } else { f64::NEG_INFINITY };
        Ok(Distribution { log_p, floor: f64::from(-DEPTH), cut })
    }
}

/// Writes a file row by row.
pub struct BaseWriter<W> {
    to: W,
    vocab: usize,
    row: Vec<u8>,
}

impl<W: Write> BaseWriter<W> {
    /// Writes the header.
    ///
    /// # Panics
    /// If a number has more than 31 bits, or the tokens are not whole windows.
    pub fn new(mut to: W, header: &BaseHeader) -> io::Result<Self> {
        let BaseHeader { window, vocab, tokens } = header;
        assert!(tokens.len().is_multiple_of(*window), "whole windows");
        let number = |n: usize| i32::try_from(n).expect("31 bits").to_le_bytes();
        to.write_all(MAGIC)?;
        for n in [*window, *vocab, tokens.len() / window] {
            to.write_all(&number(n))?;
        }
        for token in tokens {
            to.write_all(&number(*token as usize))?;
        }
        Ok(Self { to, vocab: *vocab, row: Vec::new() })
    }

    /// Writes the row of a scored token, rounded as llama.cpp rounds it.
    ///
    /// # Panics
    /// If the row has other tokens than the vocabulary.
    pub fn write(&mut self, logits: &[f32]) -> io::Result<()> {
        assert_eq!(logits.len(), self.vocab, "a row of the vocabulary");
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let min = logits.iter().copied().fold(f32::INFINITY, f32::min).max(max - DEPTH);
        let sum: f64 = logits.iter().map(|logit| f64::from((logit - max).exp())).sum();
        let scale = (max - min) / f32::from(u16::MAX);
        let smallest = min - max - sum.ln() as f32;
        self.row.clear();
        self.row.extend(scale.to_le_bytes());
        self.row.extend(smallest.to_le_bytes());
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        for logit in logits {
            let steps = (inverse * (logit - min)).round_ties_even();
            self.row.extend((steps as u16).to_le_bytes());
        }
        self.row.resize(row_bytes(self.vocab as u64) as usize, 0);
        self.to.write_all(&self.row)
    }

    /// Everything that was written.
    pub fn finish(mut self) -> io::Result<W> {
        self.to.flush()?;
        Ok(self.to)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> BaseHeader {
        BaseHeader { window: 4, vocab: 3, tokens: vec![0, 1, 2, 1, 2, 2, 0, 1] }
    }

    /// A file of two windows, with a row for the last token of each.
    fn file(rows: [[f32; 3]; 2]) -> Vec<u8> {
        let mut writer = BaseWriter::new(Vec::new(), &header()).unwrap();
        rows.iter().for_each(|row| writer.write(row).unwrap());
        writer.finish().unwrap()
    }

    fn open(bytes: &[u8]) -> Result<BaseReader<&[u8]>, BaseError> {
        BaseReader::new(bytes, bytes.len() as u64)
    }

    #[test]
    fn a_file_has_the_bytes_of_llama_cpp() {
        let bytes = file([[0.0, 0.0, 0.0], [0.0, -1.0, -40.0]]);
        assert_eq!(bytes.len(), 20 + 8 * 4 + 2 * (4 + 4) * 2);
        assert_eq!(&bytes[..20], b"_logits_\x04\0\0\0\x03\0\0\0\x02\0\0\0");
        assert_eq!(bytes[20..28], [0, 0, 0, 0, 1, 0, 0, 0]);
        let (first, second) = bytes[52..].split_at(16);
        // All alike: no scale, and ln(1/3) for each.
        assert_eq!(first[..4], 0f32.to_le_bytes());
        assert_eq!(first[4..8], (-(3f64.ln() as f32)).to_le_bytes());
        assert_eq!(first[8..], [0; 8]);
        // A range of 16, cut below; the padding is 0.
        assert_eq!(second[..4], (16f32 / 65535.0).to_le_bytes());
        assert_eq!(second[8..10], 65535u16.to_le_bytes());
        assert_eq!(second[10..12], 61439u16.to_le_bytes());
        assert_eq!(second[12..], [0; 4]);
    }

    #[test]
    fn tokens_below_the_depth_count_for_nothing() {
        let bytes = file([[0.0; 3], [0.0, -1.0, -40.0]]);
        let mut reader = open(&bytes).unwrap();
        assert_eq!((reader.header(), reader.header().n_rows()), (&header(), 2));
        reader.read().unwrap();
        let base = reader.read().unwrap();
        let exact = Distribution::of_logits(&[0.0, -1.0, -40.0]);
        assert!(base.divergence(&exact).abs() < 1e-3);
        // The third token would add e^-16.3 times a million.
        let far = Distribution::of_logits(&[0.0, -1.0, -1e6]);
        assert!(base.divergence(&far).abs() < 1e-3);
        assert!(matches!(reader.read(), Err(BaseError::Io(_))));
    }

    #[test]
    fn perplexity_is_unknown_if_a_scored_token_was_cut() {
        let summary = |row: [f32; 3], token| {
            let base = open(&file([row; 2])).unwrap().read().unwrap();
            let mut comparison = super::super::Comparison::default();
            comparison.add(token, &base, &Distribution::of_logits(&row)).unwrap();
            comparison.summary()
        };
        let cut = summary([0.0, -1.0, -40.0], 2);
        assert_eq!((cut.n_cut_a, cut.perplexity_a), (1, None));
        assert!(cut.perplexity_a_least < cut.perplexity_b);
        // Another token of that row, and the lowest of a row that fits.
        for (row, token) in [([0.0, -1.0, -40.0], 1), ([0.0, -1.0, -15.9], 2)] {
            let whole = summary(row, token);
            assert_eq!(whole.n_cut_a, 0);
            let ratio = whole.perplexity_a.unwrap() / whole.perplexity_b;
            assert!((ratio - 1.0).abs() < 1e-3, "{ratio}");
        }
    }

    #[test]
    fn wrong_files_are_refused_before_anything_is_allocated() {
        let bytes = file([[0.0; 3]; 2]);
        let with = |at: usize, number: i32| {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            open(&bytes).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(open(b"GGUF").err().unwrap().to_string().contains("--save-base"));
        assert!(with(0, 7).contains("not a file of log-probabilities"));
        assert!(with(8, 2).contains("tokens of a window 2"));
        assert!(with(8, -1).contains("tokens of a window -1"));
        assert!(with(12, 0).contains("vocabulary 0"));
        assert!(with(16, -5).contains("windows -5"));
        for at in [8, 12, 16] {
            assert!(with(at, i32::MAX).contains("84 bytes, and its header says"));
        }
        assert!(with(20, 3).contains("token 3 is not in its vocabulary of 3"));
        assert!(with(20, -1).contains("token -1"));
        assert!(open(&bytes[..83]).err().unwrap().to_string().contains("83 bytes"));
        let mut nan = bytes.clone();
        nan[52..56].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(matches!(open(&nan).unwrap().read(), Err(BaseError::Scale { row: 0 })));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(row in proptest::array::uniform3(-12f32..0.0)) {
            let bytes = file([row; 2]);
            let base = open(&bytes).unwrap().read().unwrap();
            let exact = Distribution::of_logits(&row);
            // Half a step of the scale, and f32's rounding.
            for (ours, exact) in base.log_p.iter().zip(&exact.log_p) {
                prop_assert!((ours - exact).abs() < 1.3e-4, "{ours} {exact}");
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for bytes in [bytes.clone(), [MAGIC.as_slice(), &bytes].concat()] {
                if let Ok(mut reader) = open(&bytes) {
                    while reader.read().is_ok() {}
                }
            }
        }
    }
}
