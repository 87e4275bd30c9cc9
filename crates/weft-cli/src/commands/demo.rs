//! `weft` alone: documents, questions, answers, on the bundled model, offline.

use std::process::ExitCode;

use super::ask::Question;
use super::reply::reply;
use crate::answer::{Style, print};
use crate::args::{ModelArgs, SamplingArgs};
use crate::error::CliError;
use crate::interrupt;
use crate::load;
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
    let mut loaded = load::load(&ModelArgs::default())?;
    for document in DOCUMENTS {
        print(&format!("{}\n{}\n", terminal::dim_out("document"), document))?;
    }
    for (system, question) in QUESTIONS {
        print(&format!("{} {system}\n", terminal::dim_out("system  ")))?;
        print(&format!("{} {question}\n", terminal::dim_out("question")))?;
        print(&format!("{} ", terminal::dim_out("answer  ")))?;
        let question = Question {
            system: Some(system),
            documents: DOCUMENTS.map(str::to_owned).to_vec(),
            question: question.to_owned(),
        };
        let style = Style { stream: true, quiet: false };
        let conversation = question.conversation(None);
        reply(&mut loaded, &conversation, &SamplingArgs::default(), style)?;
        print("\n")?;
    }
    print(NEXT)?;
    Ok(ExitCode::SUCCESS)
}
