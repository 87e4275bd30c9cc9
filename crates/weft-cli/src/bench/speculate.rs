//! `weft bench speculate`: the speed of drafted answers beside plain ones.
//!
//! The drafts are oracles: a first answer is the prediction of the next ones, with a share of its
//! tokens replaced by wrong ones. This measures the mechanism, not how well texts can be guessed.
//! Plain and drafted answers take turns, every answer must have the same tokens, and one more row
//! has `auto` on a text of which no draft is ever right. A draft model with random weights shows
//! the same for a source whose drafts cost time.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use weft_core::chunk::Composition;
use weft_core::device::{Limits, MAX_LANES};
use weft_core::engine::{DraftCounts, Engine, Request, Speculate, Tiers};
use weft_core::kv::pages_for;
use weft_core::model::Model;
use weft_core::sampling::Sampling;

use super::args::{ShapeArgs, SubjectArgs, count_or_zero};
use super::engine_report;
use super::stats::Spread;
use super::subject::Subject;
use crate::error::CliError;
use crate::size;
use crate::terminal;

/// Seed of the draft model's weights: other than the default of the model's.
const DRAFT_SEED: u64 = 2;

#[derive(Args)]
pub(crate) struct SpeculateArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    /// Tokens of each answer
    #[arg(short = 'n', long, value_name = "TOKENS", default_value = "128",
          value_parser = size::parse_count)]
    n_gen: usize,
    /// Tokens of the answer on which no draft is right (0: leave it out)
    #[arg(long, value_name = "TOKENS", default_value = "512", value_parser = count_or_zero)]
    n_wrong: usize,
    /// Tokens in the context before the answer
    #[arg(short = 'd', long, value_name = "TOKENS", value_delimiter = ',', default_value = "16",
          value_parser = count_or_zero)]
    n_depth: Vec<usize>,
    /// Per cent of the draft's tokens that are right
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "0,25,50,75,90,100",
          value_parser = clap::value_parser!(u32).range(0..=100))]
    right: Vec<u32>,
    /// Lengths of drafts: 1 to 7 tokens, or auto
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "1,2,4,7,auto")]
    lengths: Vec<Speculate>,
    /// Sampling temperature. Random weights repeat themselves at 0, and drafts with wrong tokens
    /// then slip to other places of the text
    #[arg(long, value_name = "T", default_value = "1")]
    temperature: f32,
    /// Also time answers whose drafts come from a draft model: random weights of this shape, which
    /// are hardly ever right
    #[arg(long, value_name = "SHAPE")]
    draft: Option<String>,
    /// Number of repetitions of each answer
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = size::parse_count)]
    repetitions: usize,
}

/// The engine, and what is measured with it.
struct Bench<'a> {
    engine: Engine,
    vocab: u32,
    args: &'a SpeculateArgs,
}

/// An answer that every other must repeat.
struct Text {
    depth: usize,
    sampling: Sampling,
    tokens: Vec<u32>,
}

/// One way to answer: how much is drafted, and from what.
struct Case {
    length: Speculate,
    /// A text with this per cent of right tokens. `None` if a draft model drafts.
    prediction: Option<(u32, Vec<u32>)>,
    timed: Timed,
}

/// What was measured of a case.
#[derive(Default)]
struct Timed {
    tokens_per_s: Vec<f64>,
    /// The speed of each answer in that of the plain one of the same turn.
    times_plain: Vec<f64>,
    counts: DraftCounts,
    has_other_tokens: bool,
}

/// An answer: its tokens, its speed after the first one, and its drafts.
struct Answer {
    tokens: Vec<u32>,
    tokens_per_s: f64,
    counts: DraftCounts,
}

pub(super) fn run(args: &SpeculateArgs) -> Result<ExitCode, CliError> {
    if args.lengths.contains(&Speculate::Off) {
        let message =
            "--lengths off is plain decoding, which is measured anyway; give 1 to 7 or auto";
        return Err(CliError::Usage(message.to_owned()));
    }
    if args.n_gen < 2 || args.n_wrong == 1 {
        let message = "an answer of one token has no speed of decoding; give -n 2 or more, and \
                       --n-wrong 0 or 2 or more";
        return Err(CliError::Usage(message.to_owned()));
    }
    let subject = Subject::find(&args.subject)?;
    let depth = args.n_depth.iter().copied().max().unwrap_or(0).max(1);
    let positions = depth + args.n_gen.max(args.n_wrong);
    subject.check_positions(positions)?;
    let limits = Limits {
        step_tokens: args.subject.step_tokens(),
        step_outputs: MAX_LANES,
        positions,
        // The pages of the previous answer may still be in use.
        pages: 2 * (pages_for(positions) + 2),
    };
    let mut bench = Bench {
        engine: subject.engine(&args.subject, limits, Tiers::default())?,
        vocab: weft::bundled_model()?.tokenizer.vocab_size(),
        args,
    };
    let mut rows = Vec::new();
    for depth in &args.n_depth {
        rows.extend(bench.oracles(*depth)?);
        if args.n_wrong > 0 {
            rows.extend(bench.always_wrong(*depth)?);
        }
    }
    if let Some(shape) = &args.draft {
        bench.add_draft_model(shape, limits)?;
        for depth in &args.n_depth {
            rows.extend(bench.drafted_by_model(*depth)?);
        }
    }
    let has_same_tokens = rows.iter().all(|row| row["same_tokens"] == json!(true));
    let figures = json!({
        "answer_tokens": args.n_gen,
        "wrong_answer_tokens": args.n_wrong,
        "temperature": args.temperature,
        "draft_model": args.draft,
        "rows": rows,
    });
    let report = engine_report::report(&subject, &bench.engine, figures);
    engine_report::print_report(&report, &args.subject, table)?;
    if has_same_tokens {
        return Ok(ExitCode::SUCCESS);
    }
    Err(CliError::Unhealthy("drafts, or repetitions, gave other tokens".to_owned()))
}

