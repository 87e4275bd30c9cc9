//! Tests of the front door with the bundled model: ask, stream, chat, and the disk cache.
#![cfg(feature = "bundled")]

use std::sync::{Arc, Mutex};

use weft::weft_core::chunk::{ChunkId, Kind, Tier};
use weft::weft_core::model::Model;
use weft::weft_core::tokenizer::Tokenizer;
use weft::weft_core::weights::Coded;
use weft::{
    Answer, DeviceChoice, Document, Error, Event, FinishReason, Llm, Options, Progress, Question,
    Repair, Reuse, Speculate,
};

const TOWN: &str = "Piranul has 49 bridges. The river that flows through Piranul is the Gukatror. \
                    On the flag of Piranul there is a cat. Piranul was founded in 1535.";
const SHIP: &str =
    "The Papokro is commanded by Trihudre. The home port of the Papokro is Presuvet.";

fn llm() -> Llm {
    let options = Options::new().device(DeviceChoice::Cpu).context(512);
    options.load(weft::bundled_model().unwrap()).unwrap()
}

fn question(text: &str, document: &Document) -> Question {
    let question = Question::new(text).system("Answer in a full sentence.");
    question.document(document).temperature(0.0)
}

#[test]
fn a_stream_is_the_answer_in_pieces() {
    let mut llm = llm();
    let town = llm.document(TOWN).unwrap();
    let asked = question("How many bridges does Piranul have?", &town);
    let whole = llm.ask(asked.clone()).unwrap();
    assert!(whole.text.contains("49"), "{whole}");
    let mut stream = llm.stream(asked).unwrap();
    let pieces: Vec<String> = stream.by_ref().collect::<Result<_, _>>().unwrap();
    assert!(pieces.len() > 1);
    assert_eq!(pieces.concat(), whole.text);
    let again = stream.finish().unwrap();
    assert_eq!((again.text, again.reason), (whole.text, whole.reason));
}

#[test]
fn settings_of_a_question_hold_for_its_answer() {
    let mut llm = llm();
    let town = llm.document(TOWN).unwrap();
    let asked = question("How many bridges does Piranul have?", &town);
    let whole = llm.ask(asked.clone()).unwrap();
    assert_eq!(whole.reason, FinishReason::Stop);
    let short = llm.ask(asked.clone().max_tokens(2)).unwrap();
    assert_eq!((short.stats.generated_tokens, short.reason), (2, FinishReason::Length));
    let stopped = llm.ask(asked.clone().stop("49")).unwrap();
    assert_eq!(Some(&*stopped.text), whole.text.split("49").next());
    let mut drawn = |seed| llm.ask(asked.clone().temperature(3.0).seed(seed)).unwrap().text;
    let answers = [1, 1, 2, 3, 4].map(&mut drawn);
    assert_eq!(answers[0], answers[1], "the same seed");
    assert!(answers.iter().any(|answer| *answer != answers[0]), "other seeds: {answers:?}");
}

/// What was reported while a model was loaded: bytes so far and in all.
#[derive(Clone, Default)]
struct Loading(Arc<Mutex<Vec<(u64, u64)>>>);

impl Progress for Loading {
    fn report(&self, event: Event<'_>) {
        if let Event::Loading { have_bytes, size_bytes } = event {
            self.0.lock().unwrap().push((have_bytes, size_bytes));
        }
    }
}

#[test]
fn loading_reports_how_far_it_is() {
    let loading = Loading::default();
    let options = Options::new().device(DeviceChoice::Cpu).context(64).progress(loading.clone());
    let llm = options.load(weft::bundled_model().unwrap()).unwrap();
    let size = llm.memory().need.weights;
    let reported = loading.0.lock().unwrap();
    assert!(reported.len() as u64 >= size >> 21, "every megabyte or so: {reported:?}");
    assert!(reported.iter().all(|(have, all)| *have <= *all && *all == size), "{reported:?}");
    let most = reported.iter().map(|(have, _)| *have).max().unwrap();
    assert!(most > size - (2 << 20), "{most} of {size}");
}

#[test]
fn a_document_is_computed_once() {
    let mut llm = llm();
    let town = llm.document(TOWN).unwrap();
    let first = llm.ask(question("When was Piranul founded?", &town)).unwrap();
    assert_eq!(first.stats.cached_tokens, 0);
    let second = llm.ask(question("How many bridges does Piranul have?", &town)).unwrap();
    let of_town = second.report.pieces.iter().find(|piece| piece.chunk == Some(*town.id()));
    let of_town = of_town.expect("the report has the document");
    assert_eq!(of_town.cached_tokens, of_town.tokens);
    assert_eq!(of_town.source, Some(Tier::Device));
}

