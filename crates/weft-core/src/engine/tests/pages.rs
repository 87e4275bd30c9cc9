//! Contexts in pages: an exact context is one span of pages aligned with positions, however it was
//! composed, and contexts share pages up to the point where they diverge.

use super::wrapped::wrapped;
use super::*;
use crate::kv::{PAGE_ROWS, pages_for};

/// Refuses steps whose lanes attend to more than one span, or to one that starts inside a page.
struct OneSpan {
    device: Box<dyn Device>,
}

impl Device for OneSpan {
    wrapped!();

    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        for lane in step.lanes {
            let [span] = lane.spans else { panic!("{} spans", lane.spans.len()) };
            assert_eq!((span.first_row, span.home_position, span.position), (0, 0, 0));
            assert_eq!(span.pages.len(), pages_for(span.len));
        }
        self.device.run(ops, step)
    }

    fn logits(&self, output: usize) -> &[f32] {
        self.device.logits(output)
    }

    fn attention(&self, lane: usize, output: usize) -> Vec<f32> {
        self.device.attention(lane, output)
    }
}

fn engine_of_one_span(pages: usize, positions: usize, tiers: Tiers) -> Engine {
    let model = model();
    let limits = Limits { step_tokens: 64, step_outputs: 16, positions, pages };
    let device = reference::open(&model.config, &*model.weights, limits).unwrap();
    Engine::with_tiers(&model, Box::new(OneSpan { device }), tiers)
}

fn pages_used(engine: &Engine) -> usize {
    let stats = engine.cache_stats().device;
    let shape = engine.cache.shape();
    stats.used_bytes as usize / (2 * shape.bytes(shape.layers, PAGE_ROWS))
}

#[test]
fn an_exact_context_is_one_span() {
    let folder = tempfile::tempdir().unwrap();
    let store = Some(Store::open(folder.path(), 1_000_000).unwrap());
    let mut engine =
        engine_of_one_span(30, CONTEXT, Tiers { ram_bytes: 100_000, store, ..Tiers::default() });
    let prompts = [exact(&[1, 2], 1), exact(&[1, 3], 2), exact(&[1, 2, 4], 1), exact(&[2], 5)];
    for tier in [Tier::Device, Tier::Ram, Tier::Disk] {
        for prompt in &prompts {
            assert_eq!(ask(&mut engine, prompt).0, cold(prompt), "{tier:?}");
        }
        let requests = prompts.iter().map(|prompt| Request::new(prompt.clone(), sampling()));
        for (prompt, done) in prompts.iter().zip(engine.generate_batch(requests.collect()).unwrap())
        {
            assert_eq!(done.tokens, cold(prompt), "side by side, {tier:?}");
        }
        engine.demote(tier);
    }
}

/// A match that ends inside a page continues in a copy of the page.
#[test]
fn a_context_that_parts_from_another_inside_a_page_leaves_it_as_it_is() {
    for n in [33, 63, 64, 65, 100, 127, 128, 130] {
        let mut engine = engine_of_one_span(30, CONTEXT, Tiers::default());
        let first = Composition::from(tokens(150, 5));
        let (said, _) = ask(&mut engine, &first);
        let mut other = tokens(n, 5);
        other.extend(tokens(20, 8));
        let other = Composition::from(other);
        let (told, finished) = ask(&mut engine, &other);
        assert_eq!(told, cold(&other));
        assert_eq!(finished.stats.cached_tokens, n);
        let (again, finished) = ask(&mut engine, &first);
        assert_eq!((again, finished.stats.cached_tokens), (said, 150));
        // 150 + 5 rows of the first, n + 25 of the other; they share whole pages.
        let shared = n / PAGE_ROWS;
        assert_eq!(pages_used(&engine), pages_for(155) + pages_for(n + 25) - shared, "{n}");
    }
}

/// So does a match in rows that had left the device, which come back whole.
#[test]
fn a_part_of_rows_that_are_brought_back_leaves_the_rest_as_it_is() {
    for n in [33, 63, 64, 65, 100, 130] {
        let tiers = Tiers { ram_bytes: 1 << 20, ..Tiers::default() };
        let mut engine = engine_of_one_span(30, CONTEXT, tiers);
        let first = Composition::from(tokens(150, 5));
        let (said, _) = ask(&mut engine, &first);
        engine.demote(Tier::Ram);
        let other = Composition::from([tokens(n, 5), tokens(20, 8)].concat());
        let (told, finished) = ask(&mut engine, &other);
        assert_eq!((told, finished.stats.cached_tokens), (cold(&other), n));
        let (again, finished) = ask(&mut engine, &first);
        assert_eq!((again, finished.stats.cached_tokens), (said, 150), "{n}");
    }
}

/// A conversation with turns shorter than a page takes only the pages of its tokens.
#[test]
fn a_conversation_takes_the_pages_of_its_tokens() {
    let mut engine = engine_of_one_span(80, 2400, Tiers::default());
    let mut prompt = exact(&[], 1);
    for turn in 0..100 {
        let turn_sampling = Sampling { max_tokens: Some(11), ..sampling() };
        let request = Request::new(prompt.clone(), turn_sampling);
        let (said, finished) = answer(&mut engine, request);
        engine.cache.check(&[]);
        let rows = prompt.len() + said.len() - 1;
        assert_eq!(pages_used(&engine), pages_for(rows), "turn {turn}");
        assert!(turn == 0 || finished.stats.cached_tokens + 10 == prompt.len());
        let said = said.iter().map(|token| token.id).collect();
        prompt.pieces.push(Piece::exact(Kind::Output, said));
        prompt.pieces.push(Piece::exact(Kind::Query, tokens(9, 50 + turn)));
    }
    assert!(prompt.len() > 1900);
}

/// Contexts that diverge take one more page for each point where they diverge.
#[test]
fn contexts_take_a_page_more_for_each_point_where_they_part() {
    let mut engine = engine_of_one_span(80, CONTEXT, Tiers::default());
    let begin = tokens(100, 5);
    for n in 0..10 {
        let prompt = [begin.clone(), tokens(10, 50 + n)].concat();
        ask(&mut engine, &Composition::from(prompt));
        // Each has its last page, the first page is common.
        assert_eq!(pages_used(&engine), 1 + (n as usize + 1));
    }
}
