//! Reports that add up, runs that cache nothing, and files that match their headers.

use super::*;
use crate::device::PageRows;
use crate::kv::{PAGE_ROWS, Slot};
use crate::store::KvKey;

fn nodes(engine: &Engine) -> usize {
    engine.cache_stats().device.nodes
}

#[test]
fn rows_that_span_several_pieces_are_reported_once() {
    let mut engine = engine();
    let whole = Composition::from(tokens(150, 5));
    ask(&mut engine, &whole);
    let saved = |finished: &Finished| -> Duration {
        finished.report.pieces.iter().map(|piece| piece.saved).sum()
    };
    let all = saved(&ask(&mut engine, &whole).1);
    let split = [0..30, 30..90, 90..150];
    let pieces = split.map(|range| Piece::exact(Kind::Context, whole.tokens()[range].to_vec()));
    let split = Composition { pieces: pieces.to_vec(), repair: Repair::None };
    let (_, finished) = ask(&mut engine, &split);
    let report = &finished.report;
    assert_eq!(report.cached_tokens(), 150);
    let attention: f64 = report.pieces.iter().map(|piece| piece.attention).sum();
    assert!((attention + report.answer_attention - 1.0).abs() < 1e-6, "{attention}");
    let difference = saved(&finished).abs_diff(all);
    assert!(difference < Duration::from_micros(1), "{difference:?} of {all:?}");
    // A match of 60 tokens at the start of a node counts as 60 tokens.
    let begin = Composition::from(tokens(60, 5));
    let held = saved(&ask(&mut engine, &begin).1);
    let difference = held.abs_diff(all.mul_f64(60.0 / 150.0));
    assert!(difference < Duration::from_micros(1), "{held:?} of {all:?}");
}

#[test]
fn cold_answers_and_verifications_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), 10_000_000).unwrap();
    let mut engine =
        engine_with(80, Tiers { ram_bytes: 0, store: Some(store), ..Tiers::default() });
    let request = Request::new(exact(&[1, 2], 1), sampling()).cold();
    let lane = engine.add(request.clone()).unwrap();
    (0..4).for_each(|_| drop(engine.step().unwrap()));
    assert_eq!(engine.save(true), 0, "rows that cannot be found are not saved");
    engine.discard(|id| id == lane);
    answer(&mut engine, request);
    assert_eq!(nodes(&engine), 0);
    let prompt = composition(&[2, 1], 1, Reuse::Anchored, Repair::Link(8));
    let chunk = chunk_of(document(1));
    let id = chunk.id;
    engine.library.restore(chunk);
    let mut named = prompt.clone();
    named.pieces[2].chunk = Some(id);
    engine.verify(&named, &tokens(5, 7)).unwrap();
    assert_eq!(nodes(&engine), 0);
    assert_eq!(engine.library.get(&id).unwrap().uses, 0, "checking does not count as a use");
    answer(&mut engine, Request::new(named, sampling()).cold());
    assert_eq!(engine.library.get(&id).unwrap().uses, 1);
}

#[test]
fn the_same_answer_twice_is_kept_once() {
    let mut engine = engine();
    ask(&mut engine, &exact(&[1], 1));
    let kept = nodes(&engine);
    ask(&mut engine, &exact(&[1], 1));
    assert_eq!(nodes(&engine), kept);
}

#[test]
fn files_have_the_positions_of_their_rows_and_go_with_their_chunk() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let store = Store::open(folder.path(), 10_000_000).unwrap();
        engine_with(80, Tiers { ram_bytes: 0, store: Some(store), ..Tiers::default() })
    };
    let mut engine = open();
    let mut prompt = exact(&[1], 1);
    prompt.pieces.pop();
    engine.warm(&prompt).unwrap();
    assert_eq!(engine.save(true), 2);
    let homes = || {
        let store = Store::open(folder.path(), 10_000_000).unwrap();
        let mut homes: Vec<usize> =
            store.entries().map(|(_, entry)| entry.header.home_position).collect();
        homes.sort_unstable();
        homes
    };
    assert_eq!(homes(), [0, 20]);
    // Another process, which finds the document by its tokens.
    open().cache.forget(&chunk_of(document(1)));
    assert_eq!(homes(), [0]);
}

#[test]
fn a_document_that_stands_twice_is_brought_once() {
    // Seven pages: system, query, answer, and the document once or twice.
    let mut engine =
        engine_with(7, Tiers { ram_bytes: 10_000_000, store: None, ..Tiers::default() });
    let prompt = composition(&[2, 2], 1, Reuse::Isolated, Repair::None);
    assert_eq!(document(2).tokens.len().div_ceil(64), 2);
    let first = ask(&mut engine, &prompt).0;
    engine.demote(Tier::Ram);
    assert_eq!(engine.cache_stats().device.used_bytes, 0);
    // Two pages are promised to another lane: those of the second copy.
    engine.cache.promise(2, &[]).unwrap();
    let (again, finished) = answer(&mut engine, Request::new(prompt, sampling()));
    assert_eq!(again, first);
    assert_eq!(sources(&finished), [Tier::Ram, Tier::Ram, Tier::Device, Tier::Ram].map(Some));
}

