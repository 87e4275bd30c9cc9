//! What an answer cost: usage as OpenAI counts it, timings as llama.cpp reports them, and where the
//! context came from.

use serde_json::{Value, json};
use weft_core::engine::{FinishReason, Finished, Stats};

use crate::worker::Progress;

/// Tokens of all choices. Choices of one prompt share it, so it counts once.
pub(super) fn usage(finished: &[Option<Finished>], choices_per_prompt: usize) -> Value {
    let stats = |choice: &Option<Finished>| choice.as_ref().map(|f| f.stats).unwrap_or_default();
    let firsts = || finished.iter().step_by(choices_per_prompt.max(1)).map(stats);
    let prompt: usize = firsts().map(|stats| stats.prompt_tokens).sum();
    let cached: usize = firsts().map(|stats| stats.cached_tokens).sum();
    let generated: usize = finished.iter().map(|f| stats(f).generated_tokens).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    })
}

/// The times and tokens of an answer.
pub(super) fn timings(stats: &Stats) -> Value {
    let Stats { prompt_tokens, cached_tokens, generated_tokens, first_token, total } = *stats;
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let computed = prompt_tokens.saturating_sub(cached_tokens);
    let decode_ms = ms(total.saturating_sub(first_token));
    let decoded = generated_tokens.saturating_sub(1);
    let per = |time: f64, n: usize| if n > 0 { time / n as f64 } else { 0.0 };
    let rate = |n: usize, time: f64| if time > 0.0 { n as f64 * 1e3 / time } else { 0.0 };
    json!({
        "cache_n": cached_tokens,
        "prompt_n": computed,
        "prompt_ms": ms(first_token),
        "prompt_per_token_ms": per(ms(first_token), computed),
        "prompt_per_second": rate(computed, ms(first_token)),
        "predicted_n": generated_tokens,
        "predicted_ms": decode_ms,
        "predicted_per_token_ms": per(decode_ms, decoded),
        "predicted_per_second": rate(decoded, decode_ms),
    })
}

/// Adds an answer's timings and where its context came from.
pub(super) fn add_costs(answer: &mut Value, finished: &Finished) {
    answer["timings"] = timings(&finished.stats);
    answer["chunk_report"] = finished.report.json();
}

/// Adds how far the prompt is, in llama.cpp's form, and where its context came from so far.
pub(super) fn add_progress(event: &mut Value, progress: &Progress) {
    let Progress { processed, time, report } = progress;
    event["prompt_progress"] = json!({
        "total": report.pieces.iter().map(|piece| piece.tokens).sum::<usize>(),
        "cache": report.cached_tokens(),
        "processed": processed,
        "time_ms": (time.as_secs_f64() * 1e6).round() / 1e3,
    });
    event["chunk_report"] = report.json();
}

/// Adds the first choice's timings to the event with the usage, as llama.cpp does.
pub(super) fn add_timings(event: &mut Value, finished: &[Option<Finished>]) {
    if let Some(Some(first)) = finished.first() {
        event["timings"] = timings(&first.stats);
    }
}

/// Why an answer ended, in OpenAI's words.
pub(super) fn reason(finished: &Finished) -> &'static str {
    match finished.reason {
        FinishReason::Length => "length",
        FinishReason::Stop | FinishReason::Cancelled => "stop",
    }
}
