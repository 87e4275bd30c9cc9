//! `weft bench generate`: the speed of whole answers, for each way of choosing tokens.
//!
//! It measures a whole `Engine`, including scheduling, sampling, text and reports. Every repetition
//! must give the same tokens; otherwise the results are invalid.

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};
use weft_core::chunk::{Composition, Kind, Piece, Repair};
use weft_core::device::{Limits, MAX_LANES};
use weft_core::engine::{Engine, Event, GenerateError, Request, Tiers};
use weft_core::kv::pages_for;
use weft_core::sampling::{Constraint, Sampling};

use super::args::{GridArgs, SubjectArgs};
use super::engine_report;
use super::stats::Spread;
use super::subject::Subject;
use crate::error::CliError;
use crate::size;
use crate::terminal;

#[derive(Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    /// Tokens of each answer
    #[arg(short = 'n', long, value_name = "TOKENS", default_value = "128",
          value_parser = size::parse_count)]
    n_gen: usize,
    /// Chunks of the prompt; the tokens must be the same for all numbers
    #[arg(long, value_name = "N,…", default_value = "1", value_delimiter = ',',
          value_parser = size::parse_count)]
    chunks: Vec<usize>,
    #[command(flatten)]
    grid: GridArgs,
}

/// One measurement: answers side by side after a prompt of some chunks.
#[derive(Clone, Copy)]
struct Point {
    depth: usize,
    batch: usize,
    chunks: usize,
}

/// A way of choosing tokens.
struct Way {
    name: &'static str,
    sampling: Sampling,
    /// What the answer must match.
    rule: Option<Box<dyn Constraint>>,
}

/// The ways of choosing a token that are measured.
fn ways() -> Result<Vec<Way>, CliError> {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let thinking = Sampling { seed: 1, ..Sampling::thinking() };
    let penalties = Sampling { presence_penalty: 1.5, ..thinking.clone() };
    let logprobs = |n| Sampling { logprobs: Some(n), ..thinking.clone() };
    let rule = Some(schema_rule()?);
    let way = |name, sampling| Way { name, sampling, rule: None };
    Ok(vec![
        way("greedy", greedy.clone()),
        way("thinking", thinking.clone()),
        way("penalties", penalties),
        way("logprobs", logprobs(0)),
        way("top_logprobs 5", logprobs(5)),
        Way { name: "schema", sampling: greedy, rule: rule.clone() },
        Way { name: "schema and top_logprobs 5", sampling: logprobs(5), rule },
    ])
}

/// Lists of objects that are longer than any answer.
fn schema_rule() -> Result<Box<dyn Constraint>, CliError> {
    let item = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["bird", "fish", "mammal"]},
            "legs": {"type": "integer", "minimum": 0, "maximum": 1000},
        },
        "required": ["name", "kind", "legs"],
    });
    let schema = json!({"type": "array", "items": item, "minItems": 2000});
    let model = weft::bundled_model()?;
    let end = model.stop_ids.first().copied().unwrap_or_default();
    weft_server::schema_constraint(&model.tokenizer, end, &schema).map_err(CliError::Usage)
}

pub(crate) fn run(args: &GenerateArgs) -> Result<ExitCode, CliError> {
    let subject = Subject::find(&args.subject)?;
    let most = |values: &[usize]| values.iter().copied().max().unwrap_or(1);
    let positions = most(&args.grid.n_depth).max(1) + args.n_gen;
    subject.check_positions(positions)?;
    let limits = Limits {
        step_tokens: args.subject.step_tokens(),
        step_outputs: MAX_LANES,
        positions,
        // The pages of the previous answers may still be in use.
        pages: 2 * most(&args.grid.batch) * (pages_for(positions) + most(&args.chunks) + 1),
    };
    let mut engine = subject.engine(&args.subject, limits, Tiers::default())?;
    let mut rows = Vec::new();
    for (depth, batch) in args.grid.points() {
        for mut way in ways()? {
            way.sampling.max_tokens = Some(args.n_gen);
            way.sampling.ignore_eos = true;
            let mut truth = None;
            for chunks in args.chunks.iter().copied() {
                let point = Point { depth, batch, chunks };
                let timed = measure(&mut engine, args.grid.repetitions(), point, &way)?;
                let way = way.name;
                let same_tokens = timed.same_tokens
                    && *truth.get_or_insert_with(|| timed.answers.clone()) == timed.answers;
                let spread = Spread::of(&timed.tokens_per_s);
                let name = format!("{way} d{depth} b{batch} c{chunks}");
                terminal::note(args.subject.quiet, &format!("{name}: {:.1} tok/s", spread.median));
                rows.push(json!({
                    "way": way, "depth": depth, "batch": batch, "chunks": chunks,
                    "tokens_per_s":
                        {"median": spread.median, "p10": spread.p10, "p90": spread.p90},
                    "same_tokens": same_tokens, "samples": timed.tokens_per_s,
                }));
            }
        }
    }
    let figures = json!({"answer_tokens": args.n_gen, "rows": &rows});
    engine_report::print_report(
        &engine_report::report(&subject, &engine, figures),
        &args.subject,
        table,
    )?;
    if rows.iter().all(|row| row["same_tokens"] == json!(true)) {
        return Ok(ExitCode::SUCCESS);
    }
    Err(CliError::Unhealthy("repetitions, or other chunks, gave other tokens".to_owned()))
}

