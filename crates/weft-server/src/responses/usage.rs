//! What an answer cost: usage as OpenAI counts it, timings as llama.cpp reports them, and where the
//! context came from.

use serde_json::{Value, json};
use weft_core::engine::{DraftCounts, FinishReason, Finished, Speculation, Stats};

use crate::worker::Progress;

/// Tokens of all choices, and the time from the start to their last end. Choices of one prompt
/// share it, so it counts once.
fn total(finished: &[Option<Finished>], choices_per_prompt: usize) -> Stats {
    let stats = |choice: &Option<Finished>| choice.as_ref().map(|f| f.stats).unwrap_or_default();
    let all = || finished.iter().map(stats);
    let firsts = || all().step_by(choices_per_prompt.max(1));
    Stats {
        prompt_tokens: firsts().map(|stats| stats.prompt_tokens).sum(),
        cached_tokens: firsts().map(|stats| stats.cached_tokens).sum(),
        generated_tokens: all().map(|stats| stats.generated_tokens).sum(),
        first_token: all().map(|stats| stats.first_token).min().unwrap_or_default(),
        total: all().map(|stats| stats.total).max().unwrap_or_default(),
        speculation: all().fold(Speculation::default(), |sum, s| sum.plus(&s.speculation)),
    }
}

/// The tokens of all choices.
pub(crate) fn usage(finished: &[Option<Finished>], choices_per_prompt: usize) -> Value {
    let Stats { prompt_tokens, cached_tokens, generated_tokens, speculation, .. } =
        total(finished, choices_per_prompt);
    let DraftCounts { drafted, accepted } = speculation.prediction;
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated_tokens,
        "total_tokens": prompt_tokens + generated_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        // Only what the client predicted counts, as with OpenAI; `timings` counts all drafts.
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    })
}

/// The tokens so far of a choice that is being written, as vLLM counts them.
pub(crate) fn running_usage(prompt_tokens: usize, generated_tokens: usize) -> Value {
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated_tokens,
        "total_tokens": prompt_tokens + generated_tokens,
    })
}

/// The times and tokens of all choices.
fn timings(finished: &[Option<Finished>], choices_per_prompt: usize) -> Value {
    let Stats { prompt_tokens, cached_tokens, generated_tokens, first_token, total, speculation } =
        total(finished, choices_per_prompt);
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let computed = prompt_tokens.saturating_sub(cached_tokens);
    let decode_ms = ms(total.saturating_sub(first_token));
    // The first token of each choice comes from its prompt.
    let decoded = generated_tokens.saturating_sub(finished.len());
    let per = |time: f64, n: usize| if n > 0 { time / n as f64 } else { 0.0 };
    let rate = |n: usize, time: f64| if time > 0.0 { n as f64 * 1e3 / time } else { 0.0 };
    let mut timings = json!({
        "cache_n": cached_tokens,
        "prompt_n": computed,
        "prompt_ms": ms(first_token),
        "prompt_per_token_ms": per(ms(first_token), computed),
        "prompt_per_second": rate(computed, ms(first_token)),
        "predicted_n": generated_tokens,
        "predicted_ms": decode_ms,
        "predicted_per_token_ms": per(decode_ms, decoded),
        "predicted_per_second": rate(decoded, decode_ms),
    });
    // llama.cpp's names; like there, they are missing if nothing was drafted.
    let DraftCounts { drafted, accepted } = speculation.total();
    if drafted > 0 {
        timings["draft_n"] = drafted.into();
        timings["draft_n_accepted"] = accepted.into();
        timings["draft_sources"] = json!(speculation);
    }
    timings
}

/// Adds the timings of choices, and where the context of the first came from.
pub(crate) fn add_costs(answer: &mut Value, finished: &[Option<Finished>], per_prompt: usize) {
    answer["timings"] = timings(finished, per_prompt);
    if let Some(Some(first)) = finished.first() {
        answer["chunk_report"] = first.report.json();
    }
}

/// Adds how far the prompt is, in llama.cpp's form, and where its context came from so far.
pub(crate) fn add_progress(event: &mut Value, progress: &Progress) {
    let Progress { processed, time, report } = progress;
    event["prompt_progress"] = json!({
        "total": report.pieces.iter().map(|piece| piece.tokens).sum::<usize>(),
        "cache": report.cached_tokens(),
        "processed": processed,
        "time_ms": (time.as_secs_f64() * 1e6).round() / 1e3,
    });
    event["chunk_report"] = report.json();
}

