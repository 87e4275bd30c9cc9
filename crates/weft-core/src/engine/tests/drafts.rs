//! Drafts inside the engine: places, pages, rows, events, models that draft. That drafts change no
//! answer is a property of every device (`weft_testing::drafts`).

use std::sync::Mutex;

use super::ahead::{ahead_engine, outcomes, request};
use super::wrapped::{wrapped, wrapped_results};
use super::*;
use crate::device::MAX_DRAFT;
use crate::kv::pages_for;

/// Records the tokens of each lane of each step that has a draft.
struct Recorder {
    device: Box<dyn Device>,
    drafts: Arc<Mutex<Vec<Vec<usize>>>>,
}

impl Device for Recorder {
    wrapped!();
    wrapped_results!();

    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        self.device.run(ops, step)
    }

    fn decode(
        &mut self,
        ops: &[Op],
        step: &Step<'_>,
        samplers: &[Option<&Sampler>],
        ahead: usize,
    ) -> Result<(), DeviceError> {
        let drafts = |(lane, sampler): (&Lane<'_>, &Option<&Sampler>)| {
            sampler.is_some() && lane.n_outputs() > 1
        };
        if step.lanes.iter().zip(samplers).any(drafts) {
            assert_eq!(ahead, 0, "nothing can be started before a draft is verified");
            let tokens = step.lanes.iter().map(|lane| lane.tokens.len()).collect();
            self.drafts.lock().unwrap().push(tokens);
        }
        self.run(ops, step)
    }
}

fn recorded(pages: usize) -> (Engine, Arc<Mutex<Vec<Vec<usize>>>>) {
    let model = model();
    let limits = Limits { step_tokens: 64, step_outputs: 8, positions: CONTEXT, pages };
    let device = reference::open(&model.config, &*model.weights, limits).unwrap();
    let drafts = Arc::default();
    let device = Recorder { device, drafts: Arc::clone(&drafts) };
    (Engine::new(&model, Box::new(device)), drafts)
}

fn greedy(max_tokens: usize) -> Sampling {
    Sampling { max_tokens: Some(max_tokens), ..sampling() }
}

/// The ids of a plain answer.
fn plain(prompt: &Composition, sampling: Sampling) -> Vec<u32> {
    let mut engine = engine();
    engine.set_speculation(Speculate::Off);
    let (tokens, finished) = answer(&mut engine, Request::new(prompt.clone(), sampling).cold());
    assert_eq!(finished.stats.speculation, Speculation::default());
    tokens.iter().map(|token| token.id).collect()
}

fn drafted(prompt: &Composition, sampling: Sampling, n: usize, prediction: Vec<u32>) -> Request {
    let mut request = Request::new(prompt.clone(), sampling);
    request.speculate = Some(Speculate::Fixed(n));
    request.prediction = Some(prediction);
    request
}

#[test]
fn a_right_draft_takes_one_step_for_all_its_tokens_and_is_reported() {
    let prompt = exact(&[1], 0);
    let truth = plain(&prompt, greedy(61));
    let (mut engine, drafts) = recorded(40);
    let lane = engine.add(drafted(&prompt, greedy(61), 5, truth.clone())).unwrap();
    let (mut ids, mut sources) = (Vec::new(), Vec::new());
    let finished = loop {
        let events = engine.step().unwrap();
        let n = events.iter().filter(|event| matches!(event, Event::Token { .. })).count();
        assert!(n <= 6, "a draft of five and the token after it");
        let mut done = None;
        for event in events {
            assert_eq!(event.lane(), lane);
            match event {
                Event::Token { token, drafted, .. } => {
                    ids.push(token.id);
                    sources.push(drafted);
                }
                Event::Done { finished, .. } => done = Some(finished),
                _ => {}
            }
        }
        if let Some(finished) = done {
            break finished;
        }
    };
    assert_eq!(ids, truth);
    // The first token comes from the prompt; then ten steps of six tokens each.
    assert_eq!(*drafts.lock().unwrap(), vec![vec![6]; 10]);
    let counts = DraftCounts { drafted: 50, accepted: 50 };
    assert_eq!(finished.stats.speculation.prediction, counts);
    assert_eq!(finished.stats.speculation.total(), counts);
    let of_prediction = sources.iter().filter(|s| **s == Some(DraftSource::Prediction)).count();
    assert_eq!((of_prediction, sources[0], sources[6]), (50, None, None));
}

