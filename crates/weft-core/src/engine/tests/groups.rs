//! Requests without the cache: alone, in groups that share rows, and on an engine that keeps none.

use super::*;

fn cold_request(prompt: &Composition, seed: u64, group: Option<&RowGroup>) -> Request {
    let sampling = Sampling { temperature: 1.0, seed, ..sampling() };
    Request { group: group.cloned(), ..Request::new(prompt.clone(), sampling).cold() }
}

/// Runs all lanes to their ends: the answers with their cached tokens, in the order of the lanes,
/// and the number of prompt tokens that were computed.
fn run(engine: &mut Engine) -> (Vec<(Vec<Token>, usize)>, usize) {
    let mut said: BTreeMap<LaneId, (Vec<Token>, usize)> = BTreeMap::new();
    let (mut done_before, mut computed) = (HashMap::new(), 0);
    while engine.running() > 0 {
        for event in engine.step().unwrap() {
            let lane = event.lane();
            match event {
                Event::Prefill { done, .. } => {
                    computed += done - done_before.insert(lane, done).unwrap_or(0);
                }
                Event::Token { token, .. } => said.entry(lane).or_default().0.push(token),
                Event::Done { finished, .. } => {
                    said.entry(lane).or_default().1 = finished.stats.cached_tokens;
                }
                Event::Read { .. } | Event::Prompt { .. } => panic!("no request reads"),
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
        engine.cache.check(&engine.lane_pages());
    }
    (said.into_values().collect(), computed)
}

#[test]
fn a_group_computes_its_prompt_once_and_leaves_nothing() {
    for reuse in Reuse::ALL {
        let prompt = composition(&[1, 2], 3, reuse, Repair::Link(8));
        let alone: Vec<Vec<Token>> =
            (0..8).map(|seed| answer(&mut engine(), cold_request(&prompt, seed, None)).0).collect();
        let mut engine = engine();
        // Kept rows of the same prompt, which a cold request must not use.
        ask(&mut engine, &prompt);
        let kept = engine.cache_stats().device.nodes;
        for _ in 0..2 {
            let group = RowGroup::default();
            for seed in 0..8 {
                engine.add(cold_request(&prompt, seed, Some(&group))).unwrap();
            }
            drop(group);
            let (said, computed) = run(&mut engine);
            let cached: Vec<usize> = said.iter().map(|(_, cached)| *cached).collect();
            assert_eq!(cached[0], 0, "{reuse}");
            assert!(cached[1..].iter().all(|n| *n == prompt.len()), "{reuse}: {cached:?}");
            // Each lane after the first runs at most the last token again.
            assert_eq!(computed, prompt.len(), "{reuse}");
            let said: Vec<Vec<Token>> = said.into_iter().map(|(tokens, _)| tokens).collect();
            assert_eq!(said, alone, "{reuse}: the same bits as alone");
            assert_eq!(engine.cache_stats().device.nodes, kept, "{reuse}");
        }
    }
}

#[test]
fn rows_of_a_group_wait_for_its_last_request() {
    let (prompt, group) = (exact(&[1, 2], 3), RowGroup::default());
    let mut engine = engine();
    let cached = |engine: &mut Engine, group: &RowGroup| {
        engine.add(cold_request(&prompt, 0, Some(group))).unwrap();
        run(engine).0[0].1
    };
    assert_eq!(cached(&mut engine, &group), 0);
    assert_eq!(cached(&mut engine, &group), prompt.len(), "the group is not over");
    assert_eq!(cached(&mut engine, &RowGroup::default()), 0, "another group");
    drop(group);
    engine.step().unwrap();
    assert_eq!(engine.cache_stats().device.nodes, 0);
    assert_eq!(engine.cache.n_groups(), 0, "nothing remains of groups that are over");
}

#[test]
fn waiting_rows_of_a_group_make_room_and_are_not_filed() {
    let tiers = Tiers { ram_bytes: 1 << 20, store: None, ..Tiers::default() };
    let mut engine = engine_with(12, tiers);
    let group = RowGroup::default();
    answer(&mut engine, cold_request(&exact(&[1, 2], 3), 0, Some(&group)));
    assert!(engine.cache_stats().device.nodes > 0);
    ask(&mut engine, &exact(&[3, 4, 5, 6, 7], 8));
    engine.demote(Tier::Ram);
    let again = cold_request(&exact(&[1, 2], 3), 0, Some(&group));
    let (_, finished) = answer(&mut engine, again);
    assert_eq!(finished.stats.cached_tokens, 0, "they were dropped");
}

#[test]
fn an_engine_without_a_cache_keeps_nothing() {
    let prompt = exact(&[1, 2], 3);
    let mut engine = engine();
    engine.disable_cache();
    for _ in 0..2 {
        let (said, finished) = ask(&mut engine, &prompt);
        assert_eq!((finished.stats.cached_tokens, said), (0, cold(&prompt)));
    }
    assert_eq!(engine.cache_stats().device.nodes, 0);
    assert!(matches!(
        engine.warm(&prompt),
        Err(GenerateError::Request(RequestError::KeepsNothing))
    ));
}
