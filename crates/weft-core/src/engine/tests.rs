//! The engine with chunks, on a small model with random weights. Exact results are compared bit for
//! bit with a cold run of the same tokens, after any history.

mod ahead;
mod anchors;
mod coarse;
mod drafts;
mod failing;
mod figures;
mod files;
mod filling;
mod groups;
mod lanes;
mod lost_copies;
mod pages;
mod reading;
mod remote;
mod repairs;
mod settling;
mod wrapped;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};

use super::*;
use crate::chunk::{Chunk, ChunkId, Kind, Piece, Repair, Reuse, Tier};
use crate::config::Config;
use crate::device::Limits;
use crate::reference;
use crate::sampling::Sampling;
use crate::store::Store;

const CONTEXT: usize = 700;

pub(in crate::engine) fn model() -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prompts/tokenizer.json");
    let tokenizer = Tokenizer::from_file(file).unwrap();
    let json = format!(
        r#"{{"model_type": "qwen3", "hidden_size": 24, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "intermediate_size": 32, "vocab_size": {}, "max_position_embeddings": 1024,
            "rope_theta": 10000.0, "tie_word_embeddings": false}}"#,
        tokenizer.vocab_size()
    );
    let config = Config::from_json(json.as_bytes()).unwrap();
    Model::random(config, 3, Arc::new(tokenizer))
}

fn engine_with(pages: usize, tiers: Tiers) -> Engine {
    let model = model();
    let limits = Limits { step_tokens: 64, step_outputs: 16, positions: CONTEXT, pages };
    let device = reference::open(&model.config, &*model.weights, limits).unwrap();
    let mut engine = Engine::with_tiers(&model, device, tiers);
    // Which is faster depends on the machine.
    engine.always_fetch(true);
    engine
}

fn engine() -> Engine {
    engine_with(80, Tiers::default())
}

/// `n` tokens of plain text from a seed.
pub(in crate::engine) fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7 + seed * 31 + (i * i * seed) % 13) % 256).collect()
}

fn document(seed: u32) -> Piece {
    Piece::exact(Kind::Context, tokens(40 + (seed as usize * 37) % 90, seed + 100))
}

fn chunk_of(piece: Piece) -> Chunk {
    Chunk::of_tokens(piece.kind, "", piece.tokens)
}

fn system() -> Piece {
    Piece::exact(Kind::System, tokens(20, 1))
}

fn query(seed: u32) -> Piece {
    Piece::exact(Kind::Query, tokens(9, seed + 1000))
}

fn composition(documents: &[u32], question: u32, reuse: Reuse, repair: Repair) -> Composition {
    let documents = documents.iter().map(|seed| Piece { reuse, ..document(*seed) });
    let pieces = [system()].into_iter().chain(documents).chain([query(question)]).collect();
    Composition { pieces, repair }
}

fn exact(documents: &[u32], question: u32) -> Composition {
    composition(documents, question, Reuse::Exact, Repair::None)
}

fn sampling() -> Sampling {
    Sampling {
        temperature: 0.0,
        max_tokens: Some(6),
        logprobs: Some(4),
        ignore_eos: true,
        ..Sampling::default()
    }
}

/// Tokens with their log-probabilities, which are equal if all logits are.
fn answer(engine: &mut Engine, request: Request) -> (Vec<Token>, Finished) {
    let mut generation = engine.generate(request).unwrap();
    let tokens = generation.by_ref().map(Result::unwrap).collect();
    (tokens, generation.finished().unwrap())
}

fn ask(engine: &mut Engine, prompt: &Composition) -> (Vec<Token>, Finished) {
    let done = answer(engine, Request::new(prompt.clone(), sampling()));
    engine.cache.check(&[]);
    assert_eq!(engine.cache.n_promised(), 0);
    done
}

fn cold(prompt: &Composition) -> Vec<Token> {
    answer(&mut engine(), Request::new(prompt.clone(), sampling()).cold()).0
}

fn sources(finished: &Finished) -> Vec<Option<Tier>> {
    finished.report.pieces.iter().map(|piece| piece.source).collect()
}

