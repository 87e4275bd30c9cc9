//! Answers the held-out questions of the bundled model on the CPU device and counts:
//!
//!     cargo run --release --example eval_tiny -- [TRIPLES] [RESULT.json]
//!
//! An answer counts if all its text is right and it ended by itself. Greedy, the documents in the
//! order of the file, tokenised apart, as `weft ask` does it.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;
use weft::device::{Limits, MAX_LANES};
use weft::engine::{Completion, Engine, FinishReason, Request};
use weft::kv::pages_for;
use weft::model::Model;
use weft::prompt::{Conversation, Message};
use weft::sampling::Sampling;
use weft_cpu::{CpuDevice, Options};

/// The longest context of the held-out set, answer included.
const CONTEXT: usize = 2048;

/// A line of the held-out file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Triple { system: String, documents: Vec<usize>, question: String, answer: String },
    Document { text: String },
}

/// What is right and what is not.
#[derive(Default)]
pub struct Result {
    /// Right and all, by number of documents and system prompt.
    pub counts: BTreeMap<(usize, String), (usize, usize)>,
    /// Question, answer, what was said instead.
    pub mistakes: Vec<[String; 3]>,
}

impl Result {
    /// The share of right answers.
    pub fn accuracy(&self) -> f64 {
        let (right, all) = self.sum(|_| true);
        right as f64 / all as f64
    }

    fn sum(&self, which: impl Fn(&(usize, String)) -> bool) -> (usize, usize) {
        let chosen = self.counts.iter().filter(|(key, _)| which(key)).map(|(_, count)| count);
        chosen.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
    }
}

/// The bundled model's folder.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny")
}

/// Answers the first `n` triples, as many at a time as there are lanes.
pub fn evaluate(n: usize) -> std::result::Result<Result, Box<dyn Error>> {
    let model = Model::open(&folder())?;
    let mut engine = engine(&model)?;
    let mut documents = Vec::new();
    let mut triples = Vec::new();
    for line in std::fs::read_to_string(folder().join("heldout.jsonl"))?.lines() {
        match serde_json::from_str(line)? {
            Line::Document { text } => documents.push(text),
            triple @ Line::Triple { .. } => triples.push(triple),
        }
    }
    let mut result = Result::default();
    for some in triples[..n.min(triples.len())].chunks(MAX_LANES) {
        let requests = some.iter().map(|triple| request(&model, triple, &documents));
        let requests = requests.collect::<std::result::Result<_, _>>()?;
        for (triple, completion) in some.iter().zip(engine.generate_batch(requests)?) {
            count(triple, &completion, &mut result);
        }
    }
    Ok(result)
}

fn engine(model: &Model) -> std::result::Result<Engine, Box<dyn Error>> {
    let limits = Limits {
        step_tokens: 256,
        step_outputs: MAX_LANES,
        positions: CONTEXT,
        pages: MAX_LANES * pages_for(CONTEXT),
    };
    let device = CpuDevice::new(&model.config, &*model.weights, Options::new(limits))?;
    Ok(Engine::new(model, Box::new(device)))
}

fn request(
    model: &Model,
    triple: &Line,
    documents: &[String],
) -> std::result::Result<Request, Box<dyn Error>> {
    let Line::Triple { system, documents: indices, question, .. } = triple else {
        return Err("a document where a triple should be".into());
    };
    let pieces = indices.iter().map(|index| format!("{}\n\n", documents[*index]));
    let pieces = pieces.chain([question.clone()]).collect();
    let messages = vec![Message::system(system), Message::user_pieces(pieces)];
    let template = model.template.as_ref().ok_or("no chat template")?;
    let rendered = template.render(&Conversation::new(messages, None))?;
    let sampling = Sampling { temperature: 0.0, max_tokens: Some(40), ..Sampling::default() };
    Ok(Request::new(rendered.tokens(&model.tokenizer)?, sampling))
}

fn count(triple: &Line, completion: &Completion, result: &mut Result) {
    let Line::Triple { system, documents, question, answer } = triple else { return };
    let ended = completion.ending.as_ref().is_ok_and(|end| end.reason == FinishReason::Stop);
    let is_right = ended && completion.text() == *answer;
    let entry = result.counts.entry((documents.len(), system.clone())).or_default();
    *entry = (entry.0 + usize::from(is_right), entry.1 + 1);
    if !is_right {
        result.mistakes.push([question.clone(), answer.clone(), completion.text()]);
    }
}

#[allow(dead_code, reason = "a test includes this file for the functions above")]
fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let n = args.next().map_or(Ok(usize::MAX), |n| n.parse())?;
    let result = evaluate(n)?;
    let share = |(right, all): (usize, usize)| right as f64 / all as f64;
    let forms: std::collections::BTreeSet<_> = result.counts.keys().map(|key| &key.1).collect();
    let sizes: std::collections::BTreeSet<_> = result.counts.keys().map(|key| key.0).collect();
    let report = json!({
        "triples": result.sum(|_| true).1,
        "accuracy": result.accuracy(),
        "by_form": forms.iter().map(|form| (form.to_string(), share(result.sum(|k| k.1 == **form)).into())).collect::<serde_json::Map<_, _>>(),
        "by_documents": sizes.iter().map(|size| (size.to_string(), share(result.sum(|k| k.0 == *size)).into())).collect::<serde_json::Map<_, _>>(),
        "mistakes": result.mistakes,
    });
    println!("{report:#}");
    if let Some(file) = args.next() {
        std::fs::write(file, format!("{report:#}\n"))?;
    }
    Ok(())
}
