//! Lanes beside one another: sharing, waiting and taking over never change the answers.

use super::*;

/// An event while lanes run.
#[derive(Clone, Debug)]
enum Doing {
    Add { documents: Vec<u32>, keep: usize, reuse: Reuse, repair: Repair },
    Step(usize),
    Cancel(usize),
    Forget(u32),
    Verify(u32),
}

fn doings() -> impl Strategy<Value = Vec<Doing>> {
    let documents = prop::collection::vec(0_u32..4, 0..4);
    let reuse = prop::sample::select(&Reuse::ALL[..]);
    let repair = prop::sample::select(vec![Repair::None, Repair::Link(16), Repair::Blend(0.3, 1)]);
    let doing = prop_oneof![
        6 => (documents, 1_usize..400, reuse, repair).prop_map(
            |(documents, keep, reuse, repair)| Doing::Add { documents, keep, reuse, repair }
        ),
        5 => (1_usize..6).prop_map(Doing::Step),
        2 => (0_usize..8).prop_map(Doing::Cancel),
        1 => (0_u32..4).prop_map(Doing::Forget),
        1 => (0_u32..4).prop_map(Doing::Verify),
    ];
    prop::collection::vec(doing, 1..24)
}

/// The first `keep` tokens of a composition.
fn cut(mut prompt: Composition, keep: usize) -> Composition {
    let mut room = keep;
    for piece in &mut prompt.pieces {
        piece.tokens.truncate(room);
        room -= piece.tokens.len();
    }
    prompt.pieces.retain(|piece| !piece.tokens.is_empty());
    prompt
}

/// A lane of the test: its prompt, and its answer up to now.
struct Asked {
    prompt: Composition,
    cancel: Cancel,
    said: Vec<Token>,
}

