//! The engine on a small model with random weights: lanes, seeds, ends, echo, cancel, statistics.

use std::path::Path;
use std::sync::Arc;

use weft_core::chunk::Composition;
use weft_core::config::Config;
use weft_core::device::{Device, Limits, MAX_LANES};
use weft_core::engine::{Engine, Event, FinishReason, GenerateError, Request, RequestError, Token};
use weft_core::model::Model;
use weft_core::reference;
use weft_core::sampling::Sampling;
use weft_core::tokenizer::Tokenizer;
use weft_testing::drafts::drafts_change_nothing;
use weft_testing::exact::{Size, answers_are_the_cold_ones};

const CONTEXT: usize = 200;

fn model() -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prompts/tokenizer.json");
    let tokenizer = Tokenizer::from_file(file).unwrap();
    let json = format!(
        r#"{{"model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "intermediate_size": 48, "vocab_size": {}, "max_position_embeddings": 512,
            "rope_theta": 10000.0, "tie_word_embeddings": false}}"#,
        // Rows beyond the tokenizer's are padding.
        tokenizer.vocab_size() + 7
    );
    let config = Config::from_json(json.as_bytes()).unwrap();
    let stop_ids = vec![tokenizer.id_of("<|im_end|>").unwrap()];
    Model { stop_ids, ..Model::random(config, 3, Arc::new(tokenizer)) }
}

fn engine_with(pages: usize, step_tokens: usize) -> Engine {
    let model = model();
    let limits = Limits { step_tokens, step_outputs: MAX_LANES + 3, positions: CONTEXT, pages };
    Engine::new(&model, reference::open(&model.config, &*model.weights, limits).unwrap())
}

fn engine() -> Engine {
    engine_with(40, 32)
}

fn prompt(n: usize, seed: u32) -> Vec<u32> {
    // Ids of plain text tokens.
    weft_testing::tokens(n, seed, 256)
}

fn drawn(seed: u64, max_tokens: usize) -> Sampling {
    Sampling {
        temperature: 1.0,
        seed,
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..Sampling::default()
    }
}

fn greedy(max_tokens: usize) -> Sampling {
    Sampling { temperature: 0.0, ..drawn(0, max_tokens) }
}

fn generate(engine: &mut Engine, request: Request) -> Vec<Token> {
    engine.generate(request).unwrap().map(Result::unwrap).collect()
}

fn ids(tokens: &[Token]) -> Vec<u32> {
    tokens.iter().map(|token| token.id).collect()
}

fn text(tokens: &[Token]) -> String {
    tokens.iter().map(|token| token.text.as_str()).collect()
}

#[test]
fn an_answer_has_tokens_text_and_statistics() {
    let mut engine = engine();
    let mut progress = Vec::new();
    let mut generation = engine
        .generate(Request::new(prompt(70, 1), drawn(5, 12)))
        .unwrap()
        .on_prefill(|done, total| progress.push((done, total)));
    let tokens: Vec<Token> = generation.by_ref().map(Result::unwrap).collect();
    let finished = generation.finished().unwrap();
    drop(generation);
    assert_eq!(tokens.len(), 12);
    assert_eq!(finished.reason, FinishReason::Length);
    assert_eq!((finished.stats.prompt_tokens, finished.stats.generated_tokens), (70, 12));
    assert!(finished.stats.first_token <= finished.stats.total);
    assert!(finished.stats.tokens_per_second().unwrap() > 0.0);
    assert_eq!(progress, [(32, 70), (64, 70), (70, 70)], "a step has 32 tokens");
    assert_eq!(engine.running(), 0);

    let tokenizer = &model().tokenizer;
    assert_eq!(text(&tokens), tokenizer.decode(&ids(&tokens), true));
}

#[test]
fn a_seed_gives_the_same_tokens_whatever_runs_beside_it() {
    let request = |i: u32| Request::new(prompt(5 + 9 * i as usize, i), drawn(u64::from(i), 20));
    let alone: Vec<Vec<u32>> = (0..12).map(|i| ids(&generate(&mut engine(), request(i)))).collect();
    let together = engine().generate_batch((0..12).map(request).collect()).unwrap();
    let together: Vec<Vec<u32>> = together.iter().map(|done| ids(&done.tokens)).collect();
    assert_eq!(alone, together);
    assert_ne!(alone[0], ids(&generate(&mut engine(), Request::new(prompt(5, 0), drawn(99, 20)))));
}

