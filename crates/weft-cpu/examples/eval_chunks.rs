//! The quality of reuse, on the held-out questions of the bundled model or of another folder:
//!
//!     cargo run --release -p weft-cpu --example eval_chunks -- [TRIPLES] [RESULT.json] [FOLDER]
//!
//! All documents are computed in one order. Then each question is asked over its documents in
//! another order, once for each kind of reuse and repair. The order of the question is the file's
//! if documents refer to one another (weft-linked, `tools/train_linked.py`), otherwise a shuffled
//! one. An answer counts if its whole text is right and it ended by itself. Drift is measured on
//! the right answer's tokens, against the plain prompt.

mod held_out;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use held_out::{HeldOut, Triple, folder};
use serde_json::{Value, json};
use weft_core::chunk::{Composition, Kind, Prompt, Repair, Reuse};
use weft_core::engine::{Engine, FinishReason, Finished, Request, Verification};
use weft_core::model::Model;
use weft_core::sampling::Sampling;

type Failure = Box<dyn Error>;

/// The kinds of reuse and repair.
pub const WAYS: [(Reuse, Repair); 9] = [
    (Reuse::Exact, Repair::None),
    (Reuse::Anchored, Repair::None),
    (Reuse::Anchored, Repair::Link(16)),
    (Reuse::Anchored, Repair::Link(32)),
    (Reuse::Anchored, Repair::Blend(0.15, 1)),
    (Reuse::Isolated, Repair::None),
    (Reuse::Isolated, Repair::Link(16)),
    (Reuse::Isolated, Repair::Link(32)),
    (Reuse::Isolated, Repair::Blend(0.15, 1)),
];

/// The kinds of a model that needs repair.
const LINKED_WAYS: [(Reuse, Repair); 15] = [
    (Reuse::Exact, Repair::None),
    (Reuse::Anchored, Repair::None),
    (Reuse::Anchored, Repair::Link(16)),
    (Reuse::Anchored, Repair::Link(32)),
    (Reuse::Anchored, Repair::Blend(0.15, 1)),
    (Reuse::Anchored, Repair::Blend(0.3, 1)),
    (Reuse::Anchored, Repair::Blend(0.15, 3)),
    (Reuse::Anchored, Repair::Blend(0.3, 3)),
    (Reuse::Isolated, Repair::None),
    (Reuse::Isolated, Repair::Link(16)),
    (Reuse::Isolated, Repair::Link(32)),
    (Reuse::Isolated, Repair::Blend(0.15, 1)),
    (Reuse::Isolated, Repair::Blend(0.3, 1)),
    (Reuse::Isolated, Repair::Blend(0.15, 3)),
    (Reuse::Isolated, Repair::Blend(0.3, 3)),
];

/// The results of one kind.
#[derive(Default)]
pub struct Row {
    /// Questions asked.
    pub asked: usize,
    /// Questions with the right answer.
    pub right: usize,
    /// Questions whose own document got the largest share of attention among the documents.
    pub found: usize,
    context_tokens: usize,
    computed_tokens: usize,
    /// What each question needed, and whether it was answered right.
    answers: Vec<(String, bool)>,
    divergences: Vec<f64>,
    differences: Vec<f64>,
    first_tokens: Vec<Duration>,
}

/// All kinds, in the order of [`WAYS`], and the plain prompt without a cache.
pub struct Table {
    /// One for each kind.
    pub rows: Vec<Row>,
    cold_first_tokens: Vec<Duration>,
}

/// Asks the bundled model's first `n` questions with each kind of [`WAYS`].
pub fn evaluate(n: usize, progress: bool) -> Result<Table, Failure> {
    Setup { folder: folder(), held_out: HeldOut::read()?, ways: &WAYS, is_linked: false }
        .evaluate(n, progress)
}

/// What is asked.
struct Setup {
    folder: PathBuf,
    held_out: HeldOut,
    ways: &'static [(Reuse, Repair)],
    /// Whether documents refer to earlier ones, so that a question fixes their order.
    is_linked: bool,
}

impl Setup {
    fn of(folder: &Path) -> Result<Self, Failure> {
        let held_out = HeldOut::of(folder)?;
        Ok(Self { folder: folder.to_owned(), held_out, ways: &LINKED_WAYS, is_linked: true })
    }

