//! `weft bench first-token`: the time to the first token with a cold context, and with one cached
//! in each tier.
//!
//! It measures a whole `Engine`, because a warm first token consists of finding, loading and
//! allocating rows. Every case must give the same token with the same log-probabilities; otherwise
//! the results are invalid. Rows that are stored in 8 bits are not those that were computed, so
//! then the slower tiers are compared with one another. Log-probabilities are checked in a round
//! that is not timed, because they cost time themselves.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use weft_core::chunk::{Composition, Kind, Piece, PieceReport, Repair, Reuse, Tier};
use weft_core::device::{Limits, MAX_LANES};
use weft_core::engine::{Engine, Request, Tiers, Token};
use weft_core::kv::pages_for;
use weft_core::sampling::Sampling;
use weft_core::store::{Store, StoredRows};

use super::args::SubjectArgs;
use super::engine_report;
use super::stats::Spread;
use super::subject::Subject;
use crate::error::CliError;
use crate::size;
use crate::terminal;

#[derive(Args)]
pub(crate) struct FirstTokenArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    /// Tokens of context, in chunks of --chunk tokens
    #[arg(short = 'p', long, alias = "context", value_name = "TOKENS", default_value = "2048",
          value_parser = size::parse_count)]
    n_context: usize,
    /// Tokens of one chunk
    #[arg(long, value_name = "TOKENS", default_value = "256", value_parser = size::parse_count)]
    chunk: usize,
    /// Tokens of the query
    #[arg(short = 'n', long, value_name = "TOKENS", default_value = "16",
          value_parser = size::parse_count)]
    query: usize,
    /// How chunks attend to one another: exact, anchored or isolated
    #[arg(long, value_name = "REUSE", default_value = "exact")]
    reuse: Reuse,
    /// How rows of approximate chunks are stored: full or int8
    #[arg(long, value_name = "FORM", default_value = "full")]
    stored_rows: StoredRows,
    /// Number of repetitions of each case
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = size::parse_count)]
    repetitions: usize,
}

/// What is measured.
struct Case {
    name: &'static str,
    /// The tier of the context's rows when the request arrives, if any.
    tier: Option<Tier>,
    /// Whether the rows are fetched even if the engine expects computing to be faster.
    is_forced: bool,
}

/// Cases that must give the same token.
#[derive(PartialEq, Eq)]
enum Kin {
    /// Rows as they were computed.
    Computed,
    /// Rows that were stored in 8 bits.
    Rounded,
    /// Some of each.
    Mixed,
}

impl Case {
    fn kin(&self, args: &FirstTokenArgs) -> Kin {
        match self.tier {
            None | Some(Tier::Device) => Kin::Computed,
            _ if args.stored_rows == StoredRows::Full => Kin::Computed,
            _ if args.reuse == Reuse::Exact => Kin::Computed,
            Some(_) if self.is_forced => Kin::Rounded,
            Some(_) => Kin::Mixed,
        }
    }

    const fn new(name: &'static str, tier: Option<Tier>) -> Self {
        Self { name, tier, is_forced: true }
    }
}

/// The engine chooses between a disk and computing after reads have been measured.
const CASES: [Case; 5] = [
    Case::new("cold", None),
    Case::new("device", Some(Tier::Device)),
    Case::new("ram", Some(Tier::Ram)),
    Case::new("disk, always read", Some(Tier::Disk)),
    Case { is_forced: false, ..Case::new("disk", Some(Tier::Disk)) },
];

/// One first token.
struct Asked {
    token: Token,
    time: Duration,
    /// Share of the context's tokens whose rows came from their tier; the others were computed.
    fetched: f64,
}

pub(crate) fn run(args: &FirstTokenArgs) -> Result<ExitCode, CliError> {
    let subject = Subject::find(&args.subject)?;
    let n_rows = args.n_context + args.query + 1;
    subject.check_positions(n_rows)?;
    let folder = std::env::temp_dir().join(format!("weft-bench-{}", std::process::id()));
    let result = measure(&subject, args, n_rows, &folder);
    // Rows of random tokens are useless afterwards.
    let _ = std::fs::remove_dir_all(&folder);
    let report = result?;
    engine_report::print_report(&report, &args.subject, table)?;
    if report["same_bits"] == json!(true) {
        return Ok(ExitCode::SUCCESS);
    }
    Err(CliError::Unhealthy("the tiers gave different tokens".to_owned()))
}

fn measure(
    subject: &Subject,
    args: &FirstTokenArgs,
    n_rows: usize,
    folder: &std::path::Path,
) -> Result<Value, CliError> {
    let mut engine = engine(subject, args, n_rows, folder)?;
    let prompt = prompt(args);
    let mut samples: Vec<Vec<Asked>> = CASES.iter().map(|_| Vec::new()).collect();
    // This round also warms up the machine.
    let checked = CASES.iter().map(|case| ask(&mut engine, &prompt, case, Some(5)));
    let checked = checked.collect::<Result<Vec<_>, _>>()?;
    let kin: Vec<Kin> = CASES.iter().map(|case| case.kin(args)).collect();
    let same = |n: usize, is_same: &dyn Fn(&Token) -> bool| {
        let mut relatives = kin.iter().zip(&checked).filter(|(other, _)| **other == kin[n]);
        kin[n] == Kin::Mixed || relatives.all(|(_, asked)| is_same(&asked.token))
    };
    let is_same = |(n, asked): (usize, &Asked)| same(n, &|token| *token == asked.token);
    let mut same_bits = checked.iter().enumerate().all(is_same);
    for _ in 0..args.repetitions {
        for (n, (case, samples)) in CASES.iter().zip(&mut samples).enumerate() {
            let asked = ask(&mut engine, &prompt, case, None)?;
            let time = size::time(asked.time);
            terminal::note(args.subject.quiet, &format!("{}: {time}", case.name));
            same_bits &= same(n, &|token| token.id == asked.token.id);
            samples.push(asked);
        }
    }
    Ok(report(subject, args, &engine, &samples, same_bits))
}

