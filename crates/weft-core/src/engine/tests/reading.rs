//! Requests that read their prompt's last token: the same bits alone, in a batch, cached or cold;
//! what they leave in the cache; and what runs beside them.

use super::*;
use crate::device::Lane as DeviceLane;
use crate::plan::plan;

/// What a request reads.
fn read(engine: &mut Engine, request: Request) -> (Vec<f32>, Finished) {
    let mut done = engine.generate_batch(vec![request]).unwrap();
    engine.cache.check(&[]);
    assert_eq!(engine.cache.n_promised(), 0);
    let Completion { values, ending, tokens, .. } = done.remove(0);
    assert!(tokens.is_empty(), "a request that reads writes nothing");
    (values, ending.unwrap())
}

fn state(prompt: &Composition) -> Request {
    Request::read(prompt.clone(), Reading::State)
}

/// A prefix that others share, and the rest.
fn passage(prefix: usize, rest: usize, seed: u32) -> Composition {
    let pieces = [(Kind::Context, tokens(prefix, 2)), (Kind::Query, tokens(rest, seed))];
    let pieces = pieces.map(|(kind, tokens)| Piece::exact(kind, tokens)).into();
    Composition { pieces, ..Composition::default() }.answered()
}

/// The state as the device reports it for one lane, without the engine.
fn by_device(prompt: &Composition) -> Vec<f32> {
    let model = model();
    let limits = Limits { step_tokens: 700, step_outputs: 8, positions: CONTEXT, pages: 20 };
    let mut device = reference::open(&model.config, &*model.weights, limits).unwrap();
    let tokens = prompt.tokens();
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let pages: Vec<u32> = (0..tokens.len().div_ceil(crate::kv::PAGE_ROWS) as u32).collect();
    let len = tokens.len();
    let spans = [crate::device::Span { pages, first_row: 0, len, home_position: 0, position: 0 }];
    let lane = DeviceLane {
        tokens: &tokens,
        positions: &positions,
        key_positions: &positions,
        store_at: &positions,
        spans: &spans,
        marks: &[],
        outputs: crate::device::Outputs::None,
    };
    let ops = plan(&model.config);
    device.states(&ops[..ops.len() - 1], &Step { lanes: &[lane] }).unwrap().remove(0)
}

#[test]
fn a_state_has_the_same_bits_alone_in_a_batch_cached_and_cold() {
    // Shorter and longer than a step and than a page; with and without a shared prefix.
    let sizes = [(0, 1), (0, 7), (20, 5), (20, 90), (64, 1), (130, 33), (0, 200), (20, 11)];
    let prompts: Vec<Composition> =
        (0..).zip(sizes).map(|(seed, (prefix, rest))| passage(prefix, rest, seed)).collect();
    let cold: Vec<Vec<f32>> =
        prompts.iter().map(|prompt| read(&mut engine(), state(prompt).cold()).0).collect();
    for (prompt, cold) in prompts.iter().zip(&cold) {
        assert_eq!(&by_device(prompt), cold);
        // In one piece, too.
        let whole = Composition::from(prompt.tokens());
        assert_eq!(&read(&mut engine(), state(&whole)).0, cold);
    }
    let mut engine = engine();
    for round in 0..2 {
        // 24 requests on 8 lanes, beside an answer.
        let asked = Request::new(exact(&[1], 7), sampling());
        let mut requests = vec![asked];
        requests.extend((0..24).map(|i| state(&prompts[i % prompts.len()])));
        let done = engine.generate_batch(requests).unwrap();
        assert_eq!(done[0].tokens, super::cold(&exact(&[1], 7)), "round {round}");
        for (i, completion) in done[1..].iter().enumerate() {
            assert_eq!(completion.values, cold[i % prompts.len()], "round {round}, {i}");
        }
    }
    engine.cache.check(&[]);
    assert_eq!(engine.cache.n_promised(), 0);
}

