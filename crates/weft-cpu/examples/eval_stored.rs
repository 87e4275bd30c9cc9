//! How far stored rows in 8 bits move answers, on the bundled model's held-out questions:
//!
//!     cargo run -p weft-cpu --example eval_stored -- QUESTIONS COMMIT MACHINE RESULT.json
//!
//! The documents of each question are computed one by one, then asked about in another order. The
//! right answer's tokens are run three times: after the plain prompt, after the documents' rows as
//! they were computed, and after the same rows from files in 8 bits, for each kind of approximate
//! reuse and several sizes of the groups that share a scale.

mod held_out;

use std::error::Error;

use held_out::{HeldOut, Triple, folder};
use serde_json::{Value, json};
use weft_core::chunk::{Composition, Kind, Prompt, Reuse, Tier};
use weft_core::device::{Device, Limits, MAX_LANES};
use weft_core::engine::{Engine, FinishReason, Request, Tiers, Verification};
use weft_core::kv::pages_for;
use weft_core::model::Model;
use weft_core::sampling::Sampling;
use weft_core::store::{RowForm, Store};
use weft_cpu::{CpuDevice, Options};

type Failure = Box<dyn Error>;

/// Approximate reuse: `exact` never reads coarse rows.
const REUSES: [Reuse; 2] = [Reuse::Anchored, Reuse::Isolated];

/// The disk space of an engine.
const DISK_BYTES: u64 = 1 << 30;

/// An engine that stores rows in one form, and what it was asked.
struct Way {
    reuse: Reuse,
    group: usize,
    engine: Engine,
    /// Removed with the engine.
    _folder: tempfile::TempDir,
    /// The share of bytes that 8 bits take of full rows.
    share: f64,
    asked: usize,
    right: usize,
    /// Answers that differ from those with full rows.
    other_answers: usize,
    /// Tokens of right answers, and those whose most likely token is another than with full rows.
    tokens: usize,
    other_tokens: usize,
    coarse_tokens: usize,
    to_full: Vec<f64>,
    to_plain: Vec<f64>,
    full_to_plain: Vec<f64>,
    largest: f64,
}

impl Way {
    fn new(model: &Model, reuse: Reuse, group: usize) -> Result<Self, Failure> {
        let limits = Limits {
            step_tokens: 256,
            step_outputs: MAX_LANES,
            positions: held_out::CONTEXT,
            // Every piece may leave its last page half empty.
            pages: 3 * (pages_for(held_out::CONTEXT) + 16),
        };
        let device = CpuDevice::new(&model.config, &*model.weights, Options::new(limits)?)?;
        let (width, dtype) = (model.config.kv_width(), device.dtype());
        let form = RowForm::Int8 { group };
        let bytes = |form: RowForm| form.row_bytes(width, dtype).ok_or("a group of this size");
        let share = bytes(form)? as f64 / bytes(RowForm::Full)? as f64;
        let folder = tempfile::tempdir()?;
        let store = Some(Store::open(folder.path(), DISK_BYTES)?);
        let tiers = Tiers { store, stored_rows: form, ..Tiers::default() };
        let mut engine = Engine::with_tiers(model, Box::new(device), tiers);
        engine.always_fetch(true);
        Ok(Self {
            reuse,
            group,
            engine,
            _folder: folder,
            share,
            asked: 0,
            right: 0,
            other_answers: 0,
            tokens: 0,
            other_tokens: 0,
            coarse_tokens: 0,
            to_full: Vec::new(),
            to_plain: Vec::new(),
            full_to_plain: Vec::new(),
            largest: 0.0,
        })
    }

    fn compose(
        &mut self,
        held_out: &HeldOut,
        triple: &Triple,
        order: &[usize],
    ) -> Result<Composition, Failure> {
        let system = triple.system.as_deref().ok_or("a question without system prompt")?;
        let system = self.engine.chunk(Kind::System, system)?;
        let mut prompt = Prompt::new().system(&system).reuse(self.reuse);
        for index in order {
            let text = &held_out.documents[triple.documents[*index]];
            prompt = prompt.context(&self.engine.chunk(Kind::Context, text)?);
        }
        Ok(self.engine.compose(&prompt.query(&triple.question))?)
    }