#[test]
fn lanes_share_the_places_of_a_step() {
    let prompts: Vec<Composition> = (0..5).map(|kind| exact(&[kind], kind)).collect();
    // The first lane goes on alone.
    let lengths = [90, 40, 40, 40, 40];
    let pairs = prompts.iter().zip(lengths);
    let truths: Vec<Vec<u32>> = pairs.map(|(p, n)| plain(p, greedy(n))).collect();
    let (mut engine, drafts) = recorded(80);
    let triples = prompts.iter().zip(lengths).zip(&truths);
    let request = |((prompt, n), truth): ((_, usize), &Vec<u32>)| {
        drafted(prompt, greedy(n), 7, truth.clone())
    };
    let answers = engine.generate_batch(triples.map(request).collect()).unwrap();
    for (answer, truth) in answers.iter().zip(&truths) {
        let ids: Vec<u32> = answer.tokens.iter().map(|token| token.id).collect();
        assert_eq!(ids, *truth);
    }
    let drafts = drafts.lock().unwrap();
    assert!(drafts.iter().all(|lanes| lanes.iter().sum::<usize>() <= MAX_DRAFT), "{drafts:?}");
    let all: Vec<&Vec<usize>> = drafts.iter().filter(|lanes| lanes.len() == 5).collect();
    assert!(!all.is_empty() && all.iter().all(|lanes| lanes.iter().all(|n| *n <= 2)), "{all:?}");
    assert!(drafts.contains(&vec![8]), "a lane alone has all places: {drafts:?}");
    for lane in 0..5 {
        let n = all.iter().filter(|lanes| lanes[lane] == 2).count();
        assert!(2 * n >= all.len(), "lanes take turns: {all:?}");
    }
}

/// Answers that fill their last page to the last row: a draft takes no page that was not promised.
#[test]
fn drafts_stay_within_the_promised_pages() {
    for (n_prompt, max_tokens) in [(60, 5), (60, 4), (61, 68), (64, 64), (63, 66), (10, 120)] {
        let prompt = Composition::from(tokens(n_prompt, 3));
        let truth = plain(&prompt, greedy(max_tokens));
        for right in [true, false] {
            let prediction = match right {
                true => truth.clone(),
                false => truth.iter().map(|token| token ^ 1).collect(),
            };
            // As many pages as the prompt and the longest answer take, and no more.
            let pages = pages_for(n_prompt) + pages_for(n_prompt % 64 + max_tokens);
            let (mut engine, drafts) = recorded(pages);
            let request = drafted(&prompt, greedy(max_tokens), 7, prediction);
            let ids: Vec<u32> = answer(&mut engine, request).0.iter().map(|t| t.id).collect();
            assert_eq!(ids, truth, "{n_prompt}, {max_tokens}, {right}");
            assert!(!drafts.lock().unwrap().is_empty());
            engine.cache.check(&[]);
            assert_eq!(engine.cache.n_promised(), 0);
        }
    }
}

