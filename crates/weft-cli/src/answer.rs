//! Streams one answer: reasoning to stderr, the answer to stdout, then one line of statistics.

use std::collections::BTreeMap;
use std::io::{self, Write};

use indicatif::ProgressBar;
use serde_json::json;
use weft_core::chunk::{ChunkId, Composition, Report, Tier};
use weft_core::engine::{DraftCounts, FinishReason, Finished, Stats};
use weft_core::reasoning::{Parts, ReasoningStream};

use crate::error::CliError;
use crate::size;
use crate::terminal;

/// How an answer is shown.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    /// Whether to print while the model generates, rather than only collect.
    pub(crate) stream: bool,
    /// Whether to hide the bar, the reasoning and the statistics.
    pub(crate) quiet: bool,
}

/// A complete answer.
pub(crate) struct Answer {
    pub(crate) origin: Origin,
    pub(crate) parts: Parts,
    pub(crate) finished: Finished,
    /// The names of its chunks.
    pub(crate) names: BTreeMap<ChunkId, String>,
}

/// What is needed to compute an answer again.
pub(crate) enum Origin {
    /// This process answered.
    Own { prompt: Composition, tokens: Vec<u32> },
    /// A resident server answered, and calls the answer this.
    Resident(String),
}

impl Answer {
    /// Whether Ctrl-C ended it.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.finished.reason == FinishReason::Cancelled
    }

    /// The answer and its statistics as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        let Stats {
            prompt_tokens,
            cached_tokens,
            generated_tokens,
            first_token,
            total,
            speculation,
        } = self.finished.stats;
        json!({
            "text": self.parts.answer,
            "reasoning": self.parts.reasoning,
            "finish_reason": self.finished.reason.to_string(),
            "prompt_tokens": prompt_tokens,
            "cached_tokens": cached_tokens,
            "generated_tokens": generated_tokens,
            "first_token_ms": first_token.as_secs_f64() * 1e3,
            "total_ms": total.as_secs_f64() * 1e3,
            "tokens_per_second": self.finished.stats.tokens_per_second(),
            "drafted_tokens": speculation.total().drafted,
            "accepted_tokens": speculation.total().accepted,
            "speculation": speculation,
            "chunk_report": self.finished.report.json(),
        })
    }
}

/// Shows an answer while it is generated.
pub(crate) struct Printer {
    style: Style,
    bar: ProgressBar,
    reasoning: ReasoningStream,
    parts: Parts,
}

impl Printer {
    /// `end` is the text of the prompt's last tokens.
    pub(crate) fn new(style: Style, prompt_tokens: usize, end: &str) -> Self {
        let bar = terminal::bar(style.quiet, prompt_tokens as u64, "prefill");
        Self { style, bar, reasoning: ReasoningStream::after(end), parts: Parts::default() }
    }

    /// Shows how many tokens of the prompt are computed.
    pub(crate) fn prefill(bar: &ProgressBar, done: usize) {
        bar.set_position(done as u64);
        if bar.length() == Some(done as u64) {
            bar.finish_and_clear();
        }
    }

    pub(crate) fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<(), CliError> {
        self.bar.finish_and_clear();
        let more = self.reasoning.push(text);
        show(&more, &mut self.parts, self.style)
    }

    /// Shows the end of the answer and its statistics.
    pub(crate) fn finish(mut self, finished: &Finished) -> Result<Parts, CliError> {
        self.bar.finish_and_clear();
        show(&self.reasoning.finish(), &mut self.parts, self.style)?;
        if self.style.stream {
            end_line(&self.parts)?;
        }
        terminal::note(self.style.quiet, &stats_line(finished));
        Ok(self.parts)
    }
}

/// Prints a piece and adds it to the answer.
fn show(more: &Parts, parts: &mut Parts, style: Style) -> Result<(), CliError> {
    if style.stream && !style.quiet && !more.reasoning.is_empty() {
        eprint!("{}", terminal::dim(&terminal::without_controls(&more.reasoning)));
    }
    if style.stream && !more.answer.is_empty() {
        if parts.answer.is_empty() && !parts.reasoning.is_empty() && !style.quiet {
            eprintln!();
        }
        print(&terminal::printable(&more.answer))?;
    }
    parts.reasoning.push_str(&more.reasoning);
    parts.answer.push_str(&more.answer);
    Ok(())
}

fn end_line(parts: &Parts) -> Result<(), CliError> {
    if parts.answer.ends_with('\n') { Ok(()) } else { print("\n") }
}

/// Writes to stdout at once. If the reader has closed the pipe, the program ends quietly.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.map_err(CliError::io("stdout")),
    }
}