impl Bench<'_> {
    /// Answers with drafts of every length and quality, beside plain ones.
    fn oracles(&mut self, depth: usize) -> Result<Vec<Value>, CliError> {
        let text = self.text(depth, sampling(self.args.n_gen, self.args.temperature))?;
        let args = self.args;
        let lengths = args.lengths.iter();
        let pairs = lengths.flat_map(|length| args.right.iter().map(move |right| (length, right)));
        let case = |(length, right): (&Speculate, &u32)| self.case(&text, *length, *right);
        let mut cases: Vec<Case> = pairs.map(case).collect();
        let plain = self.take_turns(&text, &mut cases)?;
        Ok(rows("oracle", &text, &plain, &cases))
    }

    /// Answers of `auto` on a text that nothing foretells, with a prediction that is always wrong.
    fn always_wrong(&mut self, depth: usize) -> Result<Vec<Value>, CliError> {
        let text = self.text(depth, sampling(self.args.n_wrong, self.args.temperature))?;
        let mut cases = [self.case(&text, Speculate::Auto, 0)];
        let plain = self.take_turns(&text, &mut cases)?;
        Ok(rows("always wrong", &text, &plain, &cases))
    }

    /// Loads a draft model onto its own device.
    fn add_draft_model(&mut self, shape: &str, limits: Limits) -> Result<(), CliError> {
        let random = ShapeArgs { shape: Some(shape.to_owned()), seed: DRAFT_SEED };
        let subject = Subject::of_shape(&random)?;
        subject.check_positions(limits.positions)?;
        let device = subject.open(&self.args.subject, limits)?.device;
        let tokenizer = Arc::clone(&weft::bundled_model()?.tokenizer);
        let model = Model::random(subject.config, DRAFT_SEED, tokenizer);
        self.engine.set_draft_model(&model, device).expect("both have the same tokenizer");
        Ok(())
    }

    /// Answers with drafts of the draft model.
    fn drafted_by_model(&mut self, depth: usize) -> Result<Vec<Value>, CliError> {
        let SpeculateArgs { n_gen, n_wrong, temperature, .. } = self.args;
        let n_tokens = if *n_wrong > 0 { *n_wrong } else { *n_gen };
        let text = self.text(depth, sampling(n_tokens, *temperature))?;
        let case = |length: &Speculate| Case {
            length: *length,
            prediction: None,
            timed: Timed::default(),
        };
        let mut cases: Vec<Case> = self.args.lengths.iter().map(case).collect();
        let plain = self.take_turns(&text, &mut cases)?;
        Ok(rows("draft model", &text, &plain, &cases))
    }

    /// The plain answer, which all others must repeat.
    fn text(&mut self, depth: usize, sampling: Sampling) -> Result<Text, CliError> {
        let mut text = Text { depth, sampling, tokens: Vec::new() };
        text.tokens = self.answer(&text, Speculate::Off, None)?.tokens;
        Ok(text)
    }

    fn case(&self, text: &Text, length: Speculate, right: u32) -> Case {
        let prediction = Some((right, corrupted(&text.tokens, right, self.vocab)));
        Case { length, prediction, timed: Timed::default() }
    }

    /// Times plain answers and those of all cases in turn. The first turn warms up and is not
    /// timed.
    fn take_turns(&mut self, text: &Text, cases: &mut [Case]) -> Result<Timed, CliError> {
        let mut plain = Timed::default();
        for turn in 0..=self.args.repetitions {
            let found = self.answer(text, Speculate::Off, None)?;
            let speed = found.tokens_per_s;
            plain.take(&found, speed, text, turn > 0);
            for Case { length, prediction, timed, .. } in &mut *cases {
                let predicted = prediction.as_ref().map(|(_, tokens)| &tokens[..]);
                let found = self.answer(text, *length, predicted)?;
                timed.take(&found, speed, text, turn > 0);
            }
            let line = format!("d{}: plain {speed:.1} tok/s", text.depth);
            terminal::note(self.args.subject.quiet, &line);
        }
        Ok(plain)
    }

    /// A cold answer.
    fn answer(
        &mut self,
        text: &Text,
        speculate: Speculate,
        prediction: Option<&[u32]>,
    ) -> Result<Answer, CliError> {
        self.engine.drop_rows();
        let prompt = (0..text.depth.max(1)).map(|i| 100 + (i * 7919 % 1000) as u32);
        let prompt = Composition::from(prompt.collect::<Vec<_>>());
        let request = Request {
            speculate: Some(speculate),
            prediction: prediction.map(<[u32]>::to_vec),
            ..Request::new(prompt, text.sampling.clone())
        };
        let mut generation = self.engine.generate(request)?;
        let tokens = generation.by_ref().map(|token| Ok(token?.id));
        let tokens = tokens.collect::<Result<Vec<u32>, CliError>>()?;
        let finished = generation.finished().expect("the answer has ended");
        let counts = finished.stats.speculation.total();
        let tokens_per_s = finished.stats.tokens_per_second().unwrap_or_default();
        Ok(Answer { tokens, tokens_per_s, counts })
    }
}

