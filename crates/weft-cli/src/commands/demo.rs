//! `weft` without a command: a demo that asks twice about the same documents and has one of them
//! quoted, offline.

use std::process::ExitCode;
use std::time::Duration;

use weft_core::chunk::{Asked, Source, Turn};
use weft_core::engine::{DraftCounts, Stats};
use weft_server::resident::protocol::Question;

use crate::answer::{Style, print};
use crate::args::{CacheArgs, ModelArgs};
use crate::error::{CliError, INTERRUPTED};
use crate::interrupt;
use crate::session::Session;
use crate::size;
use crate::terminal;

const DOCUMENTS: [&str; 4] = [
    include_str!("../../../../assets/demo/kehujax.txt"),
    include_str!("../../../../assets/demo/grohosu.txt"),
    include_str!("../../../../assets/demo/nusonix.txt"),
    include_str!("../../../../assets/demo/krogaste.txt"),
];

/// All answers have the same form, so the prompts begin with the same tokens.
const SYSTEM: &str = "Answer in a full sentence.";

const QUESTIONS: [&str; 2] =
    ["Who gives the orders on board the Krogaste?", "What is the name of the river of Nusonix?"];

/// The answer is a document word for word, so most of its tokens can be drafted.
const QUOTE: &str = "Quote the document about Nusonix.";

const NEXT: &str = "
Go on with:
  weft ask notes.txt \"your question\"               your own documents; ask twice
  weft run qwen3:0.6b \"Why is the sky blue?\"       a model of the hub, downloaded once
  weft chat qwen3:0.6b --context notes.txt          a conversation
  weft serve --open                                 a page and an API on this machine
  weft help                                         all commands
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
    let mut stats = Vec::new();
    for question in QUESTIONS.into_iter().chain([QUOTE]) {
        match ask(&mut session, question)? {
            Some(figures) => stats.push(figures),
            None => return Ok(ExitCode::from(INTERRUPTED)),
        }
    }
    print(&sooner(stats[0].first_token, stats[1].first_token))?;
    print(&quoted(&stats[2]))?;
    print(NEXT)?;
    Ok(ExitCode::SUCCESS)
}

/// Asks and prints the answer; `None` if the user interrupted it.
fn ask(session: &mut Session, question: &str) -> Result<Option<Stats>, CliError> {
    print(&format!("{} {question}\n", terminal::dim_out("question")))?;
    print(&format!("{} ", terminal::dim_out("answer  ")))?;
    let question = Question {
        asked: conversation(question),
        thinking: None,
        sampling: Default::default(),
        use_cache: true,
        speculate: None,
    };
    let answer = session.answer(&question, Style { stream: true, quiet: false })?;
    if answer.was_interrupted() {
        return Ok(None);
    }
    print("\n")?;
    Ok(Some(answer.finished.stats))
}

/// How quickly the document was quoted, and how much of it was drafted from the documents.
fn quoted(stats: &Stats) -> String {
    let speed = stats.tokens_per_second().unwrap_or_default();
    let drafts = match stats.speculation.total() {
        DraftCounts { accepted: 0, .. } => String::new(),
        DraftCounts { accepted, .. } => format!(
            "; {accepted} of them were drafted from the documents and\n\
             checked several at a time. The answer is the same with `--speculate off`"
        ),
    };
    format!("quote: {} tokens, {speed:.0} tok/s{drafts}.\n", stats.generated_tokens)
}

/// Compares the times to the first token of both questions.
fn sooner(first: Duration, second: Duration) -> String {
    let times = first.as_secs_f64() / second.as_secs_f64().max(1e-9);
    let times = if times < 10.0 { format!("{times:.1}") } else { format!("{times:.0}") };
    format!(
        "second question: {times} × sooner ({} instead of {} to the first token), because the\n\
         documents were read once and kept. `weft ask` keeps them on disk, for later runs too.\n",
        size::time(second),
        size::time(first)
    )
}

/// One user turn: the documents, then the question.
fn conversation(question: &str) -> Asked {
    let document = |text: &str| Source::Text { name: None, text: text.to_owned() };
    let documents = DOCUMENTS.into_iter().map(document).collect();
    let turn = Turn { documents, text: question.to_owned(), answer: None };
    Asked::Chat { system: Some(SYSTEM.to_owned()), turns: vec![turn] }
}

#[cfg(test)]
mod tests {
    use weft_core::engine::Speculation;

    use super::*;

    #[test]
    fn the_ratio_is_that_of_the_times() {
        let text = sooner(Duration::from_millis(1200), Duration::from_millis(100));
        assert!(
            text.starts_with("second question: 12 × sooner (100 ms instead of 1.2 s"),
            "{text}"
        );
        let text = sooner(Duration::from_millis(300), Duration::from_millis(200));
        assert!(text.starts_with("second question: 1.5 × sooner"), "{text}");
    }

    #[test]
    fn the_quote_has_its_speed() {
        let stats = Stats {
            generated_tokens: 101,
            first_token: Duration::from_millis(50),
            total: Duration::from_millis(550),
            ..Stats::default()
        };
        assert_eq!(quoted(&stats), "quote: 101 tokens, 200 tok/s.\n");
        let context = DraftCounts { drafted: 98, accepted: 84 };
        let speculation = Speculation { context, ..Speculation::default() };
        let text = quoted(&Stats { speculation, ..stats });
        assert!(text.contains("; 84 of them were drafted from the documents and\n"), "{text}");
    }
}
