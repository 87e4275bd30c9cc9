//! Answers the held-out questions of the bundled model on the CPU device, and counts right answers:
//!
//!     cargo run --release -p weft-cpu --example eval_tiny -- \
//!         [TRIPLES] [RESULT.json] [--model FOLDER|FILE.gguf] [--quantize int8|int4]
//!
//! The model is the bundled one, or another form of it with the same tokenizer.
//! An answer counts if its whole text is right and it ended by itself. Sampling is greedy;
//! documents are in the file's order and tokenised separately, as in `weft ask`.

#[path = "held_out/mod.rs"]
mod held_out;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use held_out::{HeldOut, Triple, folder};
use serde_json::json;
use weft_core::device::MAX_LANES;
use weft_core::engine::{Completion, FinishReason, Request};
use weft_core::model::Model;
use weft_core::prompt::{Conversation, Message};
use weft_core::sampling::Sampling;
use weft_core::weights::{Coded, Quantised};

/// Right and wrong answers.
#[derive(Default)]
pub struct Result {
    /// Right answers and all answers, by number of documents and system prompt.
    pub counts: BTreeMap<(usize, String), (usize, usize)>,
    /// Question, expected answer, actual answer.
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

/// The bundled model or another form of it, with its matrices quantised if that is asked for.
pub fn open(path: &Path, form: Option<Coded>) -> std::result::Result<Model, Box<dyn Error>> {
    let bundled = Model::open(&folder())?;
    let mut model = Model::open(path)?;
    model.template = bundled.template;
    model.stop_ids = bundled.stop_ids;
    if let Some(form) = form {
        model.weights = Box::new(Quantised::new(model.weights, form));
    }
    Ok(model)
}

/// Answers the first `n` triples, as many at a time as there are lanes.
pub fn evaluate(model: &Model, n: usize) -> std::result::Result<Result, Box<dyn Error>> {
    let mut engine = held_out::engine(model, MAX_LANES)?;
    let HeldOut { documents, triples } = HeldOut::read()?;
    let mut result = Result::default();
    for some in triples[..n.min(triples.len())].chunks(MAX_LANES) {
        let requests = some.iter().map(|triple| request(model, triple, &documents));
        let requests = requests.collect::<std::result::Result<_, _>>()?;
        for (triple, completion) in some.iter().zip(engine.generate_batch(requests)?) {
            count(triple, &completion, &mut result);
        }
    }
    Ok(result)
}

fn request(
    model: &Model,
    triple: &Triple,
    documents: &[String],
) -> std::result::Result<Request, Box<dyn Error>> {
    let Triple { system, documents: indices, question, .. } = triple;
    let pieces = indices.iter().map(|index| format!("{}\n\n", documents[*index]));
    let pieces = pieces.chain([question.clone()]).collect();
    let messages = vec![Message::system(system), Message::user_pieces(pieces)];
    let template = model.template.as_ref().ok_or("no chat template")?;
    let rendered = template.render(&Conversation::new(messages, None))?;
    let sampling = Sampling { temperature: 0.0, max_tokens: Some(40), ..Sampling::default() };
    Ok(Request::new(rendered.tokens(&model.tokenizer)?, sampling))
}

fn count(triple: &Triple, completion: &Completion, result: &mut Result) {
    let Triple { system, documents, question, answer, .. } = triple;
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
    let (mut words, mut path, mut form) = (Vec::new(), folder(), None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--model" => path = args.next().ok_or("--model needs a folder or a file")?.into(),
            "--quantize" => {
                form = Some(match args.next().as_deref() {
                    Some("int8") => Coded::int(8),
                    Some("int4") => Coded::int(4),
                    other => return Err(format!("--quantize {other:?}: give int8 or int4").into()),
                });
            }
            _ => words.push(arg),
        }
    }
    let mut words = words.into_iter();
    let n = words.next().map_or(Ok(usize::MAX), |n| n.parse())?;
    let result = evaluate(&open(&path, form)?, n)?;
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
    if let Some(file) = words.next() {
        std::fs::write(file, format!("{report:#}\n"))?;
    }
    Ok(())
}