/// Adds the usage and timings of all choices to the last event of a stream, as llama.cpp does.
pub(crate) fn add_usage(event: &mut Value, finished: &[Option<Finished>], per_prompt: usize) {
    event["usage"] = usage(finished, per_prompt);
    event["timings"] = timings(finished, per_prompt);
}

/// Adds how many of the tokens of all choices were thoughts. Completions do not tell them apart.
pub(crate) fn add_thought(answer: &mut Value, n_tokens: usize) {
    answer["usage"]["completion_tokens_details"]["reasoning_tokens"] = n_tokens.into();
}

/// Why an answer ended, in OpenAI's words.
pub(crate) fn reason(finished: &Finished) -> &'static str {
    match finished.reason {
        FinishReason::Length => "length",
        FinishReason::Stop | FinishReason::Cancelled => "stop",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weft_core::chunk::Report;

    use super::*;

    fn finished(prompt_tokens: usize, generated_tokens: usize, total_ms: u64) -> Option<Finished> {
        let stats = Stats {
            prompt_tokens,
            cached_tokens: 4,
            generated_tokens,
            first_token: Duration::from_millis(100),
            total: Duration::from_millis(total_ms),
            ..Stats::default()
        };
        Some(Finished { reason: FinishReason::Stop, stats, report: Report::default(), stop: None })
    }

    /// Two prompts with two choices each: a prompt counts once, its answers each.
    #[test]
    fn choices_share_their_prompt() {
        let all = [finished(10, 3, 200), finished(10, 5, 400), finished(20, 1, 100), None];
        let usage = usage(&all, 2);
        assert_eq!(usage["prompt_tokens"], 30);
        assert_eq!(usage["completion_tokens"], 9);
        assert_eq!(usage["total_tokens"], 39);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 8);
    }

    /// What was drafted adds up over choices; the usage counts the client's prediction alone.
    #[test]
    fn drafts_are_counted_by_source() {
        let drafted = |context: (usize, usize), prediction: (usize, usize)| {
            let counts = |(drafted, accepted)| DraftCounts { drafted, accepted };
            let (context, prediction) = (counts(context), counts(prediction));
            let speculation = Speculation { context, prediction, ..Speculation::default() };
            finished(10, 8, 200).map(|finished| Finished {
                stats: Stats { speculation, ..finished.stats },
                ..finished
            })
        };
        let all = [drafted((4, 3), (7, 5)), drafted((0, 0), (3, 1))];
        let details = &usage(&all, 2)["completion_tokens_details"];
        assert_eq!(details["accepted_prediction_tokens"], 6);
        assert_eq!(details["rejected_prediction_tokens"], 4);
        let with_drafts = timings(&all, 2);
        assert_eq!(
            (&with_drafts["draft_n"], &with_drafts["draft_n_accepted"]),
            (&json!(14), &json!(9))
        );
        let of_context = &with_drafts["draft_sources"]["context"];
        assert_eq!(of_context, &json!({"drafted": 4, "accepted": 3}));
        let without = timings(&[finished(10, 3, 300)], 1);
        assert!(without.get("draft_n").is_none(), "{without}");
    }

    /// The prompt of all choices has been read when the first of them has its first token.
    #[test]
    fn the_prompt_s_time_ends_with_the_first_token_of_any_choice() {
        let late = finished(10, 3, 300).map(|finished| Finished {
            stats: Stats { first_token: Duration::from_millis(250), ..finished.stats },
            ..finished
        });
        for all in [[late.clone(), finished(10, 3, 300)], [finished(10, 3, 300), late]] {
            let timings = timings(&all, 2);
            assert_eq!(
                (&timings["prompt_ms"], &timings["predicted_ms"]),
                (&json!(100.0), &json!(200.0))
            );
        }
    }

    /// The first token of each choice comes from its prompt, so it counts for no speed of decoding.
    #[test]
    fn speeds_count_what_was_computed_in_their_time() {
        let timings = timings(&[finished(10, 3, 300), finished(10, 5, 500)], 2);
        assert_eq!((&timings["cache_n"], &timings["prompt_n"]), (&json!(4), &json!(6)));
        assert_eq!(
            (&timings["prompt_ms"], &timings["predicted_ms"]),
            (&json!(100.0), &json!(400.0))
        );
        assert_eq!(timings["predicted_n"], 8);
        assert_eq!(timings["prompt_per_second"], 60.0);
        assert_eq!(timings["predicted_per_second"], 15.0);
        assert_eq!(timings["predicted_per_token_ms"], 400.0 / 6.0);
    }
}