    /// Asks one question. `plain` are the logits of its answer after the plain prompt.
    fn ask(
        &mut self,
        held_out: &HeldOut,
        triple: &Triple,
        answer: &[u32],
        plain: &mut Option<Vec<Vec<f32>>>,
    ) -> Result<(), Failure> {
        self.engine.drop_rows();
        // From the last to the first, so that documents move.
        let order: Vec<usize> = (0..triple.documents.len()).rev().collect();
        for document in 0..triple.documents.len() {
            let alone = self.compose(held_out, triple, &[document])?;
            self.engine.warm(&alone)?;
        }
        let prompt = self.compose(held_out, triple, &order)?;
        self.engine.warm(&prompt)?;
        if plain.is_none() {
            *plain = Some(self.engine.score(&prompt.exact(), answer, false)?);
        }
        let plain = plain.as_ref().ok_or("it was just computed")?;
        let full = self.engine.score(&prompt, answer, true)?;
        let (said_full, reported) = self.answer(&prompt)?;
        if reported > 0 {
            return Err("rows that were never stored were reported as coarse".into());
        }
        self.engine.demote(Tier::Disk);
        let coarse = self.engine.score(&prompt, answer, true)?;
        let ((said, is_over), coarse_tokens) = self.answer(&prompt)?;
        self.asked += 1;
        self.coarse_tokens += coarse_tokens;
        self.right += usize::from(said == triple.answer && is_over);
        self.other_answers += usize::from((said, is_over) != said_full);
        let drift = Verification::of(answer, &coarse, &full);
        self.tokens += drift.tokens;
        self.other_tokens += drift.differing;
        self.largest = self.largest.max(drift.max_difference);
        self.to_full.push(drift.divergence);
        self.to_plain.push(Verification::of(answer, &coarse, plain).divergence);
        self.full_to_plain.push(Verification::of(answer, &full, plain).divergence);
        Ok(())
    }

    /// An answer, whether it ended by itself, and the tokens whose rows were coarse.
    fn answer(&mut self, prompt: &Composition) -> Result<((String, bool), usize), Failure> {
        let sampling = Sampling { temperature: 0.0, max_tokens: Some(40), ..Sampling::default() };
        let request = Request::new(prompt.clone(), sampling);
        let (said, finished) = held_out::answer(&mut self.engine, request)?;
        let is_over = finished.reason == FinishReason::Stop;
        Ok(((said, is_over), finished.report.coarse_tokens()))
    }

    fn json(&self) -> Value {
        json!({
            "reuse": self.reuse.name(),
            "group": self.group,
            "bytes_of_full": self.share,
            "asked": self.asked,
            "right": self.right,
            "accuracy": self.right as f64 / self.asked as f64,
            "other_answers": self.other_answers,
            "tokens": self.tokens,
            "other_tokens": self.other_tokens,
            "coarse_tokens": self.coarse_tokens,
            "kl_to_full_rows": mean(&self.to_full),
            "kl_to_plain": mean(&self.to_plain),
            "full_rows_kl_to_plain": mean(&self.full_to_plain),
            "max_abs_logprob_difference": self.largest,
            "samples_kl_to_full_rows": self.to_full,
        })
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [n, commit, machine, file] = &args[..] else {
        return Err("give QUESTIONS COMMIT MACHINE RESULT.json".into());
    };
    let n: usize = n.parse()?;
    let model = Model::open(&folder())?;
    let held_out = HeldOut::read()?;
    let (head, row) = (model.config.head_dim, model.config.kv_width());
    let mut ways = Vec::new();
    for reuse in REUSES {
        for group in [row, head, head / 2, head / 4] {
            ways.push(Way::new(&model, reuse, group)?);
        }
    }
    for (index, triple) in held_out.triples.iter().take(n).enumerate() {
        let answer = model.tokenizer.encode_text(&triple.answer)?;
        let mut plain = None;
        for way in &mut ways {
            way.ask(&held_out, triple, &answer, &mut plain)?;
        }
        if (index + 1) % 10 == 0 {
            eprintln!("{} of {n} questions", index + 1);
        }
    }
    let report = json!({
        "command": format!(
            "cargo run -p weft-cpu --example eval_stored -- {n} {commit} MACHINE RESULT.json"
        ),
        "commit": commit,
        "machine": machine,
        "model": "weft-tiny",
        "questions": n,
        "head_dim": head,
        "ways": ways.iter().map(Way::json).collect::<Vec<_>>(),
    });
    println!("{report:#}");
    std::fs::write(file, format!("{report:#}\n"))?;
    Ok(())
}