fn take_in(events: Vec<Event>, asked: &mut HashMap<LaneId, Asked>) -> Vec<Asked> {
    let mut done = Vec::new();
    for event in events {
        match event {
            Event::Token { lane, token, .. } => asked.get_mut(&lane).unwrap().said.push(token),
            Event::Done { lane, finished } => {
                let asked = asked.remove(&lane).unwrap();
                let report = &finished.report;
                assert!(finished.stats.cached_tokens <= asked.prompt.len());
                if finished.reason != FinishReason::Cancelled {
                    let sum: f64 = report.pieces.iter().map(|piece| piece.attention).sum();
                    assert!((sum + report.answer_attention - 1.0).abs() < 1e-5, "{sum}");
                    done.push(asked);
                }
            }
            Event::Prefill { .. } | Event::Prompt { .. } | Event::Read { .. } => {}
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }
    done
}

#[test]
fn lanes_that_come_and_go_say_what_they_would_say_alone() {
    let truths: RefCell<HashMap<String, Vec<Token>>> = RefCell::default();
    let check = |done: Vec<Asked>| {
        for Asked { prompt, said, .. } in done {
            let mut truths = truths.borrow_mut();
            let truth = truths.entry(format!("{prompt:?}")).or_insert_with(|| cold(&prompt));
            assert_eq!(&said, truth, "{prompt:?}");
        }
    };
    let cases = (doings(), prop::sample::select(vec![16_usize, 24, 60]));
    TestRunner::new(Cases::with_cases(48))
        .run(&cases, |(doings, pages)| {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(folder.path(), 300_000).unwrap();
            let mut engine = engine_with(
                pages,
                Tiers { ram_bytes: 60_000, store: Some(store), ..Tiers::default() },
            );
            let mut asked = HashMap::new();
            for doing in doings {
                match doing {
                    Doing::Add { documents, keep, reuse, repair } => {
                        let prompt = cut(composition(&documents, 0, reuse, repair), keep);
                        let request = Request::new(prompt.clone(), sampling());
                        let cancel = request.cancel.clone();
                        if let Ok(lane) = engine.add(request) {
                            asked.insert(lane, Asked { prompt, cancel, said: Vec::new() });
                        }
                    }
                    Doing::Step(n) => {
                        for _ in 0..n {
                            check(take_in(engine.step().unwrap(), &mut asked));
                        }
                    }
                    Doing::Cancel(nth) => {
                        let mut lanes: Vec<_> = asked.iter().collect();
                        lanes.sort_by_key(|(lane, _)| **lane);
                        if let Some((_, lane)) = lanes.get(nth) {
                            lane.cancel.cancel();
                        }
                    }
                    Doing::Forget(seed) => engine.cache.forget(&chunk_of(document(seed))),
                    Doing::Verify(seed) => {
                        if let Ok(found) = engine.verify(&exact(&[seed], 1), &tokens(4, 9)) {
                            assert!(found.is_exact());
                        }
                    }
                }
                engine.cache.check(&engine.lane_pages());
            }
            for _ in 0..400 {
                check(take_in(engine.step().unwrap(), &mut asked));
            }
            assert!(asked.is_empty(), "a lane never ended");
            engine.cache.check(&[]);
            assert_eq!(engine.cache.n_promised(), 0);
            Ok(())
        })
        .unwrap();
}

/// A lane's answer, the step in which it ended, and its cached tokens.
#[derive(Default)]
struct Said {
    tokens: Vec<Token>,
    end: usize,
    cached: usize,
}

/// Runs all lanes to their end.
fn run_all(engine: &mut Engine) -> HashMap<LaneId, Said> {
    let said = run(engine, 400);
    assert_eq!(engine.running(), 0);
    said
}

/// Runs a number of steps.
fn run(engine: &mut Engine, n_steps: usize) -> HashMap<LaneId, Said> {
    let mut said: HashMap<LaneId, Said> = HashMap::new();
    for step in 0..n_steps {
        for event in engine.step().unwrap() {
            let said = said.entry(event.lane()).or_default();
            match event {
                Event::Token { token, .. } => said.tokens.push(token),
                Event::Done { finished, .. } => {
                    (said.end, said.cached) = (step, finished.stats.cached_tokens);
                }
                _ => {}
            }
        }
        engine.cache.check(&engine.lane_pages());
    }
    said
}

#[test]
fn a_paused_lane_leaves_its_nodes_to_others() {
    let mut engine = engine();
    let prompt = |question| Composition {
        pieces: vec![Piece::exact(Kind::Context, tokens(300, 3)), query(question)],
        repair: Repair::None,
    };
    let paused = engine.add(Request::new(prompt(1), sampling())).unwrap();
    // 64 tokens per step: it stops in the middle of the document.
    run(&mut engine, 2);
    let other = engine.add(Request::new(prompt(2), sampling())).unwrap();
    engine.pause(paused, true);
    let said = run(&mut engine, 100);
    assert_eq!(said.get(&other).map(|said| &said.tokens), Some(&cold(&prompt(2))));
    assert!(!said.contains_key(&paused));
    engine.pause(paused, false);
    assert_eq!(run_all(&mut engine)[&paused].tokens, cold(&prompt(1)));
}

#[test]
fn a_step_says_if_it_ran_no_lane_and_waited_for_nothing() {
    let mut engine = engine();
    engine.add(Request::new(Composition::from(tokens(100, 3)), sampling())).unwrap();
    engine.step().unwrap();
    assert!(!engine.was_idle());
    // Somebody who is not there computes the rest.
    let node = engine.lanes[0].nodes[0].node;
    let filler = engine.cache.node_mut(node).filler.replace(LaneId(999));
    engine.step().unwrap();
    assert!(engine.was_idle() && engine.has_work());
    engine.cache.node_mut(node).filler = filler;
    engine.step().unwrap();
    assert!(!engine.was_idle());
}

#[test]
fn a_lane_that_needs_the_begin_of_a_node_takes_over_no_more_than_that() {
    // The node fits one step; the end of the second prompt lies in its middle.
    let whole = Composition::from(tokens(60, 3));
    let begin = Composition::from(tokens(40, 3));
    let mut engine = engine();
    let first = Request::new(whole.clone(), sampling());
    let cancel = first.cancel.clone();
    engine.add(first).unwrap();
    let second = engine.add(Request::new(begin.clone(), sampling())).unwrap();
    cancel.cancel();
    let said = run_all(&mut engine);
    assert_eq!((&said[&second].tokens, said[&second].cached), (&cold(&begin), 0));
    // Its rows are cached for a longer prompt.
    let (again, finished) = ask(&mut engine, &whole);
    assert_eq!((again, finished.stats.cached_tokens), (cold(&whole), 40));
}

#[test]
fn who_needs_more_of_a_node_does_not_wait_for_the_answer_of_who_needs_less() {
    let mut engine = engine();
    let first = Request::new(Composition::from(tokens(150, 3)), sampling());
    let cancel = first.cancel.clone();
    engine.add(first).unwrap();
    let long = Sampling { max_tokens: Some(60), ..sampling() };
    let begin = engine.add(Request::new(Composition::from(tokens(40, 3)), long)).unwrap();
    let whole = Composition::from(tokens(150, 3));
    let all = engine.add(Request::new(whole.clone(), sampling())).unwrap();
    cancel.cancel();
    let said = run_all(&mut engine);
    let (begin, all) = (&said[&begin], &said[&all]);
    assert_eq!((&all.tokens, all.cached), (&cold(&whole), 0));
    assert!(all.end < 20 && begin.end > 50, "{} {}", all.end, begin.end);
}

#[test]
fn what_was_computed_of_a_cancelled_prompt_is_kept() {
    let mut engine = engine();
    let prompt = Composition::from(tokens(200, 3));
    let request = Request::new(prompt.clone(), sampling());
    let cancel = request.cancel.clone();
    engine.add(request).unwrap();
    (0..2).for_each(|_| drop(engine.step().unwrap()));
    cancel.cancel();
    engine.step().unwrap();
    engine.cache.check(&[]);
    // 64 tokens per step, in pages of 64: the rest of the node is free again.
    assert_eq!(engine.cache_stats().device.tokens, 128);
    let (said, finished) = ask(&mut engine, &prompt);
    assert_eq!((said, finished.stats.cached_tokens), (cold(&prompt), 128));
}

#[test]
fn repairs_depend_on_what_stands_before_alone() {
    let moved = |seed| Piece { reuse: Reuse::Isolated, ..document(seed) };
    for repair in [Repair::Link(16), Repair::Blend(0.3, 1)] {
        let short = Composition { pieces: vec![system(), moved(1), query(1)], repair };
        let pieces = vec![system(), moved(1), query(1), moved(2), moved(3), query(2)];
        let long = Composition { pieces, repair };
        let mut engine = engine();
        ask(&mut engine, &short);
        let (said, finished) = ask(&mut engine, &long);
        assert_eq!(finished.stats.cached_tokens, short.len(), "{repair}");
        assert_eq!(said, cold(&long), "{repair}");
        let repaired = |n: usize| finished.report.pieces[n].repaired_tokens;
        assert!(repaired(1) > 0 && repaired(3) + repaired(4) > 0 && repaired(2) == 0);
    }
}

#[test]
fn events_beside_a_verification_or_an_answer_are_reported_later() {
    let mut engine = engine();
    let prompt = exact(&[1], 1);
    let lane = engine.add(Request::new(prompt.clone(), sampling())).unwrap();
    assert!(engine.verify(&exact(&[2], 1), &tokens(20, 9)).unwrap().is_exact());
    assert_eq!(ask_beside(&mut engine, &exact(&[3], 1)), cold(&exact(&[3], 1)));
    let batch = vec![Request::new(exact(&[2], 2), sampling())];
    assert_eq!(engine.generate_batch(batch).unwrap()[0].tokens, cold(&exact(&[2], 2)));
    assert_eq!(run_all(&mut engine)[&lane].tokens, cold(&prompt));
}

fn ask_beside(engine: &mut Engine, prompt: &Composition) -> Vec<Token> {
    answer(engine, Request::new(prompt.clone(), sampling())).0
}

#[test]
fn an_echo_in_a_batch_waits_for_the_room_that_it_needs() {
    // Six pages: the rows of the first request serve the second, but not one that echoes.
    let mut engine = engine_with(6, Tiers::default());
    let prompt = Composition::from(tokens(200, 3));
    ask(&mut engine, &prompt);
    let echo = Sampling { echo: true, ..sampling() };
    let requests = vec![
        Request::new(prompt.clone(), sampling()),
        Request::new(prompt.clone(), echo),
        Request::new(prompt.clone(), sampling()),
    ];
    let done = engine.generate_batch(requests).unwrap();
    let truth = cold(&prompt);
    assert_eq!((&done[0].tokens, &done[2].tokens), (&truth, &truth));
    assert_eq!(done[1].tokens[prompt.len()..], truth);
    assert_eq!(engine.running(), 0);
    engine.cache.check(&[]);
}

#[test]
fn an_answer_that_fills_the_context_can_be_verified() {
    let mut engine = engine();
    let prompt = Composition::from(tokens(CONTEXT - 3, 3));
    let said: Vec<u32> = ask(&mut engine, &prompt).0.iter().map(|token| token.id).collect();
    assert_eq!(said.len(), 3);
    for n in 0..=3 {
        let found = engine.verify(&prompt, &said[..n]).unwrap();
        assert!(found.is_exact() && found.tokens == n);
    }
}

#[test]
fn what_is_answered_attends_to_everything_and_empty_pieces_are_nothing() {
    let approximate = |seed| Piece { reuse: Reuse::Isolated, ..document(seed) };
    let empty = Piece { reuse: Reuse::Isolated, ..Piece::exact(Kind::Context, Vec::new()) };
    let pieces = vec![system(), approximate(1), empty.clone(), approximate(2)];
    let prompt = Composition { pieces, repair: Repair::None };
    let mut asked = prompt.clone();
    asked.pieces.remove(2);
    asked.pieces[2].reuse = Reuse::Exact;
    let mut engine = engine();
    let (said, finished) = ask(&mut engine, &prompt);
    assert_eq!(said, cold(&asked));
    assert_eq!(finished.report.pieces.len(), 3);
    let said: Vec<u32> = said.iter().map(|token| token.id).collect();
    let logits = engine.score(&prompt, &said, true).unwrap();
    assert_eq!(logits, engine.score(&asked, &said, false).unwrap());
    let most_likely =
        |row: &Vec<f32>| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
    assert_eq!(logits.iter().map(most_likely).collect::<Vec<_>>(), said);
    engine.warm(&Composition { pieces: vec![empty], repair: Repair::None }).unwrap();
    engine.warm(&prompt).unwrap();
}

#[test]
fn a_chunk_that_begins_like_another_text_is_forgotten_to_its_end() {
    let mut engine = engine();
    let mut other = exact(&[1], 1);
    ask(&mut engine, &other);
    let tail = other.pieces[1].tokens.len() - 40;
    other.pieces[1].tokens[40..].iter_mut().for_each(|token| *token += 1);
    let chunk = chunk_of(other.pieces[1].clone());
    other.pieces[1].chunk = Some(chunk.id);
    let (_, finished) = ask(&mut engine, &other);
    assert_eq!(finished.stats.cached_tokens, 20 + 40, "{tail} tokens are its own");
    engine.cache.forget(&chunk);
    engine.cache.check(&[]);
    assert_eq!(engine.preview(&other).pieces[1].cached_tokens, 0);
}