#[test]
fn questions_side_by_side_are_answered_as_each_alone() {
    let mut llm = llm();
    let documents = [TOWN, SHIP].map(|text| llm.document(text).unwrap());
    let texts = ["When was Piranul founded?", "Who is the captain of the Papokro?"];
    let questions = texts.map(|text| {
        let question = Question::new(text).system("Answer in one word.").documents(&documents);
        question.reuse(Reuse::Isolated).temperature(0.0)
    });
    let alone = questions.clone().map(|question| llm.ask(question).unwrap().text);
    assert_eq!(alone, ["1535", "Trihudre"]);
    let together = llm.ask_all(questions).unwrap();
    assert_eq!(together.iter().map(|answer| answer.text.as_str()).collect::<Vec<_>>(), alone);
}

#[test]
fn agents_share_the_rows_of_their_documents() {
    let mut llm = llm();
    let documents = [TOWN, SHIP].map(|text| llm.document(text).unwrap());
    let question = Question::new("Who is the captain of the Papokro?").documents(&documents);
    let question = question.reuse(Reuse::Isolated).temperature(0.0);
    let agents = ["Answer in one word.", "Answer in a full sentence."];
    let answers = llm.ask_all(agents.map(|agent| question.clone().system(agent))).unwrap();
    let [word, sentence] = &answers[..] else { panic!("two agents") };
    assert!(sentence.text.len() > word.text.len() && sentence.text.contains(&word.text));
    for document in &documents {
        let of_document = |answer: &Answer| {
            let mut pieces = answer.report.pieces.iter();
            let piece = pieces.find(|piece| piece.chunk == Some(*document.id())).unwrap();
            piece.tokens - piece.cached_tokens
        };
        let computed = [of_document(word), of_document(sentence)];
        assert!(computed.contains(&0) && computed != [0, 0], "once: {computed:?}");
    }
}

#[test]
fn a_conversation_is_remembered_and_a_refused_turn_is_not() {
    let mut llm = llm();
    let settings = Question::default().temperature(0.0).max_tokens(20);
    let mut chat = llm.chat().system("Answer in one word.").settings(settings);
    let first = chat.say(format!("{TOWN}\n\nWhen was Piranul founded?")).unwrap();
    assert!(!first.text.is_empty());
    let too_long = "word ".repeat(2000);
    assert!(matches!(chat.say(&too_long), Err(Error::Request(_))));
    let mut pieces = String::new();
    let streamed = |text: &str| pieces.push_str(text);
    let second = chat.stream("How many bridges does Piranul have?", streamed).unwrap();
    assert_eq!(pieces, second.text);
    assert!(second.stats.cached_tokens >= first.stats.prompt_tokens - 8, "{:?}", second.stats);
    assert!(second.stats.prompt_tokens < 300, "the refused turn is not in the prompt");
}

#[test]
fn a_conversation_has_the_last_system_prompt_it_was_given() {
    let mut llm = llm();
    let mut n_tokens = |systems: &[&str]| {
        let settings = Question::default().temperature(0.0).max_tokens(1);
        let chat = llm.chat().settings(settings);
        let mut chat = systems.iter().fold(chat, |chat, system| chat.system(system));
        chat.say("When was Piranul founded?").unwrap().stats.prompt_tokens
    };
    let last = n_tokens(&["Answer in one word."]);
    assert_eq!(n_tokens(&["Answer in a full sentence.", "Answer in one word."]), last);
    assert!(n_tokens(&[]) < last);
}

/// A piece of a prompt: its chunk, its tokens, its reuse, its share of the answer's attention.
type Facts = (Option<ChunkId>, usize, Reuse, f64);

fn facts(answer: &Answer) -> Vec<Facts> {
    let pieces = answer.report.pieces.iter();
    pieces.map(|piece| (piece.chunk, piece.tokens, piece.reuse, piece.attention)).collect()
}

/// Draws unlikely words, so that other logits give another text.
fn drawn(text: &str, reuse: Reuse) -> Question {
    Question::new(text).temperature(2.0).seed(7).max_tokens(30).reuse(reuse)
}