#[test]
fn memory_comes_back() {
    // Three pages hold one request at a time; every request ends in another way.
    let mut engine = engine_with(3, 32);
    for round in 0..5 {
        assert_eq!(generate(&mut engine, Request::new(prompt(90, round), greedy(30))).len(), 30);
        drop(engine.generate(Request::new(prompt(90, round), greedy(30))).unwrap());
        let cancelled = Request::new(prompt(90, round), greedy(30));
        cancelled.cancel.cancel();
        assert!(generate(&mut engine, cancelled).is_empty());
    }
    let completions = engine
        .generate_batch((0..4).map(|i| Request::new(prompt(90, i), greedy(30))).collect())
        .unwrap();
    assert!(completions.iter().all(|completion| completion.tokens.len() == 30));
}

#[test]
fn cancel_ends_a_lane_within_a_step() {
    let mut engine = engine();
    let request = Request::new(prompt(10, 1), greedy(100));
    let cancel = request.cancel.clone();
    let mut generation = engine.generate(request).unwrap();
    for _ in 0..3 {
        generation.next().unwrap().unwrap();
    }
    cancel.cancel();
    assert!(generation.next().is_none());
    let finished = generation.finished().unwrap();
    assert_eq!(finished.reason, FinishReason::Cancelled);
    assert_eq!(finished.stats.generated_tokens, 3);
}

#[test]
fn an_end_token_ends_the_answer_and_is_no_text() {
    let free = generate(&mut engine(), Request::new(prompt(10, 1), greedy(20)));
    // The model's own choice, as a stop token of the request.
    let end = free[7].id;
    let first = free.iter().position(|token| token.id == end).unwrap();
    let sampling = Sampling { stop_ids: vec![end], ..greedy(20) };
    let mut engine = engine();
    let mut generation = engine.generate(Request::new(prompt(10, 1), sampling)).unwrap();
    let tokens: Vec<Token> = generation.by_ref().map(Result::unwrap).collect();
    let finished = generation.finished().unwrap();
    assert_eq!((finished.reason, finished.stop), (FinishReason::Stop, None));
    assert_eq!(ids(&tokens), ids(&free[..=first]));
    assert_eq!(text(&tokens), text(&free[..first]));
}

#[test]
fn a_stop_string_is_cut_and_never_leaked() {
    let free = generate(&mut engine(), Request::new(prompt(10, 4), drawn(8, 30)));
    let whole = text(&free);
    // A stop string that crosses a border between tokens.
    let middle = text(&free[..15]).len();
    let start = whole.floor_char_boundary(middle - 2);
    let end = whole.ceil_char_boundary(middle + 2);
    let stop = &whole[start..end];
    let expected = &whole[..whole.find(stop).unwrap()];
    let stops = vec!["\u{1}never\u{1}".to_owned(), stop.to_owned()];
    let sampling = Sampling { stop: stops, ..drawn(8, 30) };
    let mut engine = engine();
    let mut generation = engine.generate(Request::new(prompt(10, 4), sampling)).unwrap();
    let mut so_far = String::new();
    for token in generation.by_ref() {
        so_far.push_str(&token.unwrap().text);
        assert!(expected.starts_with(&so_far), "`{so_far}` leaks what `{expected}` does not have");
    }
    assert_eq!(so_far, expected);
    let finished = generation.finished().unwrap();
    assert_eq!((finished.reason, finished.stop), (FinishReason::Stop, Some(1)), "the second");
}

/// A request that draws one token again and again.
fn forced(token: u32, sampling: Sampling) -> Request {
    Request::new(prompt(5, 1), Sampling { logit_bias: vec![(token, 100.0)], ..sampling })
}

#[test]
fn text_held_for_a_stop_string_comes_out_at_the_end() {
    let letter = model().tokenizer.encode_text("a").unwrap()[0];
    // "a" may begin the stop string "ab", so it is held back until the answer ends.
    let sampling = Sampling { stop: vec!["ab".to_owned()], ..greedy(1) };
    assert_eq!(text(&generate(&mut engine(), forced(letter, sampling.clone()))), "a");
    let free =
        generate(&mut engine(), forced(letter, Sampling { max_tokens: Some(3), ..sampling }));
    assert_eq!(free.iter().map(|t| t.text.as_str()).collect::<Vec<_>>(), ["", "a", "aa"]);
    // The same if an end token, not the length, ends it: one "a", then the end.
    let end = model().tokenizer.encode_text("z").unwrap()[0];
    let sampling = Sampling {
        stop: vec!["ab".to_owned()],
        stop_ids: vec![end],
        min_tokens: 1,
        logit_bias: vec![(letter, 90.0), (end, 100.0)],
        ..greedy(5)
    };
    let ended = generate(&mut engine(), Request::new(prompt(5, 1), sampling));
    assert_eq!((ids(&ended), text(&ended).as_str()), (vec![letter, end], "a"));
}

