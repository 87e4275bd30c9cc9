//! Answers the held-out questions of the bundled model and its held-out requests for whole
//! documents on the CPU device, and counts right answers:
//!
//!     cargo run --release -p weft-cpu --example eval_tiny -- \
//!         [TRIPLES] [RESULT.json] [--model FOLDER|FILE.gguf] [--quantize int8|int4]
//!
//! The model is the bundled one, or another form of it with the same tokenizer. TRIPLES limits both
//! sets. An answer counts if its whole text is right and it ended by itself. Sampling is greedy;
//! documents are in the file's order and tokenised separately, as in `weft ask`.

mod held_out;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Display;
use std::path::Path;

use held_out::{HeldOut, Triple, folder};
use serde_json::{Value, json};
use weft_core::device::MAX_LANES;
use weft_core::engine::{Completion, FinishReason, Request};
use weft_core::model::Model;
use weft_core::prompt::{Conversation, Message};
use weft_core::sampling::Sampling;
use weft_core::weights::{Coded, Quantised};

/// What an answer is counted by: number of documents, system prompt, and kind of request.
type Group = (usize, String, Option<String>);

/// Tokens of the longest answer and a few more: a rewritten document whose new name is longer.
const LONGEST_ANSWER: usize = 256;

/// Right and wrong answers.
#[derive(Default)]
pub struct Result {
    /// Right answers and all answers.
    pub counts: BTreeMap<Group, (usize, usize)>,
    /// Question, expected answer, actual answer.
    pub mistakes: Vec<[String; 3]>,
}

impl Result {
    /// The share of right answers.
    pub fn accuracy(&self) -> f64 {
        let (right, all) = self.sum(|_| true);
        right as f64 / all as f64
    }

    fn sum(&self, which: impl Fn(&Group) -> bool) -> (usize, usize) {
        let chosen = self.counts.iter().filter(|(key, _)| which(key)).map(|(_, count)| count);
        chosen.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
    }

    /// The share of right answers of each part of a group.
    fn shares<K: Ord + Display>(&self, part: impl Fn(&Group) -> K) -> Value {
        let parts: BTreeSet<K> = self.counts.keys().map(&part).collect();
        let share = |name: &K| {
            let (right, all) = self.sum(|key| part(key) == *name);
            right as f64 / all as f64
        };
        parts.iter().map(|name| (name.to_string(), json!(share(name)))).collect()
    }

    fn report(&self) -> Value {
        let mut report = json!({
            "triples": self.sum(|_| true).1,
            "accuracy": self.accuracy(),
            "by_form": self.shares(|key| key.1.clone()),
            "by_documents": self.shares(|key| key.0),
            "mistakes": self.mistakes,
        });
        if self.counts.keys().any(|key| key.2.is_some()) {
            report["by_kind"] = self.shares(|key| key.2.clone().unwrap_or_default());
        }
        report
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

/// Answers the first `n` questions.
pub fn evaluate(model: &Model, n: usize) -> std::result::Result<Result, Box<dyn Error>> {
    let held_out = HeldOut::read()?;
    answer(model, &held_out.documents, &held_out.triples[..n.min(held_out.triples.len())])
}

/// Answers the first `n` requests for whole documents.
pub fn evaluate_copies(model: &Model, n: usize) -> std::result::Result<Result, Box<dyn Error>> {
    let held_out = HeldOut::read()?;
    answer(model, &held_out.documents, &held_out.copies[..n.min(held_out.copies.len())])
}

/// Answers triples, as many at a time as there are lanes.
fn answer(
    model: &Model,
    documents: &[String],
    triples: &[Triple],
) -> std::result::Result<Result, Box<dyn Error>> {
    let mut engine = held_out::engine(model, MAX_LANES)?;
    let mut result = Result::default();
    for some in triples.chunks(MAX_LANES) {
        let requests = some.iter().map(|triple| request(model, triple, documents));
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
    let Triple { system, documents: indices, earlier, question, .. } = triple;
    let questions = earlier.iter().map(|turn| &turn[0]).chain([question]);
    let answers = earlier.iter().map(|turn| Some(&turn[1])).chain([None]);
    let mut pieces: Vec<String> =
        indices.iter().map(|index| format!("{}\n\n", documents[*index])).collect();
    let mut messages: Vec<Message> = system.iter().map(|text| Message::system(text)).collect();
    for (question, answer) in questions.zip(answers) {
        pieces.push(question.clone());
        messages.push(Message::user_pieces(std::mem::take(&mut pieces)));
        messages.extend(answer.map(|text| Message::assistant(text)));
    }
    let template = model.template.as_ref().ok_or("no chat template")?;
    let rendered = template.render(&Conversation::new(messages, None))?;
    let sampling =
        Sampling { temperature: 0.0, max_tokens: Some(LONGEST_ANSWER), ..Sampling::default() };
    Ok(Request::new(rendered.tokens(&model.tokenizer)?, sampling))
}

fn count(triple: &Triple, completion: &Completion, result: &mut Result) {
    let Triple { kind, system, documents, question, answer, .. } = triple;
    let ended = completion.ending.as_ref().is_ok_and(|end| end.reason == FinishReason::Stop);
    let is_right = ended && completion.text() == *answer;
    let form = system.clone().unwrap_or_else(|| "no system prompt".into());
    let entry = result.counts.entry((documents.len(), form, kind.clone())).or_default();
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
    let model = open(&path, form)?;
    let mut report = evaluate(&model, n)?.report();
    report["copies"] = evaluate_copies(&model, n)?.report();
    println!("{report:#}");
    if let Some(file) = words.next() {
        std::fs::write(file, format!("{report:#}\n"))?;
    }
    Ok(())
}