#[test]
fn a_conversation_about_documents_begins_as_a_question_about_them() {
    let text = "Who is the captain of the Papokro?";
    for reuse in Reuse::ALL {
        let mut llm = llm();
        let documents = [TOWN, SHIP].map(|text| llm.document(text).unwrap());
        let chat = llm.chat().system("Answer in one word.").documents(&documents);
        let said = chat.settings(drawn("", reuse)).say(text).unwrap();
        assert_eq!(said.stats.cached_tokens, 0);
        for (document, words) in documents.iter().zip([TOWN, SHIP]) {
            let pieces = said.report.pieces.iter();
            let of_document = pieces.filter(|piece| piece.chunk == Some(*document.id()));
            assert_eq!(
                of_document.map(|piece| piece.reuse).collect::<Vec<_>>(),
                [reuse],
                "{words}"
            );
        }
        let question = drawn(text, reuse).system("Answer in one word.").documents(&documents);
        let asked = llm.ask(question).unwrap();
        assert_eq!(asked.stats.cached_tokens, asked.stats.prompt_tokens, "{reuse}");
        assert_eq!((&said.text, facts(&said)), (&asked.text, facts(&asked)), "{reuse}");
    }
}

#[test]
fn documents_of_a_conversation_are_computed_once_and_change_no_bit() {
    let turns = ["When was Piranul founded?", "Who is the captain of the Papokro?", "And why?"];
    let mut warm = llm();
    let [town, ship] = [TOWN, SHIP].map(|text| warm.document(text).unwrap());
    let mut chat = warm.chat().document(&town).settings(drawn("", Reuse::Exact));
    let first = chat.say(turns[0]).unwrap();
    let second = chat.say(Question::new(turns[1]).document(&ship)).unwrap();
    let third = chat.say(turns[2]).unwrap();
    let count = |answer: &Answer, document: &Document| {
        let pieces = answer.report.pieces.iter();
        let of_document = pieces.filter(|piece| piece.chunk == Some(*document.id()));
        of_document.map(|piece| (piece.cached_tokens, piece.tokens)).collect::<Vec<_>>()
    };
    let n_town = count(&first, &town)[0].1;
    let n_ship = count(&second, &ship)[0].1;
    assert!(n_town > 32 && n_ship > 8, "{n_town} {n_ship}");
    assert_eq!(count(&first, &town), [(0, n_town)]);
    assert_eq!(count(&second, &town), [(n_town, n_town)]);
    assert_eq!(count(&second, &ship), [(0, n_ship)]);
    assert_eq!(count(&third, &town), [(n_town, n_town)]);
    assert_eq!(count(&third, &ship), [(n_ship, n_ship)]);
    // A prompt of the same tokens, with nothing kept and nothing registered.
    let mut cold = llm();
    let mut chat = cold.chat().settings(drawn("", Reuse::Exact));
    let plain = [format!("{TOWN}\n\n{}", turns[0]), format!("{SHIP}\n\n{}", turns[1])];
    for (message, warm) in
        plain.iter().map(String::as_str).chain([turns[2]]).zip([first, second, third])
    {
        let cold = chat.say(message).unwrap();
        assert_eq!(cold.text, warm.text);
    }
}

#[test]
fn documents_of_a_conversation_are_reused_in_any_order() {
    let mut llm = llm();
    let [town, ship] = [TOWN, SHIP].map(|text| llm.document(text).unwrap());
    let system = "Answer in one word.";
    let texts = ["When was Piranul founded?", "Who is the captain of the Papokro?"];
    let question = Question::new(texts[0]).system(system).documents([&town, &ship]);
    llm.ask(question.reuse(Reuse::Isolated).temperature(0.0)).unwrap();
    let settings = Question::default().temperature(0.0).reuse(Reuse::Isolated);
    let mut chat = llm.chat().system(system).documents([&ship, &town]).settings(settings);
    let answers = texts.map(|text| chat.say(text).unwrap());
    assert_eq!(answers.each_ref().map(|answer| &*answer.text), ["1535", "Trihudre"]);
    for (answer, n_turns) in answers.iter().zip([1, 3]) {
        let pieces = &answer.report.pieces;
        let (documents, others): (Vec<_>, Vec<_>) =
            pieces.iter().partition(|piece| piece.kind == Kind::Context && piece.chunk.is_some());
        let ids: Vec<_> = documents.iter().filter_map(|piece| piece.chunk).collect();
        assert_eq!(ids, [*ship.id(), *town.id()]);
        assert!(documents.iter().all(|piece| piece.cached_tokens == piece.tokens), "{pieces:?}");
        // The system prompt and the turns attend to everything before them.
        assert_eq!(others.len(), 1 + n_turns);
        assert!(others.iter().all(|piece| piece.reuse == Reuse::Exact), "{pieces:?}");
    }
    let repaired = chat.say(Question::new(texts[0]).repair(Repair::Link(4))).unwrap();
    assert!(repaired.report.pieces.iter().any(|piece| piece.repaired_tokens > 0));
}

