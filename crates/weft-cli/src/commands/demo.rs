//! `weft` without a command: a demo with documents, questions and answers, offline.

use std::process::ExitCode;

use weft_core::prompt::{Conversation, Message};

use super::reply::{Reply, reply};
use crate::answer::{Style, print};
use crate::args::{CacheArgs, ModelArgs, SamplingArgs};
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
    // A demo must not write files.
    let in_memory = CacheArgs { disk_cache: Some(0), ..CacheArgs::default() };
    let mut loaded = load::load(&ModelArgs::default(), &in_memory)?;
    for document in DOCUMENTS {
        print(&format!("{}\n{}\n", terminal::dim_out("document"), document))?;
    }
    for (system, question) in QUESTIONS {
        print(&format!("{} {system}\n", terminal::dim_out("system  ")))?;
        print(&format!("{} {question}\n", terminal::dim_out("question")))?;
        print(&format!("{} ", terminal::dim_out("answer  ")))?;
        let prompt = loaded.engine.compose_chat(&conversation(system, question))?;
        let how = Reply {
            thinking: None,
            sampling: &SamplingArgs::default(),
            style: Style { stream: true, quiet: false },
            use_cache: true,
        };
        reply(&mut loaded, prompt, &how)?;
        print("\n")?;
    }
    print(NEXT)?;
    Ok(ExitCode::SUCCESS)
}

/// One user turn: each document and a blank line, then the question.
fn conversation(system: &str, question: &str) -> Conversation {
    let documents = DOCUMENTS.map(|text| format!("{}\n\n", text.trim_end()));
    let pieces = documents.into_iter().chain([question.to_owned()]).collect();
    Conversation::new(vec![Message::system(system), Message::user_pieces(pieces)], None)
}