/// The model with room for its context and for rows in every tier.
fn engine(
    subject: &Subject,
    args: &FirstTokenArgs,
    n_rows: usize,
    folder: &std::path::Path,
) -> Result<Engine, CliError> {
    let n_pieces = args.n_context.div_ceil(args.chunk) + 2;
    let limits = Limits {
        step_tokens: args.subject.step_tokens(),
        step_outputs: MAX_LANES,
        positions: n_rows,
        // One spare page per piece, for copies of partly filled pages.
        pages: pages_for(n_rows) + n_pieces,
    };
    let store = Store::open(folder, u64::MAX >> 1)
        .map_err(|error| CliError::Usage(format!("{}: {error}", folder.display())))?;
    let stored_rows = args.stored_rows.form(subject.config.head_dim);
    let tiers =
        Tiers { ram_bytes: u64::MAX >> 1, store: Some(store), stored_rows, ..Tiers::default() };
    subject.engine(&args.subject, limits, tiers)
}

fn prompt(args: &FirstTokenArgs) -> Composition {
    let token = |position: usize| 100 + (position * 7919 % 1000) as u32;
    let context: Vec<u32> = (0..args.n_context).map(token).collect();
    let chunks = context.chunks(args.chunk);
    let piece =
        |chunk: &[u32]| Piece { reuse: args.reuse, ..Piece::exact(Kind::Context, chunk.to_vec()) };
    let mut pieces: Vec<Piece> = chunks.map(piece).collect();
    let query = (args.n_context..args.n_context + args.query).map(token).collect();
    pieces.push(Piece::exact(Kind::Query, query));
    Composition { pieces, repair: Repair::None }
}

/// One first token, with the context's rows in a tier and the query's rows not cached.
fn ask(
    engine: &mut Engine,
    prompt: &Composition,
    case: &Case,
    logprobs: Option<usize>,
) -> Result<Asked, CliError> {
    engine.drop_rows();
    engine.always_fetch(case.is_forced);
    if let Some(tier) = case.tier {
        engine.warm(prompt)?;
        engine.demote(tier);
    }
    let sampling = Sampling {
        temperature: 0.0,
        max_tokens: Some(1),
        ignore_eos: true,
        logprobs,
        ..Sampling::default()
    };
    let mut generation = engine.generate(Request::new(prompt.clone(), sampling))?;
    let token = generation.next().expect("one token was asked for")?;
    while generation.next().is_some() {}
    let finished = generation.finished().expect("the answer has ended");
    let sources = &finished.report.pieces[..prompt.pieces.len() - 1];
    let is_there = |piece: &&PieceReport| piece.source == case.tier;
    let n_there: usize = sources.iter().filter(is_there).map(|piece| piece.tokens).sum();
    let n_context: usize = sources.iter().map(|piece| piece.tokens).sum();
    assert!(!case.is_forced || n_there == n_context, "rows were not where they should be");
    let fetched = if case.tier.is_some() { n_there as f64 / n_context as f64 } else { 0.0 };
    Ok(Asked { token, time: finished.stats.first_token, fetched })
}

fn report(
    subject: &Subject,
    args: &FirstTokenArgs,
    engine: &Engine,
    samples: &[Vec<Asked>],
    same_bits: bool,
) -> Value {
    let medians: Vec<f64> = samples.iter().map(|samples| spread(samples).median).collect();
    let cases = CASES.iter().zip(samples).zip(&medians).map(|((case, samples), median)| {
        let spread = spread(samples);
        json!({
            "rows": case.name,
            "fetched_shares": samples.iter().map(|asked| asked.fetched).collect::<Vec<_>>(),
            "first_token_ms": {"median": spread.median, "p10": spread.p10, "p90": spread.p90},
            "times_faster_than_cold": medians[0] / median,
            "samples_ms": samples.iter().map(ms).collect::<Vec<_>>(),
        })
    });
    let figures = json!({
        "context_tokens": args.n_context,
        "chunk_tokens": args.chunk,
        "query_tokens": args.query,
        "reuse": args.reuse.to_string(),
        "stored_rows": args.stored_rows,
        "same_bits": same_bits,
        "cases": cases.collect::<Vec<_>>(),
    });
    engine_report::report(subject, engine, figures)
}

fn spread(samples: &[Asked]) -> Spread {
    Spread::of(&samples.iter().map(ms).collect::<Vec<_>>())
}

fn ms(asked: &Asked) -> f64 {
    asked.time.as_secs_f64() * 1e3
}

fn table(report: &Value) -> String {
    let mut lines = format!(
        "{} · {} · {} tokens of context, {} of query\n\n| rows | first token | p10 – p90 | against cold |\n|---|--:|--:|--:|\n",
        report["model"].as_str().unwrap_or_default(),
        report["device"].as_str().unwrap_or_default(),
        report["context_tokens"],
        report["query_tokens"],
    );
    for case in report["cases"].as_array().into_iter().flatten() {
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        let time = &case["first_token_ms"];
        lines += &format!(
            "| {} | {} | {} – {} | {:.1} × |\n",
            case["rows"].as_str().unwrap_or_default(),
            size::time_ms(number(&time["median"])),
            size::time_ms(number(&time["p10"])),
            size::time_ms(number(&time["p90"])),
            number(&case["times_faster_than_cold"]),
        );
    }
    lines
}