#[test]
fn special_tokens_are_no_text() {
    let special = model().tokenizer.id_of("<|im_start|>").unwrap();
    let tokens = generate(&mut engine(), forced(special, greedy(3)));
    assert_eq!((ids(&tokens), text(&tokens).as_str()), (vec![special; 3], ""));
}

#[test]
fn the_context_ends_the_answer() {
    let sampling = Sampling { max_tokens: None, ..greedy(1) };
    let mut engine = engine();
    let mut generation = engine.generate(Request::new(prompt(190, 1), sampling)).unwrap();
    assert_eq!(generation.by_ref().count(), CONTEXT - 190);
    assert_eq!(generation.finished().unwrap().reason, FinishReason::Length);
}

#[test]
fn an_echoed_prompt_has_the_log_probabilities_it_would_be_generated_with() {
    let sampling = Sampling { logprobs: Some(3), ..greedy(10) };
    let answer = generate(&mut engine(), Request::new(prompt(9, 2), sampling.clone()));
    // The same tokens again, all of them as a prompt now.
    let mut whole = prompt(9, 2);
    whole.extend(ids(&answer));
    let echo = Sampling { echo: true, max_tokens: Some(0), ..sampling };
    let echoed = generate(&mut engine(), Request::new(whole.clone(), echo));
    assert_eq!(ids(&echoed), whole);
    assert_eq!(echoed[0].logprobs, None);
    assert!(echoed[1].logprobs.is_some());
    let of_answer: Vec<_> = answer.iter().map(|token| token.logprobs.clone()).collect();
    let of_echo: Vec<_> = echoed[9..].iter().map(|token| token.logprobs.clone()).collect();
    assert_eq!(of_answer, of_echo);
    assert!(answer.iter().all(|t| t.logprobs.as_ref().unwrap().top[0].0 == t.id), "greedy");
    let tokenizer = &model().tokenizer;
    assert_eq!(text(&echoed), tokenizer.decode(&whole, false));
}

/// The log-probabilities beside an answer: those of an echo, with ranks, however much of the prompt
/// is cached.
#[test]
fn a_prompt_has_log_probabilities_beside_its_answer() {
    let mut engine = engine();
    let tokens = prompt(50, 2);
    let echo = Sampling { echo: true, logprobs: Some(3), ..greedy(4) };
    let echoed = generate(&mut engine, Request::new(tokens.clone(), echo));
    let plain = generate(&mut engine, Request::new(tokens.clone(), greedy(4)));
    for _ in 0..2 {
        let sampling = Sampling { prompt_logprobs: Some(3), ..greedy(4) };
        let request = Request::new(tokens.clone(), sampling);
        let done = engine.generate_batch(vec![request]).unwrap().remove(0);
        assert_eq!(ids(&done.tokens), ids(&plain), "the answer is the same");
        assert_eq!(done.ending.unwrap().stats.cached_tokens, 0);
        assert_eq!(done.prompt.iter().map(|token| token.id).collect::<Vec<_>>(), tokens);
        assert_eq!(done.prompt[0].prediction, None);
        for (token, echoed) in done.prompt.iter().zip(&echoed).skip(1) {
            let found = token.prediction.as_ref().unwrap();
            assert_eq!(Some(&found.logprobs), echoed.logprobs.as_ref());
            let place = found.logprobs.top.iter().position(|(id, _)| *id == token.id);
            assert_eq!(place.map(|place| place + 1), Some(found.rank).filter(|rank| *rank <= 3));
        }
    }
    let both = Sampling { echo: true, prompt_logprobs: Some(0), ..greedy(2) };
    let done = engine.generate_batch(vec![Request::new(tokens, both)]).unwrap().remove(0);
    assert_eq!((done.tokens.len(), done.prompt.len()), (52, 50));
    assert!(done.tokens.iter().all(|token| token.logprobs.is_none()));
    assert!(done.prompt[1].prediction.as_ref().unwrap().logprobs.top.is_empty());
}

#[test]
fn how_a_prompt_is_cut_into_steps_does_not_show() {
    let tokens = |step_tokens| {
        generate(&mut engine_with(8, step_tokens), Request::new(prompt(150, 3), drawn(1, 20)))
    };
    assert_eq!(tokens(8), tokens(160));
}

