//! Draws where an answer's context came from: a bar with one segment per piece, and a table below.
//!
//! A segment's width shows the number of tokens, its colour the source of the rows; without
//! colours, a letter shows the source. Everything fits 80 columns.

use std::fmt::Write;

use weft_core::chunk::{ChunkId, PieceReport, Report, Tier};

use crate::size;
use crate::terminal;

/// Columns of the bar and of the table.
const WIDTH: usize = 79;

/// Columns of the small bar that shows a share of attention.
const SHARE: usize = 5;

/// Columns of a chunk's name.
const NAME: usize = 12;

/// How sources are shown: name, letter, colour.
const SOURCES: [(Option<Tier>, &str, char, &str); 5] = [
    (None, "computed", 'c', "33"),
    (Some(Tier::Device), "device", 'v', "32"),
    (Some(Tier::Ram), "ram", 'r', "36"),
    (Some(Tier::Disk), "disk", 'd', "34"),
    (Some(Tier::Remote), "remote", 'm', "35"),
];

/// Draws a report; `name` returns the user's name for a chunk.
pub(crate) fn draw(
    report: &Report,
    name: &dyn Fn(&ChunkId) -> Option<String>,
    colour: bool,
) -> String {
    let mut text = bar(report, colour);
    text.push('\n');
    text += &legend(report, colour);
    text.push('\n');
    text += &table(report, name);
    text
}

/// Segments in proportion to tokens, at least one column each.
fn bar(report: &Report, colour: bool) -> String {
    let pieces = &report.pieces;
    let gap = if 2 * pieces.len() <= WIDTH { 1 } else { 0 };
    let room = WIDTH.saturating_sub(gap * pieces.len().saturating_sub(1));
    let tokens: Vec<usize> = pieces.iter().map(|piece| piece.tokens).collect();
    let widths = widths(&tokens, room);
    let separator = match gap {
        0 => "",
        _ if colour => " ",
        _ => "|",
    };
    let segments: Vec<String> = pieces
        .iter()
        .zip(widths)
        .take(WIDTH)
        .map(|(piece, width)| segment(piece.source, width, colour))
        .collect();
    segments.join(separator)
}

/// Columns for each piece: at least one, and together at most `room` if possible.
fn widths(tokens: &[usize], room: usize) -> Vec<usize> {
    let total: usize = tokens.iter().sum::<usize>().max(1);
    let spare = room.saturating_sub(tokens.len());
    tokens.iter().map(|tokens| 1 + tokens * spare / total).collect()
}

fn segment(source: Option<Tier>, width: usize, colour: bool) -> String {
    let (_, _, letter, code) = look(source);
    if colour {
        format!("\x1b[{code}m{}\x1b[0m", "█".repeat(width))
    } else {
        letter.to_string().repeat(width)
    }
}

fn look(source: Option<Tier>) -> (Option<Tier>, &'static str, char, &'static str) {
    SOURCES.into_iter().find(|look| look.0 == source).unwrap_or(SOURCES[0])
}

/// The meaning of the colours or letters in the bar.
fn legend(report: &Report, colour: bool) -> String {
    let is_there = |source| report.pieces.iter().any(|piece| piece.source == source);
    let words: Vec<String> = SOURCES
        .into_iter()
        .filter(|(source, ..)| is_there(*source))
        .map(|(source, name, ..)| format!("{} {name}", segment(source, 1, colour)))
        .collect();
    words.join("  ")
}

fn table(report: &Report, name: &dyn Fn(&ChunkId) -> Option<String>) -> String {
    let mut text = format!(
        "{:<8}{:<NAME$} {:>6} {:>6}  {:<9}{:<9}{:>6} {:>10} {:>7}\n",
        "kind", "chunk", "tokens", "kept", "source", "reuse", "shift", "attention", "time"
    );
    for piece in &report.pieces {
        text += &row(piece, name);
    }
    let bar = share(report.answer_attention);
    // Infallible: it writes to a string.
    let _ = writeln!(text, "{:<61}{bar}", "answer");
    let (saved, cold) = (size::time(report.saved()), size::time(report.cold_estimate()));
    let _ = writeln!(text, "saved {saved} of {cold}");
    if report.coarse_tokens() > 0 {
        let coarse = report.coarse_tokens();
        let _ = writeln!(text, "rows of {} were stored in 8 bits", size::plural(coarse, "token"));
    }
    text
}