#[test]
fn anchored_documents_see_the_system_piece_and_not_what_follows_it() {
    let anchored = Piece { reuse: Reuse::Anchored, ..document(2) };
    let pieces = vec![system(), document(1), anchored, query(1)];
    let prompt = Composition { pieces, repair: Repair::None };
    let (_, finished) = ask(&mut engine(), &prompt);
    assert_eq!(finished.report.pieces[2].shift, document(1).tokens.len() as i64);
}

#[test]
fn blend_changes_the_rows_it_chose_and_no_other() {
    let mut engine = engine();
    let prompt = composition(&[1, 2, 3], 1, Reuse::Anchored, Repair::Blend(0.1, 1));
    engine.add(Request::new(prompt, sampling())).unwrap();
    while !engine.step().unwrap().iter().any(|event| matches!(event, Event::Token { .. })) {}
    let lane = &engine.lanes[0];
    let (mut changed, mut repaired) = (0, 0);
    for held in lane.nodes.iter().filter(|held| held.is_moved()) {
        let rows = |pages: &[crate::kv::PageId]| {
            let rows = PageRows { pages, first_row: held.lead, len: held.range.len() };
            let row = |slot: Slot| {
                let (page, first_row) = (slot / PAGE_ROWS as Slot, slot as usize % PAGE_ROWS);
                let row = PageRows { pages: &[page], first_row, len: 1 };
                let room = || vec![0; engine.cache.shape().bytes(3, 1)];
                let (mut k, mut v) = (room(), room());
                engine.device.read_kv(0..3, &row, &mut k, &mut v);
                (k, v)
            };
            rows.slots().map(row).collect::<Vec<_>>()
        };
        let (kept, used) = (rows(&engine.cache.node(held.node).pages), rows(&held.pages));
        changed += kept.iter().zip(&used).filter(|(kept, used)| kept != used).count();
        repaired += held.repaired;
    }
    assert!(changed > 0 && changed <= repaired, "{changed} rows differ, {repaired} were repaired");
}

#[test]
fn chunks_are_not_pinned_into_promised_pages() {
    // Thirteen pages; a running lane has taken or was promised all but one.
    let mut engine = engine_with(13, Tiers::default());
    let mut prompt = exact(&[2], 1);
    let id = ChunkId::of(Kind::Context, &prompt.pieces[1].tokens);
    prompt.pieces[1].chunk = Some(id);
    ask(&mut engine, &prompt);
    let long = Sampling { max_tokens: Some(64 * 12), ..sampling() };
    let lane = engine.add(Request::new(Composition::from(tokens(3, 9)), long)).unwrap();
    let refused = engine.cache.pin(&id, true).unwrap_err();
    assert!(refused.to_string().contains("of 13"), "{refused}");
    engine.cache.check(&engine.lane_pages());
    engine.discard(|id| id == lane);
    engine.cache.pin(&id, true).unwrap();
}

#[test]
fn a_pinned_chunk_stays_wherever_it_is_used() {
    let mut engine = engine_with(14, Tiers::default());
    let mut prompt = exact(&[1], 0);
    let chunk = Chunk { pinned: true, ..chunk_of(document(1)) };
    prompt.pieces[1].chunk = Some(chunk.id);
    engine.library.restore(chunk);
    ask(&mut engine, &prompt);
    (10..16).for_each(|seed| drop(ask(&mut engine, &exact(&[seed, seed + 1], 1))));
    assert_eq!(engine.preview(&prompt).pieces[1].source, Some(Tier::Device));
}

#[test]
fn an_edited_document_is_not_moved() {
    let mut engine = engine();
    let prompt = |documents: &[u32]| composition(documents, 1, Reuse::Anchored, Repair::None);
    ask(&mut engine, &prompt(&[1, 2, 3]));
    let mut edited = prompt(&[3, 2, 1]);
    let len = edited.pieces[2].tokens.len();
    edited.pieces[2].tokens[len - 3] += 1;
    let (said, finished) = ask(&mut engine, &edited);
    assert_eq!(said, cold(&edited));
    assert_eq!(finished.report.pieces[2].cached_tokens, 0);
}

#[test]
fn a_damaged_file_among_others_costs_its_rows_and_no_page() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let store = Store::open(folder.path(), 10_000_000).unwrap();
        engine_with(12, Tiers { ram_bytes: 0, store: Some(store), ..Tiers::default() })
    };
    let prompt = exact(&[1, 2], 1);
    let mut engine = open();
    ask(&mut engine, &prompt);
    engine.save(true);
    let mut engine = open();
    // The second document's file, changed after its header was indexed.
    let home = 20 + document(1).tokens.len();
    let store = Store::open(folder.path(), 10_000_000).unwrap();
    let is_second = |entry: &&(&KvKey, &crate::store::Entry)| entry.1.header.home_position == home;
    let (key, _) = store.entries().find(|entry| is_second(&entry)).unwrap();
    let file = folder.path().join(format!("{key}.safetensors"));
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (said, finished) = ask(&mut engine, &prompt);
    assert_eq!(said, cold(&prompt));
    assert_eq!(sources(&finished)[2], None);
    engine.save(true);
    assert_eq!(engine.cache_stats().store.unwrap().quarantined, 1);
}