/// Rows of rejected tokens are not kept: what follows a cancelled answer is as if it were cold.
#[test]
fn rejected_rows_are_never_kept() {
    let prompt = exact(&[2], 1);
    let truth = plain(&prompt, greedy(90));
    for stop_after in [1, 7, 30, 62, 70] {
        let (mut engine, _) = recorded(60);
        // Every third token is wrong.
        let wrong = |(i, token): (usize, &u32)| if i % 3 == 2 { token ^ 1 } else { *token };
        let prediction = truth.iter().enumerate().map(wrong).collect();
        let request = drafted(&prompt, greedy(90), 7, prediction);
        let cancel = request.cancel.clone();
        engine.add(request).unwrap();
        let mut said = Vec::new();
        while said.len() < stop_after {
            said.extend(engine.step().unwrap().into_iter().filter_map(|event| match event {
                Event::Token { token, .. } => Some(token.id),
                _ => None,
            }));
        }
        cancel.cancel();
        let events = engine.step().unwrap();
        let [Event::Done { finished, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(finished.stats.generated_tokens, said.len());
        assert_eq!(said, truth[..said.len()]);
        engine.cache.check(&[]);
        assert_eq!(engine.cache.n_promised(), 0);
        let mut turn = prompt.clone();
        turn.pieces.push(Piece::exact(Kind::Context, said));
        turn.pieces.push(query(4));
        let (again, finished) = ask(&mut engine, &turn);
        assert_eq!(again, cold(&turn), "after {stop_after}");
        assert!(finished.stats.cached_tokens + 12 > prompt.len() + stop_after, "rows were kept");
    }
}

/// A device that chooses tokens by itself, every one or all but some, and starts steps early.
#[test]
fn a_device_that_chooses_verifies_as_the_sampler_does() {
    for (kinds, leaves) in
        [(vec![0], 1000), (vec![1, 4], 5), (vec![3, 2, 6], 1000), (vec![5, 6], 7)]
    {
        let requests = || -> Vec<Request> { kinds.iter().copied().map(request).collect() };
        let mut theirs = engine();
        theirs.set_speculation(Speculate::Off);
        let truth = outcomes(&mut theirs, requests());
        for right in [0, 2, 3, 1000] {
            let (mut ours, _) = ahead_engine(leaves);
            let mut asked = requests();
            for (request, (tokens, ..)) in asked.iter_mut().zip(&truth) {
                let wrong = |(i, token): (usize, &Token)| {
                    if right == 0 || i % right == right - 1 { token.id ^ 1 } else { token.id }
                };
                request.prediction = Some(tokens.iter().enumerate().map(wrong).collect());
                request.speculate = Some(Speculate::Fixed(4));
            }
            assert_eq!(outcomes(&mut ours, asked), truth, "{kinds:?}, {right}");
        }
    }
}

fn with_draft_model(seed: u64) -> (Engine, Arc<Mutex<Vec<Vec<usize>>>>) {
    let (mut engine, drafts) = recorded(60);
    let model = model();
    let model = Model::random(model.config.clone(), seed, Arc::clone(&model.tokenizer));
    let limits = Limits { step_tokens: 24, step_outputs: 8, positions: CONTEXT, pages: 20 };
    let device = reference::open(&model.config, &*model.weights, limits).unwrap();
    engine.set_draft_model(&model, device).unwrap();
    (engine, drafts)
}

#[test]
fn a_draft_model_drafts_what_its_model_would_say_and_gives_its_pages_back() {
    let prompts: Vec<Composition> = (0..2).map(|kind| exact(&[kind], kind)).collect();
    let drawn = || Sampling { temperature: 0.9, seed: 5, ..greedy(70) };
    for (seed, sampling) in [(3, greedy(70)), (3, drawn()), (4, greedy(70)), (4, drawn())] {
        let (mut engine, _) = with_draft_model(seed);
        let truths: Vec<Vec<u32>> = prompts.iter().map(|p| plain(p, sampling.clone())).collect();
        let mut request = |prompt: &Composition| {
            let mut request = Request::new(prompt.clone(), sampling.clone());
            request.speculate = Some(Speculate::Fixed(3));
            request
        };
        let requests: Vec<Request> = prompts.iter().map(&mut request).collect();
        let answers = engine.generate_batch(requests).unwrap();
        for (answer, truth) in answers.iter().zip(&truths) {
            let ids: Vec<u32> = answer.tokens.iter().map(|token| token.id).collect();
            assert_eq!(ids, *truth);
            let counts = answer.ending.as_ref().unwrap().stats.speculation.model;
            // The same weights say the same, drawn or not.
            assert_eq!(seed == 3, counts.accepted == counts.drafted, "{counts:?}");
            assert!(counts.drafted > 20, "{counts:?}");
        }
        assert_eq!(engine.speculating.free_draft_pages(), Some(20));
    }
}

#[test]
fn a_draft_model_that_is_never_right_is_left_alone() {
    let (mut engine, drafts) = with_draft_model(4);
    let prompt = exact(&[1], 0);
    // Drawn at random, so that neither the model nor the context can guess it.
    let sampling = Sampling { temperature: 3.0, seed: 1, ..greedy(500) };
    let truth = plain(&prompt, sampling.clone());
    let (tokens, finished) = answer(&mut engine, Request::new(prompt, sampling));
    assert_eq!(tokens.iter().map(|token| token.id).collect::<Vec<_>>(), truth);
    let n = drafts.lock().unwrap().len();
    assert!(n < 40, "{n} drafts in 500 tokens, {:?}", finished.stats.speculation);
}

#[test]
fn a_draft_model_has_the_same_tokens() {
    let (mut engine, _) = recorded(20);
    let own = model();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny/tokenizer.json");
    let other = Model { tokenizer: Arc::new(Tokenizer::from_file(file).unwrap()), ..model() };
    let limits = Limits { step_tokens: 24, step_outputs: 8, positions: CONTEXT, pages: 20 };
    let device = reference::open(&own.config, &*own.weights, limits).unwrap();
    let error = engine.set_draft_model(&other, device).unwrap_err();
    assert!(error.to_string().contains("same family"), "{error}");
}

/// The context drafts for answers that repeat it, and its indexes are counted and forgotten.
#[test]
fn chunks_are_indexed_once_and_counted() {
    let mut engine = engine();
    let chunk = chunk_of(document(1));
    let mut prompt = exact(&[1], 0);
    prompt.pieces[1].chunk = Some(engine.register(chunk));
    let id = prompt.pieces[1].chunk.unwrap();
    assert_eq!(engine.cache_stats().draft_index_bytes, 0);
    let mut bytes = 0;
    for _ in 0..2 {
        answer(&mut engine, Request::new(prompt.clone(), greedy(3)));
        let now = engine.cache_stats().draft_index_bytes;
        assert!(now > 0 && (bytes == 0 || now == bytes), "{now} after {bytes}");
        bytes = now;
    }
    engine.delete(&id).unwrap();
    assert_eq!(engine.cache_stats().draft_index_bytes, 0);
}