#[test]
fn a_state_of_a_prompt_that_is_wholly_cached_is_read_again() {
    let mut engine = engine();
    let prompt = exact(&[1], 7);
    ask(&mut engine, &prompt);
    let (values, finished) = read(&mut engine, state(&prompt));
    assert_eq!(finished.stats.cached_tokens, prompt.len());
    assert_eq!(values, by_device(&prompt));
}

#[test]
fn logits_that_are_read_are_those_of_an_answer() {
    let prompt = exact(&[2], 3);
    let all = engine().score(&prompt, &[5], false).unwrap().remove(0);
    let picked = [3, 0, 17];
    let request = Request::read(prompt.clone(), Reading::Logits(picked.to_vec()));
    let mut warm = engine();
    for round in 0..2 {
        let (values, finished) = read(&mut warm, request.clone());
        let expected: Vec<f32> = picked.iter().map(|token| all[*token as usize]).collect();
        assert_eq!(values, expected);
        assert_eq!(finished.reason, FinishReason::Stop);
        let cached = prompt.len() - prompt.pieces.last().unwrap().tokens.len();
        assert_eq!(finished.stats.cached_tokens, if round == 0 { 0 } else { cached });
    }
    let vocab = model().config.vocab as u32;
    let request = Request::read(prompt, Reading::Logits(vec![0, vocab]));
    let refused = warm.add(request).unwrap_err();
    assert!(matches!(refused, RequestError::UnknownToken { token, .. } if token == vocab));
}

/// The last piece is read once, and its rows are not kept; those before it are.
#[test]
fn only_the_shared_beginning_of_what_is_read_stays_in_the_cache() {
    let mut engine = engine();
    for seed in 0..30 {
        let (_, finished) = read(&mut engine, state(&passage(40, 50, seed)));
        assert_eq!(finished.stats.cached_tokens, if seed == 0 { 0 } else { 40 });
    }
    assert_eq!(engine.cache_stats().device.tokens, 40);
    // A text of one piece leaves nothing.
    read(&mut engine, state(&tokens(70, 9).into()));
    assert_eq!(engine.cache_stats().device.tokens, 40);
    // Nor does a cold one.
    let mut empty = super::engine();
    read(&mut empty, state(&passage(40, 50, 0)).cold());
    assert_eq!(empty.cache_stats().device.tokens, 0);
}

/// Texts that wait for the same prefix share its rows while it is computed.
#[test]
fn a_prefix_of_a_batch_is_computed_once() {
    let mut engine = engine();
    let requests = (0..8).map(|seed| state(&passage(40, 5, seed))).collect();
    let done = engine.generate_batch(requests).unwrap();
    let cached: usize = done.iter().map(|c| c.ending.as_ref().unwrap().stats.cached_tokens).sum();
    assert_eq!(cached, 7 * 40);
}

#[test]
fn what_cannot_be_read_is_refused() {
    let mut engine = engine();
    let refused = engine.add(state(&Composition::default())).unwrap_err();
    assert!(matches!(refused, RequestError::EmptyPrompt));
    let refused = engine.add(state(&tokens(CONTEXT, 1).into())).unwrap_err();
    assert!(matches!(refused, RequestError::TooLong { .. }));
    read(&mut engine, state(&tokens(CONTEXT - 1, 1).into()));
}

/// A cancelled reading frees its memory, and those that shared its rows go on.
#[test]
fn a_cancelled_reading_leaves_nothing() {
    let mut engine = engine();
    let first = state(&passage(100, 60, 1));
    let cancel = first.cancel.clone();
    engine.add(first).unwrap();
    let second = engine.add(state(&passage(100, 60, 2))).unwrap();
    engine.step().unwrap();
    cancel.cancel();
    let mut values = Vec::new();
    while engine.running() > 0 {
        for event in engine.step().unwrap() {
            if let Event::Read { lane, values: read } = event {
                assert_eq!(lane, second);
                values = read;
            }
        }
    }
    assert_eq!(values, by_device(&passage(100, 60, 2)));
    engine.cache.check(&[]);
    assert_eq!(engine.cache.n_promised(), 0);
}