#[test]
fn any_split_of_a_prompt_is_the_unsplit_prompt() {
    TestRunner::new(Cases::with_cases(24))
        .run(&prop::collection::vec(1_usize..120, 1..7), |cuts| {
            let whole = tokens(cuts.iter().sum(), 5);
            let mut rest = &whole[..];
            let mut pieces = Vec::new();
            for cut in cuts {
                let (piece, after) = rest.split_at(cut);
                pieces.push(Piece::exact(Kind::Context, piece.to_vec()));
                rest = after;
            }
            let split = Composition { pieces, repair: Repair::None };
            let (mut engine, unsplit) = (engine(), Composition::from(whole));
            let first = ask(&mut engine, &split).0;
            prop_assert_eq!(&first, &cold(&unsplit));
            // Rows that were cut one way serve a prompt that is cut another way.
            let (again, finished) = ask(&mut engine, &unsplit);
            prop_assert_eq!(again, first);
            prop_assert_eq!(finished.stats.cached_tokens, finished.stats.prompt_tokens);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_second_answer_finds_what_the_first_computed() {
    let mut engine = engine();
    let (first, finished) = ask(&mut engine, &exact(&[1, 2], 1));
    assert_eq!(finished.stats.cached_tokens, 0);
    assert_eq!(sources(&finished), [None; 4]);
    let (again, finished) = ask(&mut engine, &exact(&[1, 2], 1));
    assert_eq!(again, first);
    assert_eq!(finished.stats.cached_tokens, finished.stats.prompt_tokens);
    assert_eq!(sources(&finished), [Some(Tier::Device); 4]);
    // Another question finds everything else. Another order finds only the system prompt.
    let (other, finished) = ask(&mut engine, &exact(&[1, 2], 2));
    assert_eq!(other, cold(&exact(&[1, 2], 2)));
    assert_eq!(sources(&finished)[..3], [Some(Tier::Device); 3]);
    assert_eq!(sources(&finished)[3], None);
    let (other, finished) = ask(&mut engine, &exact(&[2, 1], 1));
    assert_eq!(other, cold(&exact(&[2, 1], 1)));
    assert_eq!(finished.stats.cached_tokens, 20);
}

#[test]
fn an_edited_document_is_reused_up_to_the_edit() {
    let mut engine = engine();
    let mut prompt = exact(&[1, 2], 1);
    ask(&mut engine, &prompt);
    let len = prompt.pieces[1].tokens.len();
    prompt.pieces[1].tokens[len - 3] += 1;
    let preview = engine.preview(&prompt).pieces[1].clone();
    assert_eq!((preview.cached_tokens, preview.source), (len - 3, None));
    let (edited, finished) = ask(&mut engine, &prompt);
    assert_eq!(edited, cold(&prompt));
    assert_eq!(finished.stats.cached_tokens, 20 + len - 3);
}

#[test]
fn the_next_turn_finds_the_answer() {
    let mut engine = engine();
    let mut prompt = exact(&[], 1);
    let mut before = 0;
    for turn in 0..5 {
        let (tokens, finished) = ask(&mut engine, &prompt);
        assert_eq!(tokens, cold(&prompt));
        assert_eq!(finished.stats.cached_tokens, before);
        // The last token was never run, so it has no row.
        before = prompt.len() + tokens.len() - 1;
        let said: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        prompt.pieces.push(Piece::exact(Kind::Output, said));
        prompt.pieces.push(query(2 + turn));
    }
}

/// An event between two answers.
#[derive(Clone, Debug)]
enum Action {
    Ask { documents: Vec<u32>, question: u32, reuse: Reuse, repair: Repair },
    AskTogether { documents: Vec<u32> },
    CancelAfter { documents: Vec<u32>, steps: usize },
    Forget { document: u32 },
    Save,
    Restart,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let documents = || prop::collection::vec(0_u32..5, 0..4);
    let reuse = prop::sample::select(&Reuse::ALL[..]);
    let repairs = vec![Repair::None, Repair::Link(16), Repair::Blend(0.3, 1)];
    let repair = prop::sample::select(repairs);
    let action = prop_oneof![
        6 => (documents(), 0_u32..3, reuse, repair).prop_map(
            |(documents, question, reuse, repair)| Action::Ask { documents, question, reuse, repair }
        ),
        2 => documents().prop_map(|documents| Action::AskTogether { documents }),
        1 => (documents(), 0_usize..9).prop_map(|(documents, steps)| Action::CancelAfter { documents, steps }),
        1 => (0_u32..5).prop_map(|document| Action::Forget { document }),
        1 => Just(Action::Save),
        1 => Just(Action::Restart),
    ];
    prop::collection::vec(action, 1..14)
}

/// Warm, cold, evicted and recomputed, from main memory, from disk, after a restart, beside others,
/// after cancelled neighbours: exact answers have the same bits, and so do approximate ones. There
/// are few pages, so that nearly everything is evicted from time to time.
#[test]
fn whatever_happened_before_does_not_show() {
    let truths: RefCell<HashMap<String, Vec<Token>>> = RefCell::default();
    TestRunner::new(Cases::with_cases(20))
        .run(&actions(), |actions| {
            let folder = tempfile::tempdir().unwrap();
            let open = || {
                let store = Store::open(folder.path(), 300_000).unwrap();
                engine_with(18, Tiers { ram_bytes: 60_000, store: Some(store), ..Tiers::default() })
            };
            let mut engine = open();
            let check = |engine: &mut Engine, prompt: &Composition, said: Vec<Token>| {
                engine.cache.check(&[]);
                let mut truths = truths.borrow_mut();
                let truth = truths.entry(format!("{prompt:?}")).or_insert_with(|| cold(prompt));
                assert_eq!(&said, truth);
            };
            for action in actions {
                match action {
                    Action::Ask { documents, question, reuse, repair } => {
                        let prompt = composition(&documents, question, reuse, repair);
                        let said = ask(&mut engine, &prompt).0;
                        check(&mut engine, &prompt, said);
                    }
                    Action::AskTogether { documents } => {
                        let prompts: Vec<_> = (0..4).map(|q| exact(&documents, q)).collect();
                        let requests =
                            prompts.iter().map(|p| Request::new(p.clone(), sampling())).collect();
                        let done = engine.generate_batch(requests).unwrap();
                        for (prompt, done) in prompts.iter().zip(done) {
                            check(&mut engine, prompt, done.tokens);
                        }
                    }
                    Action::CancelAfter { documents, steps } => {
                        let request = Request::new(exact(&documents, 7), sampling());
                        let cancel = request.cancel.clone();
                        engine.add(request).unwrap();
                        (0..steps).for_each(|_| drop(engine.step().unwrap()));
                        cancel.cancel();
                        engine.step().unwrap();
                    }
                    Action::Forget { document: seed } => {
                        engine.cache.forget(&chunk_of(document(seed)));
                    }
                    Action::Save => drop(engine.save(true)),
                    Action::Restart => {
                        engine.save(true);
                        drop(engine);
                        engine = open();
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn rows_come_back_from_main_memory_and_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let open = |ram_bytes| {
        let store = Store::open(folder.path(), 10_000_000).unwrap();
        engine_with(12, Tiers { ram_bytes, store: Some(store), ..Tiers::default() })
    };
    let prompt = exact(&[1, 2], 1);
    let truth = cold(&prompt);

    let mut engine = open(10_000_000);
    ask(&mut engine, &prompt);
    // Not by filling the pages: which rows are evicted first depends on the time to compute them.
    engine.demote(Tier::Ram);
    let (said, finished) = ask(&mut engine, &prompt);
    assert_eq!(said, truth);
    assert_eq!(sources(&finished), [Some(Tier::Ram); 4]);
    engine.save(true);

    let mut engine = open(0);
    let (said, finished) = ask(&mut engine, &prompt);
    assert_eq!(said, truth);
    assert_eq!(sources(&finished), [Some(Tier::Disk); 4]);
    assert!(finished.report.pieces.iter().all(|piece| !piece.saved.is_zero()));
    assert_eq!(engine.cache_stats().brought_from_disk, 4);
}

#[test]
fn lanes_compute_what_they_share_once_and_take_over_from_the_cancelled() {
    let mut engine = engine();
    let requests: Vec<Request> =
        (0..4).map(|q| Request::new(exact(&[1, 2, 3], q), sampling())).collect();
    let done = engine.generate_batch(requests).unwrap();
    for (q, done) in done.iter().enumerate() {
        assert_eq!(done.tokens, cold(&exact(&[1, 2, 3], q as u32)));
    }
    let shared = exact(&[1, 2, 3], 0).len() - 9;
    assert_eq!(engine.cache_stats().computed_tokens, (shared + 4 * 9) as u64);

    let mut engine = self::engine();
    let first = Request::new(exact(&[4, 3], 0), sampling());
    let cancel = first.cancel.clone();
    engine.add(first).unwrap();
    let second = engine.add(Request::new(exact(&[4, 3], 1), sampling())).unwrap();
    engine.step().unwrap();
    cancel.cancel();
    let mut said = Vec::new();
    while engine.running() > 0 {
        for event in engine.step().unwrap() {
            match event {
                Event::Token { lane, token, .. } if lane == second => said.push(token),
                _ => {}
            }
        }
        engine.cache.check(&engine.lane_pages());
    }
    assert_eq!(said, cold(&exact(&[4, 3], 1)));
}

#[test]
fn a_full_house_refuses_the_new_and_never_fails_the_running() {
    // Eight pages: each needs five, for about 280 tokens.
    let mut engine = engine_with(8, Tiers::default());
    let running = engine.add(Request::new(exact(&[1, 2, 3], 0), sampling())).unwrap();
    let refused = engine.add(Request::new(exact(&[5, 6, 7], 0), sampling())).unwrap_err();
    assert!(matches!(refused, RequestError::NoRoom(_)), "{refused}");
    let mut said = Vec::new();
    while engine.running() > 0 {
        for event in engine.step().unwrap() {
            if let Event::Token { lane, token, .. } = event {
                assert_eq!(lane, running);
                said.push(token);
            }
        }
    }
    assert_eq!(said, cold(&exact(&[1, 2, 3], 0)));
    assert_eq!(ask(&mut engine, &exact(&[5, 6, 7], 0)).0, cold(&exact(&[5, 6, 7], 0)));
}

#[test]
fn pinned_rows_stay() {
    let mut engine = engine_with(14, Tiers::default());
    let mut prompt = exact(&[1], 0);
    let id = ChunkId::of(Kind::Context, &prompt.pieces[1].tokens);
    prompt.pieces[1].chunk = Some(id);
    ask(&mut engine, &prompt);
    engine.cache.pin(&id, true).unwrap();
    (10..16).for_each(|seed| drop(ask(&mut engine, &exact(&[seed, seed + 1], 1))));
    let kept = |engine: &Engine| engine.preview(&prompt).pieces[1].source;
    // Its context may be evicted; its own rows are not.
    assert_eq!(kept(&engine), Some(Tier::Device));
    engine.cache.pin(&id, false).unwrap();
    // What was slow to compute stays longer, and a busy machine may have made it slow.
    let more = (20..120).take_while(|seed| {
        drop(ask(&mut engine, &exact(&[*seed, seed + 1], 1)));
        kept(&engine).is_some()
    });
    assert!(more.count() < 100, "its rows stay for ever");
}

#[test]
fn moved_documents_are_reused_and_say_so() {
    for reuse in [Reuse::Anchored, Reuse::Isolated] {
        let prompt = |documents: &[u32]| composition(documents, 1, reuse, Repair::None);
        let mut engine = engine();
        ask(&mut engine, &prompt(&[1, 2, 3]));
        let (said, finished) = ask(&mut engine, &prompt(&[3, 1, 2]));
        assert_eq!(said, cold(&prompt(&[3, 1, 2])), "warm is cold, approximate or not");
        let report = &finished.report;
        assert!(report.pieces[1..4].iter().all(|piece| piece.source == Some(Tier::Device)));
        let lengths: Vec<i64> = [3, 1, 2].map(|d| document(d).tokens.len() as i64).to_vec();
        let home = if reuse == Reuse::Anchored { 20 } else { 0 };
        let shifts: Vec<i64> = report.pieces[1..4].iter().map(|piece| piece.shift).collect();
        let start = 20 - home;
        assert_eq!(shifts, [start, start + lengths[0], start + lengths[0] + lengths[1]]);
        let sum: f64 = report.pieces.iter().map(|piece| piece.attention).sum();
        assert!((sum + report.answer_attention - 1.0).abs() < 1e-6, "{sum}");
    }
}

#[test]
fn verify_finds_no_difference_where_there_is_none_and_measures_where_there_is() {
    let mut engine = engine();
    let prompt = exact(&[1, 2], 1);
    let said: Vec<u32> = ask(&mut engine, &prompt).0.iter().map(|token| token.id).collect();
    assert!(engine.verify(&prompt, &said).unwrap().is_exact());
    let approximate = composition(&[2, 1], 1, Reuse::Isolated, Repair::None);
    let found = engine.verify(&approximate, &said).unwrap();
    assert!(!found.is_exact());
    assert_eq!(found.tokens, said.len());
    assert!(found.max_difference >= found.mean_difference && found.divergence > 0.0);
    engine.cache.check(&[]);
}

#[test]
fn repairs_bring_an_answer_nearer_and_change_nothing_that_is_kept() {
    for reuse in [Reuse::Anchored, Reuse::Isolated] {
        let mut engine = engine();
        let mut divergence = |repair| {
            let prompt = composition(&[1, 2, 3], 1, reuse, repair);
            let found = engine.verify(&prompt, &tokens(6, 77)).unwrap();
            engine.cache.check(&[]);
            (found.divergence, found.mean_difference)
        };
        let plain = divergence(Repair::None);
        // If everything is recomputed, the result is the plain prompt's, up to the rounding of
        // rotated keys.
        let all = divergence(Repair::Blend(1.0, 1));
        assert!(all.0 < plain.0 * 0.1, "{reuse}: {all:?} against {plain:?}");
        let some = divergence(Repair::Blend(0.5, 1));
        assert!(some.0 < plain.0, "{reuse}: {some:?} against {plain:?}");
        // A deeper layer chooses other rows; one that no model has is the last.
        let deeper = [2, u16::MAX].map(|layer| divergence(Repair::Blend(0.5, layer)));
        assert!(deeper.iter().all(|found| found.0 < plain.0), "{reuse}: {deeper:?}");
        assert_ne!(deeper[0], some);
        let linked = divergence(Repair::Link(32));
        assert!(linked.0 < plain.0, "{reuse}: {linked:?} against {plain:?}");
        assert_eq!(divergence(Repair::None), plain);
    }
}

#[test]
fn a_repair_counts_its_tokens() {
    let mut engine = engine();
    let repaired = |engine: &mut Engine, repair| {
        let prompt = composition(&[1, 2, 3], 1, Reuse::Anchored, repair);
        let report = ask(engine, &prompt).1.report;
        report.pieces.iter().map(|piece| piece.repaired_tokens).collect::<Vec<_>>()
    };
    assert_eq!(repaired(&mut engine, Repair::None), [0; 5]);
    // The first document stands where it was computed.
    assert_eq!(repaired(&mut engine, Repair::Link(8)), [0, 0, 8, 8, 0]);
    let lengths = [2, 3].map(|d| document(d).tokens.len());
    let blended = repaired(&mut engine, Repair::Blend(0.25, 1));
    let share = (lengths.iter().sum::<usize>() as f64 * 0.25).ceil() as usize;
    assert_eq!(blended[2] + blended[3], share);
    assert_eq!(blended[0] + blended[1] + blended[4], 0);
}

#[test]
fn a_conversation_of_many_small_pieces_goes_on_until_the_context_is_full() {
    // Eleven pages hold the context; each turn leaves two of them partly filled.
    let mut engine = engine_with(12, Tiers::default());
    let sampling = Sampling { max_tokens: Some(4), temperature: 0.0, ..Sampling::default() };
    let mut prompt = Composition::default();
    for turn in 0..40 {
        prompt.pieces.push(query(turn));
        let answers = [true, false].map(|use_cache| {
            let request = Request { use_cache, ..Request::new(prompt.clone(), sampling.clone()) };
            let answer: Vec<u32> =
                engine.generate(request).unwrap().map(|t| t.unwrap().id).collect();
            engine.cache.check(&[]);
            answer
        });
        assert_eq!(answers[0], answers[1], "turn {turn}");
        prompt.pieces.push(Piece::exact(Kind::Output, answers[0].clone()));
    }
}