#[test]
fn documents_wait_for_the_next_message_that_is_answered() {
    let mut llm = llm();
    let town = llm.document(TOWN).unwrap();
    let settings = Question::default().temperature(0.0);
    let mut chat = llm.chat().system("Answer in one word.").document(&town).settings(settings);
    let too_long = Question::new("word ".repeat(2000)).system("Answer in a full sentence.");
    assert!(matches!(chat.say(too_long), Err(Error::Request(_))));
    let answer = chat.say("How many bridges does Piranul have?").unwrap();
    assert_eq!(answer.text, "49");
    let ship = chat.llm().document(SHIP).unwrap();
    let asked = || Question::new("Who is the captain of the Papokro?").document(&ship);
    let elsewhere = self::llm().document("A text of another model.").unwrap();
    let unknown = chat.say(Question::new("Who?").document(&elsewhere));
    assert!(matches!(unknown, Err(Error::Chunk(_))));
    assert_eq!(chat.say(asked()).unwrap().text, "Trihudre");
    // A message's own settings count more than the conversation's.
    let cut = chat.say(asked().max_tokens(1)).unwrap();
    assert_eq!((cut.stats.generated_tokens, cut.reason), (1, FinishReason::Length));
    let sentence = chat.say(asked().system("Answer in a full sentence.")).unwrap();
    assert!(sentence.text.len() > 2 * "Trihudre".len(), "{sentence}");
    let [_, documents @ ..] = &sentence.report.pieces[..] else { panic!("no pieces") };
    let found = documents.iter().filter_map(|piece| piece.chunk).collect::<Vec<_>>();
    assert_eq!(found, [&town, &ship, &ship, &ship].map(|document| *document.id()));
}

#[test]
fn rows_of_documents_outlive_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let options = Options::new().device(DeviceChoice::Cpu).context(512).ram_cache(0);
        options.disk_cache(folder.path(), 1 << 30).load(weft::bundled_model().unwrap()).unwrap()
    };
    let ask = |llm: &mut Llm| {
        let town = llm.document(TOWN).unwrap();
        llm.ask(question("When was Piranul founded?", &town)).unwrap()
    };
    let mut llm = open();
    let first = ask(&mut llm);
    assert!(llm.save() > 0);
    drop(llm);
    let second = ask(&mut open());
    assert_eq!(second.text, first.text);
    assert!(second.report.pieces.iter().any(|piece| piece.source == Some(Tier::Disk)));
}

#[test]
fn a_folder_that_cannot_be_used_is_a_warning() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = Options::new().device(DeviceChoice::Cpu).disk_cache(file.path(), 1 << 20);
    let mut llm = options.load(weft::bundled_model().unwrap()).unwrap();
    let warnings = llm.take_warnings();
    assert!(warnings[0].contains("not saved on disk"), "{warnings:?}");
    assert!(llm.take_warnings().is_empty());
}

#[test]
fn drafts_change_the_speed_alone() {
    let options = Options::new().device(DeviceChoice::Cpu).context(512);
    let mut llm =
        options.speculate(Speculate::Fixed(4)).load(weft::bundled_model().unwrap()).unwrap();
    let town = llm.document(TOWN).unwrap();
    let asked = question("How many bridges does Piranul have?", &town);
    let plain = llm.ask(asked.clone().speculate(Speculate::Off)).unwrap();
    assert_eq!(plain.stats.speculation.total().drafted, 0);
    let drafted = llm.ask(asked.clone()).unwrap();
    assert!(drafted.stats.speculation.context.drafted > 0, "{:?}", drafted.stats);
    let predicted = llm.ask(asked.prediction(&plain.text)).unwrap();
    assert!(predicted.stats.speculation.prediction.accepted > 1, "{:?}", predicted.stats);
    for answer in [drafted, predicted] {
        assert_eq!((answer.text, answer.reason), (plain.text.clone(), plain.reason));
    }
    let off = Options::new().device(DeviceChoice::Cpu).context(512).speculate(Speculate::Off);
    let mut off = off.load(weft::bundled_model().unwrap()).unwrap();
    let town = off.document(TOWN).unwrap();
    let asked = question("How many bridges does Piranul have?", &town).prediction(&plain.text);
    assert_eq!(off.ask(asked).unwrap().stats.speculation.total().drafted, 0);
    let settings = Question::default().temperature(0.0).prediction("Nothing like it.");
    let mut chat = llm.chat().settings(settings);
    let said = chat.say(format!("{TOWN}\n\nWhen was Piranul founded?")).unwrap();
    assert!(said.stats.speculation.prediction.drafted > 0, "{:?}", said.stats);
}