impl Timed {
    fn take(&mut self, answer: &Answer, plain_speed: f64, text: &Text, counts: bool) {
        self.has_other_tokens |= answer.tokens != text.tokens;
        if counts {
            self.tokens_per_s.push(answer.tokens_per_s);
            self.times_plain.push(answer.tokens_per_s / plain_speed);
            self.counts.drafted += answer.counts.drafted;
            self.counts.accepted += answer.counts.accepted;
        }
    }
}

fn sampling(n_tokens: usize, temperature: f32) -> Sampling {
    Sampling {
        temperature,
        seed: 1,
        max_tokens: Some(n_tokens),
        ignore_eos: true,
        ..Sampling::default()
    }
}

/// A text with `right` per cent of its tokens kept, and wrong ones in the place of the others.
/// Which ones depends on their positions alone, as random as if dice were thrown.
fn corrupted(truth: &[u32], right: u32, vocab: u32) -> Vec<u32> {
    let is_right = |position: usize| {
        let mixed = (position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 32) % 100 < u64::from(right)
    };
    let token = |(position, token): (usize, &u32)| {
        if is_right(position) { *token } else { (token + 1) % vocab }
    };
    truth.iter().enumerate().map(token).collect()
}

fn rows(name: &str, text: &Text, plain: &Timed, cases: &[Case]) -> Vec<Value> {
    let row = |draft: String, right: Option<u32>, timed: &Timed| {
        let DraftCounts { drafted, accepted } = timed.counts;
        let share = (drafted > 0).then(|| accepted as f64 / drafted as f64);
        json!({
            "text": name, "depth": text.depth, "tokens": text.tokens.len(),
            "draft": draft, "right_percent": right,
            "drafted": drafted, "accepted": accepted, "accepted_share": share,
            "tokens_per_s": Spread::of(&timed.tokens_per_s),
            "times_plain": Spread::of(&timed.times_plain),
            "same_tokens": !timed.has_other_tokens,
            "samples": timed.tokens_per_s, "samples_times_plain": timed.times_plain,
        })
    };
    let of_case = |case: &Case| {
        let right = case.prediction.as_ref().map(|(right, _)| *right);
        row(case.length.to_string(), right, &case.timed)
    };
    [row("off".to_owned(), None, plain)].into_iter().chain(cases.iter().map(of_case)).collect()
}

fn table(report: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let percent =
        |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.0} %"));
    let mut lines = format!(
        "{} · {} · drafts are oracles, so this is the mechanism's speed\n\n\
         | text | depth | drafts of | right | accepted | tok/s | p10 – p90 | against plain |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|\n",
        text(&report["model"]),
        text(&report["device"]),
    );
    for row in report["rows"].as_array().into_iter().flatten() {
        let speed = &row["tokens_per_s"];
        lines += &format!(
            "| {}, {} tokens | {} | {} | {} | {} | {:.1} | {:.1} – {:.1} | {:.2} × |\n",
            text(&row["text"]),
            row["tokens"],
            row["depth"],
            text(&row["draft"]),
            percent(row["right_percent"].as_f64()),
            percent(row["accepted_share"].as_f64().map(|share| 100.0 * share)),
            number(&speed["median"]),
            number(&speed["p10"]),
            number(&speed["p90"]),
            number(&row["times_plain"]["median"]),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_as_right_as_asked_for() {
        let truth: Vec<u32> = (0..2000).map(|i| i % 700).collect();
        for right in [0, 25, 50, 75, 90, 100] {
            let draft = corrupted(&truth, right, 700);
            let same = draft.iter().zip(&truth).filter(|(a, b)| a == b).count();
            let share = same as f64 / truth.len() as f64 * 100.0;
            assert!((share - f64::from(right)).abs() < 3.0, "{share} for {right}");
            assert!(draft.iter().all(|token| *token < 700));
        }
        assert_eq!(corrupted(&truth, 100, 700), truth);
        assert!(corrupted(&truth, 0, 700).iter().zip(&truth).all(|(a, b)| a != b));
    }
}
