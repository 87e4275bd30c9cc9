//! `weft` without a command: a demo with documents, questions and answers, offline.

use std::process::ExitCode;

use weft_core::chunk::{Asked, Source, Turn};
use weft_server::resident::protocol::Question;

use crate::answer::{Style, print};
use crate::args::{CacheArgs, ModelArgs};
use crate::error::CliError;
use crate::interrupt;
use crate::session::Session;
use crate::terminal;

const DOCUMENTS: [&str; 4] = [
    include_str!("../../../../assets/demo/kehujax.txt"),
    include_str!("../../../../assets/demo/grohosu.txt"),
    include_str!("../../../../assets/demo/nusonix.txt"),
    include_str!("../../../../assets/demo/krogaste.txt"),
];

/// System prompt and question.
const QUESTIONS: [(&str, &str); 3] = [
    ("Answer in one word.", "What is the name of the river of Nusonix?"),
    ("Answer in a full sentence.", "Who gives the orders on board the Krogaste?"),
    ("Answer in capitals.", "Which animal does Kehujax keep?"),
];

const NEXT: &str = "
Go on with:
  weft ask --context FILE --system \"Answer in one word.\" \"your question\"   your own documents
  weft run Qwen/Qwen3-0.6B \"Why is the sky blue?\"                         a model of the hub
  weft --help                                                             all commands
";

pub(crate) fn run() -> Result<ExitCode, CliError> {
    interrupt::install();
    // A demo must not write files.
    let in_memory = CacheArgs { disk_cache: Some(0), ..CacheArgs::default() };
    let model = ModelArgs { no_resident: true, ..ModelArgs::default() };
    let mut session = Session::open(&model, &in_memory)?;
    for document in DOCUMENTS {
        print(&format!("{}\n{}\n", terminal::dim_out("document"), document))?;
    }
    for (system, question) in QUESTIONS {
        print(&format!("{} {system}\n", terminal::dim_out("system  ")))?;
        print(&format!("{} {question}\n", terminal::dim_out("question")))?;
        print(&format!("{} ", terminal::dim_out("answer  ")))?;
        let question = Question {
            asked: conversation(system, question),
            thinking: None,
            sampling: Default::default(),
            use_cache: true,
        };
        session.answer(&question, Style { stream: true, quiet: false })?;
        print("\n")?;
    }
    print(NEXT)?;
    Ok(ExitCode::SUCCESS)
}

/// One user turn: the documents, then the question.
fn conversation(system: &str, question: &str) -> Asked {
    let document = |text: &str| Source::Text { name: None, text: text.to_owned() };
    let documents = DOCUMENTS.into_iter().map(document).collect();
    let turn = Turn { documents, text: question.to_owned(), answer: None };
    Asked::Chat { system: Some(system.to_owned()), turns: vec![turn] }
}