/// The results of repeated answers.
struct Timed {
    /// Over all lanes, starting with the step of the last lane's first token.
    tokens_per_s: Vec<f64>,
    answers: Vec<Vec<u32>>,
    same_tokens: bool,
}

/// The first repetition warms up and is not timed.
fn measure(
    engine: &mut Engine,
    repetitions: usize,
    point: Point,
    way: &Way,
) -> Result<Timed, CliError> {
    let (answers, _) = answer(engine, point, way)?;
    let mut timed = Timed { tokens_per_s: Vec::new(), answers, same_tokens: true };
    for _ in 0..repetitions {
        let (answers, tokens_per_s) = answer(engine, point, way)?;
        timed.tokens_per_s.push(tokens_per_s);
        timed.same_tokens &= answers == timed.answers;
    }
    Ok(timed)
}

/// Cold answers side by side: their tokens, and the tokens per second.
fn answer(
    engine: &mut Engine,
    Point { depth, batch, chunks }: Point,
    way: &Way,
) -> Result<(Vec<Vec<u32>>, f64), CliError> {
    engine.drop_rows();
    let lanes = (0..batch)
        .map(|lane| {
            let token = |i: usize| 100 + ((i + 31 * lane) * 7919 % 1000) as u32;
            let tokens: Vec<u32> = (0..depth.max(1)).map(token).collect();
            let pieces = tokens.chunks(tokens.len().div_ceil(chunks));
            let pieces = pieces.map(|piece| Piece::exact(Kind::Context, piece.to_vec())).collect();
            let prompt = Composition { pieces, repair: Repair::None };
            let sampling = Sampling { seed: lane as u64, ..way.sampling.clone() };
            let mut request = Request::new(prompt, sampling);
            request.constraint.clone_from(&way.rule);
            engine.add(request)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut answers = vec![Vec::new(); batch];
    let mut started = None;
    while engine.running() > 0 {
        for event in engine.step().map_err(GenerateError::from)? {
            match event {
                Event::Token { lane, token, .. } => {
                    let lane = lanes.iter().position(|own| *own == lane);
                    answers[lane.expect("a lane of this bench")].push(token.id);
                }
                Event::Failed { error, .. } => return Err(GenerateError::from(error).into()),
                Event::Prefill { .. }
                | Event::Prompt { .. }
                | Event::Read { .. }
                | Event::Done { .. } => {}
            }
        }
        if started.is_none() && answers.iter().all(|answer| !answer.is_empty()) {
            started = Some((Instant::now(), answers.iter().map(Vec::len).sum::<usize>()));
        }
    }
    let (start, before) = started.expect("every lane has said something");
    let n_tokens = answers.iter().map(Vec::len).sum::<usize>() - before;
    Ok((answers, n_tokens as f64 / start.elapsed().as_secs_f64()))
}

fn table(report: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let mut lines = format!(
        "{} · {} · answers of {} tokens\n\n| tokens | depth | chunks | batch | tok/s | p10 – p90 |\n|---|--:|--:|--:|--:|--:|\n",
        text(&report["model"]),
        text(&report["device"]),
        report["answer_tokens"],
    );
    for row in report["rows"].as_array().into_iter().flatten() {
        let speed = &row["tokens_per_s"];
        lines += &format!(
            "| {} | {} | {} | {} | {:.1} | {:.1} – {:.1} |\n",
            text(&row["way"]),
            row["depth"],
            row["chunks"],
            row["batch"],
            number(&speed["median"]),
            number(&speed["p10"]),
            number(&speed["p90"]),
        );
    }
    lines
}