#[test]
fn a_draft_model_drafts_if_its_tokens_are_the_model_s() {
    let options = || Options::new().device(DeviceChoice::Cpu).context(512);
    let bundled = || weft::bundled_model().unwrap();
    let drafting = options().draft_model(bundled()).speculate(Speculate::Fixed(4));
    let mut llm = drafting.load(bundled()).unwrap();
    assert!(llm.draft_memory().is_some_and(|memory| memory.need == llm.memory().need));
    let town = llm.document(TOWN).unwrap();
    let asked = question("How many bridges does Piranul have?", &town);
    let plain = llm.ask(asked.clone().speculate(Speculate::Off)).unwrap();
    let drafted = llm.ask(asked).unwrap();
    assert_eq!(drafted.text, plain.text);
    let counts = drafted.stats.speculation.model;
    assert!(counts.drafted > 0 && counts.accepted == counts.drafted, "{counts:?}");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../weft-core/tests/prompts/tokenizer.json");
    let tokenizer = Arc::new(Tokenizer::from_file(file).unwrap());
    let other = options().draft_model(Model { tokenizer, ..bundled() }).load(bundled());
    let other = other.err().expect("its tokens are other ones");
    assert!(matches!(other, Error::DraftModel(_)), "{other}");
    assert!(other.to_string().contains("tokenizer"), "{other}");
    let absent = options().draft("./no/such/folder").load(bundled()).err().unwrap();
    assert!(absent.to_string().contains("no/such/folder"), "{absent}");
}

#[test]
fn wrong_settings_say_what_is_right() {
    let load = |options: Options| options.load(weft::bundled_model().unwrap()).err().unwrap();
    let most = weft::bundled_model().unwrap().config.max_positions;
    let long = load(Options::new().context(most + 1));
    assert!(matches!(long, Error::ContextTooLong { .. }), "{long}");
    assert!(long.to_string().contains(&most.to_string()), "{long}");
    assert!(matches!(load(Options::new().context(1)), Error::ContextTooShort { .. }));
    let little = load(Options::new().device(DeviceChoice::Cpu).kv_memory(1000));
    assert!(little.to_string().contains("give"), "{little}");
    let much = load(Options::new().device(DeviceChoice::Cpu).kv_memory(1 << 45));
    assert!(matches!(much, Error::TooLarge { on_gpu: false, .. }), "{much}");
    let missing = weft::open("./no/such/folder").err().unwrap();
    assert!(missing.to_string().contains("no/such/folder"), "{missing}");
}

#[test]
fn quantised_weights_answer_too_and_have_rows_of_their_own() {
    let open = |bits: Option<u8>| {
        let options = Options::new().device(DeviceChoice::Cpu).context(512);
        let options = bits.into_iter().fold(options, |o, bits| o.quantize(Coded::int(bits)));
        options.load(weft::bundled_model().unwrap()).unwrap()
    };
    let mut weights = Vec::new();
    let mut fingerprints = Vec::new();
    for bits in [None, Some(8), Some(4)] {
        let mut llm = open(bits);
        let town = llm.document(TOWN).unwrap();
        let answer = llm.ask(question("When was Piranul founded?", &town)).unwrap();
        assert!(answer.text.contains("1535"), "{bits:?}: {}", answer.text);
        weights.push(llm.memory().need.weights);
        fingerprints.push(llm.into_parts().0.fingerprint("rows"));
    }
    assert!(weights[1] * 10 < weights[0] * 6 && weights[2] * 10 < weights[0] * 4, "{weights:?}");
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 3, "rows of one form are not those of another");
    let quantised = weft::bundled_model().unwrap().quantised(Coded::int(4)).unwrap();
    let twice = Options::new().quantize(Coded::int(8)).load(quantised).err().unwrap();
    assert!(twice.to_string().contains("quantised already"), "{twice}");
}