fn row(piece: &PieceReport, name: &dyn Fn(&ChunkId) -> Option<String>) -> String {
    let called =
        piece.chunk.map_or_else(|| "-".to_owned(), |id| name(&id).unwrap_or_else(|| id.short()));
    let called = terminal::without_controls(&called).replace(['\n', '\t'], " ");
    format!(
        "{:<8}{:<NAME$} {:>6} {:>6}  {:<9}{:<9}{:>6} {} {:>7}\n",
        piece.kind.name(),
        shortened(&called),
        piece.tokens,
        piece.cached_tokens,
        piece.source_name(),
        piece.reuse.name(),
        piece.shift,
        share(piece.attention),
        size::time(piece.time),
    )
}

/// A share as a bar and a figure.
fn share(share: f64) -> String {
    let filled = (share.clamp(0.0, 1.0) * SHARE as f64).round() as usize;
    let bar = "▪".repeat(filled) + &"·".repeat(SHARE - filled);
    format!("{bar} {:>3.0}%", share * 100.0)
}

/// Keeps the end of a long name: in a path, it is the file.
fn shortened(name: &str) -> String {
    let n_chars = name.chars().count();
    if n_chars <= NAME {
        return name.to_owned();
    }
    let end: String = name.chars().skip(n_chars - NAME + 1).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weft_core::chunk::{Kind, Reuse};

    use super::*;

    fn piece(kind: Kind, tokens: usize, source: Option<Tier>) -> PieceReport {
        PieceReport {
            chunk: Some(ChunkId::of(kind, &[tokens as u32])),
            kind,
            tokens,
            cached_tokens: if source.is_some() { tokens } else { 0 },
            source,
            reuse: Reuse::Anchored,
            shift: -30_000,
            repaired_tokens: 0,
            coarse_tokens: 0,
            attention: 0.25,
            time: Duration::from_micros(1_234_567),
            saved: Duration::from_secs(12),
            choice: None,
        }
    }

    fn report(sources: &[Option<Tier>]) -> Report {
        let pieces = sources.iter().enumerate();
        let pieces = pieces.map(|(i, source)| piece(Kind::Context, 10 + i * i, *source)).collect();
        Report { pieces, answer_attention: 1.0 }
    }

    const ALL: [Option<Tier>; 5] =
        [None, Some(Tier::Device), Some(Tier::Ram), Some(Tier::Disk), Some(Tier::Remote)];

    #[test]
    fn it_fits_80_columns_whatever_the_context() {
        for n in [1, 2, 4, 30, 79, 250] {
            let sources: Vec<_> = (0..n).map(|i| ALL[i % 5]).collect();
            let name = |_: &ChunkId| Some("a/path/that/is/rather/long/document.txt".to_owned());
            let text = draw(&report(&sources), &name, false);
            for line in text.lines() {
                assert!(line.chars().count() < 80, "{n}: {line}");
            }
        }
    }

    #[test]
    fn rows_that_were_stored_in_8_bits_are_mentioned() {
        let mut report = report(&[Some(Tier::Disk), None]);
        assert!(!draw(&report, &|_| None, false).contains("8 bits"));
        report.pieces[0].coarse_tokens = 10;
        let text = draw(&report, &|_| None, false);
        assert!(text.contains("rows of 10 tokens were stored in 8 bits\n"), "{text}");
    }

    #[test]
    fn segments_are_as_wide_as_their_tokens_and_never_nothing() {
        assert_eq!(widths(&[1, 1], 10), [5, 5]);
        assert_eq!(widths(&[1, 1_000_000], 12), [1, 10]);
        assert_eq!(widths(&[0], 5), [1]);
        let text = bar(&report(&ALL), false);
        let segments: Vec<&str> = text.split('|').collect();
        for (segment, letter) in segments.iter().zip("cvrdm".chars()) {
            assert!(segment.chars().all(|c| c == letter), "{text}");
        }
        assert!(segments.is_sorted_by_key(|segment| segment.len()), "{text}");
    }

    #[test]
    fn colours_are_for_terminals() {
        let name = |_: &ChunkId| None;
        assert!(!draw(&report(&ALL), &name, false).contains('\x1b'));
        let text = draw(&report(&ALL), &name, true);
        for (_, word, _, code) in SOURCES {
            assert!(text.contains(&format!("\x1b[{code}m█\x1b[0m {word}")), "{text}");
        }
    }
}
