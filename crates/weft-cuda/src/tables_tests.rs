//! The lists of a step, against what a step says, without a GPU.

use super::*;
use weft::device::Span;

fn span(first: PageId, len: usize, position: usize) -> Span {
    let pages = (first..first + len.div_ceil(PAGE_ROWS) as PageId).collect();
    Span { pages, len, home_position: position, position }
}

fn lane<'a>(
    tokens: &'a [u32],
    positions: &'a [u32],
    slots: &'a [u32],
    spans: &'a [Span],
) -> Lane<'a> {
    Lane {
        tokens,
        positions,
        key_positions: positions,
        store_at: slots,
        spans,
        outputs: Outputs::Last,
    }
}

#[test]
fn a_span_that_stands_twice_is_asked_twice_by_one_token() {
    let again = Span { position: 40, ..span(0, 40, 0) };
    let spans = [span(0, 40, 0), again, span(9, 1, 80)];
    let lanes = [lane(&[1], &[80], &[9 * 64], &spans)];
    let mut lists = Lists::default();
    lists.fill(&Step { lanes: &lanes }, 2);
    assert_eq!(lists.queries_of_items().collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn structs_are_as_long_as_kernels_think() {
    assert_eq!((Item::LEN, Section::LEN, Tile::LEN), (48, 8, 8));
    assert_eq!(size_of::<StepAddresses>(), 64);
}

#[test]
fn lanes_that_share_a_span_share_its_items() {
    // 300 shared rows, then one row of each lane's own; the second lane stands 7 further on.
    let shared = span(0, 300, 0);
    let moved = Span { position: 7, ..shared.clone() };
    let (a, b) = ([shared, span(9, 1, 300)], [moved, span(10, 1, 307)]);
    let lanes = [lane(&[1], &[300], &[9 * 64], &a), lane(&[2], &[307], &[10 * 64], &b)];
    let mut lists = Lists::default();
    lists.fill(&Step { lanes: &lanes }, 2);
    assert_eq!(lists.counts.n_items, 4, "two shared sections and one of each lane");
    let first = lists.items[0];
    assert_eq!((first.pages, first.n_rows, first.n_queries), ([0, 1, 2, 3], 256, 2));
    assert_eq!(
        first.queries[0],
        Query { token: 0, n_parts: 3, seen: 256, rotate_at: 300, partial: 0 }
    );
    // Seen from the span's home the second lane's query stands at 300 too.
    assert_eq!(
        first.queries[1],
        Query { token: 1, n_parts: 3, seen: 256, rotate_at: 300, partial: 3 }
    );
    assert_eq!(lists.partials, [[3, 0], [3, 3]]);
    let stores: Vec<_> = lists.items.iter().map(|item| item.n_stores).collect();
    assert_eq!(stores, [0, 0, 1, 1]);
    assert_eq!(lists.shares[1].spans, [0, 0, 1]);
}

#[test]
fn a_full_tile_of_queries_begins_another_item() {
    let (a, positions) = ([span(0, 8, 0)], [0, 1, 2, 3, 4, 5, 6, 7]);
    let lanes = [lane(&[0; 8], &positions, &positions, &a)];
    let mut lists = Lists::default();
    lists.fill(&Step { lanes: &lanes }, 5);
    let queries: Vec<_> = lists.items.iter().map(|item| item.n_queries).collect();
    assert_eq!(queries, [3, 3, 2], "16 rows hold three tokens of five heads");
    let rows: Vec<_> = lists.items.iter().map(|item| (item.n_rows, item.n_stores)).collect();
    assert_eq!(rows, [(3, 3), (6, 6), (8, 8)], "each makes the rows it reads, and reads no more");
    assert_eq!(lists.items[1].queries[0].seen, 4);
}

#[test]
fn a_row_that_nobody_reads_is_stored_all_the_same() {
    let a = [span(0, 64, 0)];
    let lanes = [lane(&[1], &[63], &[5 * 64 + 3], &a)];
    let mut lists = Lists::default();
    lists.fill(&Step { lanes: &lanes }, 1);
    let stores = lists.items.iter().find(|item| item.n_stores > 0).unwrap();
    assert_eq!((stores.pages[0], stores.n_queries, stores.stores[0]), (5, 0, 3));
}

#[test]
fn blocks_of_tokens_see_no_section_after_their_last() {
    let positions: Vec<u32> = (200..300).collect();
    let tokens = vec![0; 100];
    let a = [span(0, 300, 0)];
    let lanes = [lane(&tokens, &positions, &positions, &a)];
    let mut lists = Lists::default();
    lists.fill(&Step { lanes: &lanes }, 2);
    let tiles: Vec<_> = { lists.tiles.iter() }
        .map(|t| (t.first_token, t.n_tokens, t.n_sections, t.share))
        .collect();
    let none = NOWHERE;
    assert_eq!(tiles, [(0, 32, 1, none), (32, 32, 2, none), (64, 32, 2, none), (96, 4, 2, 0)]);
    assert_eq!(lists.counts.n_partials, 2);
}

#[test]
fn sections_fit_where_memory_was_taken_for_them() {
    let limits = Limits { step_tokens: 8, step_outputs: 8, positions: 4096, pages: 64 };
    let spans: Vec<Span> = (0..1024).map(|i| span(0, 1 + i % 4, i * 4)).collect();
    let lanes = [lane(&[0], &[4095], &[0], &spans)];
    assert!(sections(&lanes[0]).count() <= lane_sections(&limits));
}

#[test]
fn a_few_tokens_behind_a_long_context_are_shared_out_by_sections() {
    let positions: Vec<u32> = (2000..2032).collect();
    let tokens = vec![0; 32];
    let a = [span(0, 2032, 0)];
    let lanes = [lane(&tokens, &positions, &positions, &a)];
    let split = SplitRule { kv_heads: 8, at_once: 264, most_partials: 1000 };
    let mut lists = Lists::new(split);
    lists.fill(&Step { lanes: &lanes }, 2);
    // One tile of 8 KV heads, and 8 sections.
    assert_eq!((lists.counts.n_tiles, lists.counts.n_splits), (1, 8));
    assert_eq!(lists.counts.n_partials, 32 * 8);
    assert_eq!((lists.partials[0], lists.partials[31]), ([8, 0], [8, 31 * 8]));
    assert_eq!(lists.shares[0].first, 31 * 8, "shares are the last token's");
    for too_much in [SplitRule { most_partials: 255, ..split }, SplitRule { at_once: 15, ..split }]
    {
        let mut lists = Lists::new(too_much);
        lists.fill(&Step { lanes: &lanes }, 2);
        assert_eq!((lists.counts.n_splits, lists.counts.n_partials), (1, 8));
    }
}