    fn evaluate(&self, n: usize, progress: bool) -> Result<Table, Failure> {
        let model = Model::open(&self.folder)?;
        let rows = self.ways.iter().map(|_| Row::default()).collect();
        let mut table = Table { rows, cold_first_tokens: Vec::new() };
        let mut engine = held_out::engine(&model, 6)?;
        for (index, triple) in self.held_out.triples.iter().take(n).enumerate() {
            ask_all(&mut engine, &model, self, triple, index, &mut table)?;
            if progress && (index + 1) % 50 == 0 {
                eprintln!("{} of {n} questions", index + 1);
            }
        }
        Ok(table)
    }
}

fn ask_all(
    engine: &mut Engine,
    model: &Model,
    setup: &Setup,
    triple: &Triple,
    seed: usize,
    table: &mut Table,
) -> Result<(), Failure> {
    let held_out = &setup.held_out;
    let answer = model.tokenizer.encode_text(&triple.answer)?;
    let other = shuffled(triple.documents.len(), seed);
    let in_file: Vec<usize> = (0..triple.documents.len()).collect();
    let (before, order) = if setup.is_linked { (other, in_file) } else { (in_file, other) };
    let mut cold = None;
    for ((reuse, repair), row) in setup.ways.iter().copied().zip(&mut table.rows) {
        // Rows computed for one kind must not serve the next.
        if repair == Repair::None {
            engine.drop_rows();
            for documents in warm_orders(reuse, &before) {
                let composition = compose(engine, held_out, triple, &documents, (reuse, repair))?;
                engine.warm(&composition)?;
            }
        }
        let composition = compose(engine, held_out, triple, &order, (reuse, repair))?;
        if reuse != Reuse::Exact {
            // The rows of a moved document may exist only as those of the first, exact one.
            engine.warm(&composition)?;
        }
        let cold = match &cold {
            Some(rows) => rows,
            None => {
                let (_, finished) = ask(engine, &composition, false)?;
                table.cold_first_tokens.push(finished.stats.first_token);
                cold.insert(engine.score(&composition.exact(), &answer, false)?)
            }
        };
        let (said, finished) = ask(engine, &composition, true)?;
        row.count(triple, &order, &said, &finished);
        let ours = engine.score(&composition, &answer, true)?;
        let drift = Verification::of(&answer, &ours, cold);
        row.divergences.push(drift.divergence);
        row.differences.push(drift.mean_difference);
    }
    Ok(())
}

/// The orders in which documents are computed beforehand: all together for exact reuse, each alone
/// for the others, which must not depend on an order.
fn warm_orders(reuse: Reuse, in_file: &[usize]) -> Vec<Vec<usize>> {
    match reuse {
        Reuse::Exact => vec![in_file.to_vec()],
        _ => in_file.iter().map(|document| vec![*document]).collect(),
    }
}

fn compose(
    engine: &mut Engine,
    held_out: &HeldOut,
    triple: &Triple,
    order: &[usize],
    (reuse, repair): (Reuse, Repair),
) -> Result<Composition, Failure> {
    let system = triple.system.as_deref().ok_or("a question without system prompt")?;
    let system = engine.chunk(Kind::System, system)?;
    let mut prompt = Prompt::new().system(&system).reuse(reuse).repair(repair);
    for index in order {
        let text = &held_out.documents[triple.documents[*index]];
        prompt = prompt.context(&engine.chunk(Kind::Context, text)?);
    }
    Ok(engine.compose(&prompt.query(&triple.question))?)
}

fn ask(
    engine: &mut Engine,
    composition: &Composition,
    use_cache: bool,
) -> Result<(String, Finished), Failure> {
    let sampling = Sampling { temperature: 0.0, max_tokens: Some(40), ..Sampling::default() };
    let request = Request { use_cache, ..Request::new(composition.clone(), sampling) };
    held_out::answer(engine, request)
}