/// The line of statistics below an answer.
pub(crate) fn stats_line(finished: &Finished) -> String {
    let stats = &finished.stats;
    let speed = match stats.tokens_per_second() {
        Some(speed) => format!(" · {speed:.1} tok/s"),
        None => String::new(),
    };
    let saved = match finished.report.saved() {
        saved if saved.as_secs_f64() >= 5e-4 => format!(" (saved {})", size::time(saved)),
        _ => String::new(),
    };
    let drafted = match stats.speculation.total() {
        DraftCounts { drafted: 0, .. } => String::new(),
        DraftCounts { drafted, accepted } => format!(" · {accepted} of {drafted} drafted"),
    };
    format!(
        "{} tok prompt{} · first token {}{saved} · {} tok{speed}{drafted} · {}",
        stats.prompt_tokens,
        cached(&finished.report),
        size::time(stats.first_token),
        stats.generated_tokens,
        finished.reason
    )
}

/// Number of cached tokens, by tier. For a partly cached piece, the tier is not known.
fn cached(report: &Report) -> String {
    let all = report.cached_tokens();
    if all == 0 {
        return String::new();
    }
    let pieces = || report.pieces.iter();
    let tokens = |source| -> usize {
        let of_source = pieces().filter(|piece| piece.source == source);
        of_source.map(|piece| piece.cached_tokens).sum()
    };
    let tiers = [Tier::Device, Tier::Ram, Tier::Disk, Tier::Remote];
    let places = tiers.map(|tier| (tier.to_string(), Some(tier)));
    let places: Vec<String> = places
        .into_iter()
        .chain([("of parts".to_owned(), None)])
        .map(|(name, source)| (tokens(source), name))
        .filter(|(tokens, _)| *tokens > 0)
        .map(|(tokens, name)| format!("{tokens} {name}"))
        .collect();
    format!(" ({all} cached: {})", places.join(", "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weft_core::chunk::{Kind, PieceReport, Reuse};
    use weft_core::engine::Speculation;

    use super::*;

    fn piece(cached_tokens: usize, source: Option<Tier>) -> PieceReport {
        PieceReport {
            chunk: None,
            kind: Kind::Context,
            tokens: 200,
            cached_tokens,
            source,
            reuse: Reuse::Exact,
            shift: 0,
            repaired_tokens: 0,
            coarse_tokens: 0,
            attention: 0.0,
            time: Duration::ZERO,
            saved: Duration::from_millis(70),
            choice: None,
        }
    }

    #[test]
    fn json_has_the_answer_and_the_reasoning_before_it() {
        let prediction = DraftCounts { drafted: 5, accepted: 1 };
        let speculation = Speculation { prediction, ..Speculation::default() };
        let stats = Stats {
            prompt_tokens: 4,
            cached_tokens: 3,
            generated_tokens: 2,
            speculation,
            ..Stats::default()
        };
        let report = Report { pieces: vec![piece(3, None)], answer_attention: 0.5 };
        let finished = Finished { reason: FinishReason::Length, stats, report, stop: None };
        let parts = Parts { reasoning: "hm".to_owned(), answer: "yes".to_owned() };
        let origin = Origin::Resident(String::new());
        let json = Answer { origin, parts, finished, names: BTreeMap::new() }.json();
        for (key, value) in [
            ("text", json!("yes")),
            ("reasoning", json!("hm")),
            ("finish_reason", json!("length")),
            ("prompt_tokens", json!(4)),
            ("cached_tokens", json!(3)),
            ("generated_tokens", json!(2)),
            ("drafted_tokens", json!(5)),
            ("accepted_tokens", json!(1)),
        ] {
            assert_eq!(json[key], value, "{key}");
        }
        assert_eq!(json["speculation"]["prediction"], json!({"drafted": 5, "accepted": 1}));
        assert_eq!(json["chunk_report"]["chunks"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn the_stats_line_has_prompt_first_token_speed_and_reason() {
        let stats = Stats {
            prompt_tokens: 412,
            cached_tokens: 0,
            generated_tokens: 97,
            first_token: Duration::from_millis(41),
            total: Duration::from_millis(89),
            ..Stats::default()
        };
        let report = Report::default();
        let finished = Finished { reason: FinishReason::Stop, stats, report, stop: None };
        let rest = "97 tok · 2000.0 tok/s · stop";
        let cold = format!("412 tok prompt · first token 41 ms · {rest}");
        assert_eq!(stats_line(&finished), cold);
        let pieces =
            vec![piece(200, Some(Tier::Device)), piece(70, Some(Tier::Disk)), piece(9, None)];
        let report = Report { pieces, answer_attention: 0.0 };
        let warm =
            "412 tok prompt (279 cached: 200 device, 70 disk, 9 of parts) · first token 41 ms";
        let finished = Finished { report, ..finished };
        assert_eq!(stats_line(&finished), format!("{warm} (saved 210 ms) · {rest}"));
        let context = DraftCounts { drafted: 40, accepted: 30 };
        let model = DraftCounts { drafted: 8, accepted: 4 };
        let stats =
            Stats { speculation: Speculation { context, model, ..<_>::default() }, ..stats };
        let line = stats_line(&Finished { stats, report: Report::default(), ..finished });
        assert!(line.ends_with("2000.0 tok/s · 34 of 48 drafted · stop"), "{line}");
    }
}