#[test]
fn what_cannot_run_is_refused_with_its_numbers() {
    let mut engine = engine_with(1, 32);
    let mut refuse = |tokens: Vec<u32>, sampling: Sampling| -> String {
        engine.add(Request::new(tokens, sampling)).unwrap_err().to_string()
    };
    assert!(refuse(vec![], greedy(1)).contains("no tokens"));
    let long = refuse(prompt(200, 1), greedy(1));
    assert!(long.contains("200 tokens") && long.contains("holds 200"), "{long}");
    let vocab = model().tokenizer.vocab_size();
    assert!(refuse(vec![vocab], greedy(1)).contains(&format!("token {vocab} ")));
    assert!(refuse(prompt(5, 1), Sampling { top_p: 0.0, ..greedy(1) }).contains("top_p"));
    let room = refuse(prompt(60, 1), greedy(10));
    assert!(room.contains("2 KV pages") && room.contains("1 of 1"), "{room}");
    let batch = engine.generate_batch(vec![Request::new(prompt(60, 1), greedy(10))]);
    assert!(matches!(batch, Err(GenerateError::Request(RequestError::NoRoom(_)))));
}

#[test]
fn a_ninth_lane_waits_and_padding_is_never_drawn() {
    let mut engine = engine();
    for i in 0..MAX_LANES as u32 {
        engine.add(Request::new(prompt(3, i), drawn(u64::from(i), 40))).unwrap();
    }
    let ninth = engine.add(Request::new(prompt(3, 9), greedy(4)));
    assert!(matches!(ninth, Err(RequestError::NoLane)));
    let mut done = 0;
    while engine.running() > 0 {
        for event in engine.step().unwrap() {
            match event {
                Event::Token { token, .. } => assert!(token.id < model().tokenizer.vocab_size()),
                Event::Done { .. } => done += 1,
                Event::Failed { error, .. } => panic!("{error}"),
                Event::Prefill { .. } | Event::Prompt { .. } | Event::Read { .. } => {}
            }
        }
    }
    assert_eq!(done, MAX_LANES);
    engine.add(Request::new(prompt(3, 9), greedy(4))).unwrap();
}

/// With 40 pages, so that much is evicted, loaded again and recomputed.
#[test]
fn an_exact_answer_is_the_cold_one_whatever_is_kept() {
    let model = model();
    let limits = Limits { step_tokens: 96, step_outputs: MAX_LANES + 3, positions: 512, pages: 40 };
    let size = Size { limits, rounds: 6, longest_prompt: 400, longest_answer: 40 };
    let make = |limits| -> Box<dyn Device> {
        reference::open(&model.config, &*model.weights, limits).unwrap()
    };
    for seed in 0..4 {
        answers_are_the_cold_ones(&model, &make, &make, size, seed);
    }
}

#[test]
fn drafts_change_nothing_on_the_reference() {
    let model = model();
    let limits = Limits { step_tokens: 96, step_outputs: MAX_LANES, positions: 512, pages: 120 };
    let size = Size { limits, rounds: 8, longest_prompt: 300, longest_answer: 60 };
    let make = |limits| -> Box<dyn Device> {
        reference::open(&model.config, &*model.weights, limits).unwrap()
    };
    for seed in 0..6 {
        drafts_change_nothing(&model, &make, size, seed);
    }
}

#[test]
fn a_text_is_scored_as_an_answer_is_and_padding_comes_with_it() {
    let tokens = prompt(90, 4);
    let vocab = model().tokenizer.vocab_size() as usize;
    for from in [1, 2, 45, 89] {
        let mut engine = engine();
        let before: Composition = tokens[..from].to_vec().into();
        let wanted = engine.score(&before, &tokens[from..], false).unwrap();
        let rows: Vec<Vec<f32>> =
            engine.score_text(&tokens, from).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), tokens.len() - from);
        assert!(rows.iter().all(|row| row.len() == vocab + 7));
        let cut: Vec<&[f32]> = rows.iter().map(|row| &row[..vocab]).collect();
        assert_eq!(cut, wanted, "from {from}");
        assert_eq!(engine.running(), 0);
    }
    let mut engine = engine();
    // As many tokens as the context: the last one is drawn and never run.
    assert_eq!(engine.score_text(&prompt(CONTEXT, 5), 190).unwrap().count(), CONTEXT - 190);
    drop(engine.score_text(&tokens, 5).unwrap().next());
    assert_eq!(engine.running(), 0, "a lane whose rows nobody takes ends");
}