impl Row {
    fn count(&mut self, triple: &Triple, order: &[usize], said: &str, finished: &Finished) {
        self.asked += 1;
        let is_right = said == triple.answer && finished.reason == FinishReason::Stop;
        self.right += usize::from(is_right);
        let needs = triple.kind.clone().unwrap_or_else(|| "one".to_owned());
        self.answers.push((needs, is_right));
        let pieces = &finished.report.pieces;
        let contexts = || pieces.iter().filter(|piece| piece.kind == Kind::Context);
        let most = contexts()
            .enumerate()
            .max_by(|a, b| a.1.attention.total_cmp(&b.1.attention))
            .map(|(place, _)| order[place]);
        self.found += usize::from(most == Some(triple.source));
        self.context_tokens += contexts().map(|piece| piece.tokens).sum::<usize>();
        let computed = |piece: &weft_core::chunk::PieceReport| {
            piece.tokens - piece.cached_tokens + piece.repaired_tokens
        };
        self.computed_tokens += contexts().map(computed).sum::<usize>();
        self.first_tokens.push(finished.stats.first_token);
    }

    /// Mean divergence from the plain prompt, in nats.
    pub fn divergence(&self) -> f64 {
        mean(&self.divergences)
    }

    /// The share of the context's tokens that were computed for the question.
    pub fn recomputed(&self) -> f64 {
        self.computed_tokens as f64 / self.context_tokens as f64
    }

    /// Of the questions of each kind: how many, accuracy, mean divergence.
    fn by_need(&self) -> Value {
        let mut found: BTreeMap<&str, Vec<(bool, f64)>> = BTreeMap::new();
        for ((needs, is_right), divergence) in self.answers.iter().zip(&self.divergences) {
            found.entry(needs).or_default().push((*is_right, *divergence));
        }
        let summary = |all: &[(bool, f64)]| {
            let right = all.iter().filter(|(is_right, _)| *is_right).count();
            let divergences: Vec<f64> = all.iter().map(|(_, divergence)| *divergence).collect();
            json!({"asked": all.len(), "accuracy": right as f64 / all.len() as f64,
                "kl_to_plain": mean(&divergences)})
        };
        found.iter().map(|(needs, all)| ((*needs).to_owned(), summary(all))).collect()
    }

    /// Each question's results, in the order of the file.
    fn samples(&self) -> Value {
        let times = self.first_tokens.iter().map(|time| (time.as_secs_f64() * 1e6).round() / 1e3);
        json!({
            "right": self.answers.iter().map(|(_, right)| u8::from(*right)).collect::<Vec<_>>(),
            "kl_to_plain": self.divergences,
            "first_token_ms": times.collect::<Vec<_>>(),
        })
    }

    fn json(&self) -> Value {
        json!({
            "right": self.right,
            "accuracy": self.right as f64 / self.asked as f64,
            "kl_to_plain": self.divergence(),
            "mean_abs_logprob_difference": mean(&self.differences),
            "recomputed": self.recomputed(),
            "first_token_ms_median": median_ms(&self.first_tokens),
            "answering_document_had_most_attention": self.found as f64 / self.asked as f64,
        })
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn median_ms(times: &[Duration]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

/// The numbers below `n`, in an order that depends only on the seed.
fn shuffled(n: usize, seed: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    let mut state = seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
    for i in (1..n).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    order
}

#[allow(dead_code, reason = "a test includes this file for the functions above")]
fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let n = args.next().map_or(Ok(1000), |n| n.parse())?;
    let (file, folder) = (args.next(), args.next().map(PathBuf::from));
    let setup = folder.as_deref().map(Setup::of).transpose()?;
    let (ways, table) = match &setup {
        Some(setup) => (setup.ways, setup.evaluate(n, true)?),
        None => (&WAYS[..], evaluate(n, true)?),
    };
    let rows = ways.iter().zip(&table.rows).map(|((reuse, repair), row)| {
        let mut value = row.json();
        value["reuse"] = json!(reuse.name());
        value["repair"] = json!(repair.to_string());
        if setup.is_some() {
            value["needs"] = row.by_need();
            value["samples"] = row.samples();
        }
        value
    });
    let name = folder.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
    let report = json!({
        "command": std::env::args().collect::<Vec<_>>().join(" "),
        "model": name.unwrap_or("weft-tiny".into()),
        "questions": n,
        "cold_first_token_ms_median": median_ms(&table.cold_first_tokens),
        "ways": rows.collect::<Vec<_>>(),
    });
    println!("{report:#}");
    if let Some(file) = file {
        std::fs::write(file, format!("{report:#}\n"))?;
    }
    Ok(())
}
