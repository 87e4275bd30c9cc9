//! The held-out questions of the bundled model, its held-out requests for whole documents, and an
//! engine to ask them.
#![allow(dead_code, reason = "each program uses a part")]

use std::error::Error;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use weft_core::device::{Limits, MAX_LANES};
use weft_core::engine::{Engine, Finished, Request};
use weft_core::kv::pages_for;
use weft_core::model::Model;
use weft_cpu::{CpuDevice, Options};

/// The longest context of the held-out set, answer included.
pub const CONTEXT: usize = 2048;

/// One question: its documents are indices into the pool, `source` is the one that answers it.
#[derive(Deserialize)]
pub struct Triple {
    /// `quote` or `rewrite` for a request for a whole document; for a question of weft-linked, what
    /// it needs: `one` document, or two, the second `named` or the one `before`.
    pub kind: Option<String>,
    pub system: Option<String>,
    pub documents: Vec<usize>,
    /// Question and answer of each turn before.
    #[serde(default)]
    pub earlier: Vec<[String; 2]>,
    pub question: String,
    pub answer: String,
    pub source: usize,
}

/// A line of the held-out file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Triple(Triple),
    Document { text: String },
}

/// All documents, questions about them, and requests for a whole one.
#[derive(Default)]
pub struct HeldOut {
    pub documents: Vec<String>,
    pub triples: Vec<Triple>,
    pub copies: Vec<Triple>,
}

/// The bundled model's folder.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny")
}

impl HeldOut {
    /// Those of the bundled model.
    pub fn read() -> Result<Self, Box<dyn Error>> {
        let mut all = Self::default();
        for file in ["heldout.jsonl", "copies.jsonl"] {
            all.add(&folder().join(file))?;
        }
        Ok(all)
    }

    /// The questions of another model's folder.
    pub fn of(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let mut all = Self::default();
        all.add(&folder.join("heldout.jsonl"))?;
        Ok(all)
    }

    fn add(&mut self, file: &Path) -> Result<(), Box<dyn Error>> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        for line in text.lines() {
            match serde_json::from_str(line)? {
                Line::Document { text } => self.documents.push(text),
                Line::Triple(triple) => match triple.kind.as_deref() {
                    Some("quote" | "rewrite") => self.copies.push(triple),
                    _ => self.triples.push(triple),
                },
            }
        }
        Ok(())
    }
}

/// The bundled model on the CPU device, with pages for `contexts` whole contexts.
pub fn engine(model: &Model, contexts: usize) -> Result<Engine, Box<dyn Error>> {
    let limits = Limits {
        step_tokens: 256,
        step_outputs: MAX_LANES,
        positions: CONTEXT,
        // Every piece may leave its last page half empty.
        pages: contexts * (pages_for(CONTEXT) + 16),
    };
    let device = CpuDevice::new(&model.config, &*model.weights, Options::new(limits)?)?;
    Ok(Engine::new(model, Box::new(device)))
}

/// The text of an answer, and how it ended.
pub fn answer(engine: &mut Engine, request: Request) -> Result<(String, Finished), Box<dyn Error>> {
    let mut generation = engine.generate(request)?;
    let mut text = String::new();
    for token in generation.by_ref() {
        text.push_str(&token?.text);
    }
    Ok((text, generation.finished().ok_or("the answer has no end")?))
}
