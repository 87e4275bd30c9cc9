//! Tests the lists of a step against the step, without a GPU.

use super::*;
use weft_core::device::{Outputs, Span};

fn span(first: PageId, len: usize, position: usize) -> Span {
    let pages = (first..first + len.div_ceil(PAGE_ROWS) as PageId).collect();
    Span { pages, first_row: 0, len, home_position: position, position }
}

/// The rows of a section at which a stretch begins.
fn rows_of(marks: &Marks) -> Vec<usize> {
    (0..SECTION_ROWS).filter(|row| marks[row / 32] >> (row % 32) & 1 == 1).collect()
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
        marks: &[],
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
fn lanes_that_share_a_span_share_its_items() {
    // 300 shared rows, then one row for each lane; the second lane is 7 positions further on.
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
        Query { token: 0, n_parts: 3, seen: 256, cell: 0, rotate_at: 300, partial: 0 }
    );
    // Relative to the span's home, the second lane's query is also at 300.
    assert_eq!(
        first.queries[1],
        Query { token: 1, n_parts: 3, seen: 256, cell: 3, rotate_at: 300, partial: 3 }
    );
    assert_eq!(lists.partials, [[3, 0, 3, 0], [3, 3, 3, 3]]);
    let stores: Vec<_> = lists.items.iter().map(|item| item.n_stores).collect();
    assert_eq!(stores, [0, 0, 1, 1]);
    assert_eq!(lists.stretches[1].of_cells, [0, 0, 0]);
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
    assert_eq!(
        rows,
        [(3, 3), (6, 6), (8, 8)],
        "each computes the rows it reads, and reads no more"
    );
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
    let tiles: Vec<_> =
        { lists.tiles.iter() }.map(|t| (t.first_token, t.n_tokens, t.n_sections, t.cell)).collect();
    let none = NOWHERE;
    assert_eq!(tiles, [(0, 32, 1, none), (32, 32, 2, none), (64, 32, 2, none), (96, 4, 2, 0)]);
    assert_eq!((lists.tiles[3].n_cells, lists.counts.n_cells), (2, 2));
}

#[test]
fn sections_fit_where_memory_was_taken_for_them() {
    // The worst case: spans that begin with the last row of a page and just reach into a second
    // section.
    for (len, n_sections) in [(1, MAX_SPANS), (2, MAX_SPANS), (194, 2 * MAX_SPANS)] {
        let positions = MAX_SPANS * len;
        let limits = Limits { step_tokens: 8, step_outputs: 8, positions, pages: 64 };
        let spans: Vec<Span> = (0..MAX_SPANS)
            .map(|i| Span { first_row: 63, ..span(0, 63 + len, i * len) })
            .map(|span| Span { len, ..span })
            .collect();
        let last = [positions as u32 - 1];
        let marks: Vec<u32> = (1..=MAX_MARKS as u32).collect();
        let lanes = [Lane { marks: &marks, ..lane(&[0], &last, &[0], &spans) }];
        assert_eq!(sections(&lanes[0]).count(), n_sections);
        assert!(n_sections <= lane_sections(&limits));
        let mut lists = Lists::default();
        lists.fill(&Step { lanes: &lanes }, 2);
        assert!(lists.counts.n_cells <= max_cells(&limits));
    }
}

#[test]
fn marks_cut_sections_into_cells() {
    let a = [span(0, 600, 0)];
    // One is where a section begins; one is after the token.
    let marks = [10, 64, 256, 300, 700];
    let lanes = [Lane { marks: &marks, ..lane(&[1], &[599], &[599], &a) }];
    let mut lists = Lists::default();
    lists.fill(&Step { lanes: &lanes }, 2);
    let items: Vec<_> = { lists.items.iter() }
        .map(|item| (item.n_marks, rows_of(&item.marks), item.queries[0].cell))
        .collect();
    assert_eq!(items, [(2, vec![10, 64], 0), (1, vec![44], 3), (0, vec![], 5)]);
    assert_eq!(lists.stretches[0].of_cells, [0, 1, 2, 3, 4, 4]);
    assert_eq!((lists.stretches[0].n_stretches, lists.counts.n_cells), (6, 6));
    assert_eq!(lists.partials, [[3, 0, 6, 0]]);
    // A mark in rows that the last token does not see does not count for it.
    let lanes = [Lane { marks: &marks, ..lane(&[1], &[40], &[40], &a) }];
    lists.fill(&Step { lanes: &lanes }, 2);
    assert_eq!(lists.stretches[0].of_cells, [0, 1]);
    assert_eq!(lists.partials, [[1, 0, 2, 0]]);
}

#[test]
fn stretches_know_the_halves_of_pages_that_they_have_rows_in() {
    let item = |first, n_rows, rows: &[usize]| {
        let mut item = Item { first, n_rows, ..Item::default() };
        rows.iter().for_each(|row| item.marks[row / 32] |= 1 << (row % 32));
        item.number_stretches();
        item
    };
    // Of each half: those of the last stretch that begins there, and its number.
    let of = |item: &Item| item.stretches.map(|own| (own & 0xff, own >> 8));
    let none = (0, 0);
    let whole = item(0, 256, &[]);
    assert_eq!(of(&whole), [(0xff, 0), none, none, none, none, none, none, none]);
    assert_eq!((whole.n_marks, whole.cuts, whole.first_pages), (0, [32; 8], 4));
    let late = item(40, 256, &[]);
    assert_eq!(of(&late), [none, (0xfe, 0), none, none, none, none, none, none]);
    // The rows before the only mark, and the pages that they are in.
    let one = item(0, 256, &[70]);
    assert_eq!((one.n_marks, one.cuts, one.first_pages), (1, [32, 32, 6, 0, 0, 0, 0, 0], 2));
    assert_eq!(item(0, 256, &[128]).cuts, [32, 32, 32, 32, 0, 0, 0, 0]);
    assert_eq!(item(0, 256, &[128]).first_pages, 2);
    assert_eq!(
        item(0, 256, &[10]).has_inner,
        0,
        "there is nothing besides the two halves of its sums"
    );
    // A stretch that ends inside a half has rows there; one that ends where a half begins has none.
    let two = item(0, 256, &[70, 128]);
    let halves = [(0b111, 0), none, (0b1100, 1), none, (0b1111_0000, 2), none, none, none];
    assert_eq!((of(&two), two.n_marks, two.has_inner), (halves, 2, 0));
    assert_eq!(two.cuts, [32, 32, 6, 32, 32, 32, 32, 32]);
    // Two and three stretches begin in the first halves.
    let inner = item(0, 256, &[3, 32, 33, 40]);
    let halves = [(0b1, 1), (0b1111_1110, 4), none, none, none, none, none, none];
    assert_eq!((of(&inner), inner.n_marks, inner.has_inner), (halves, 4, 1));
    assert_eq!(inner.cuts[..3], [3, 1, 32]);
    // Rows that nobody sees have no stretches.
    assert_eq!(item(0, 40, &[3, 32, 33, 40, 200]).n_marks, 3);
    let all = item(0, 256, &(1..SECTION_ROWS).collect::<Vec<_>>());
    assert_eq!((of(&all)[0], of(&all)[7], all.n_marks), ((1, 31), (0x80, 255), 255));
}

#[test]
fn a_span_begins_anywhere_in_a_page() {
    let moved = Span { first_row: 40, home_position: 7, ..span(0, 340, 100) };
    let a = [Span { first_row: 50, len: 20, ..span(9, 70, 0) }, Span { len: 300, ..moved }];
    let marks = [100, 116, 200];
    let lanes = [Lane { marks: &marks, ..lane(&[1], &[399], &[5 * 64 + 19], &a) }];
    let mut lists = Lists::default();
    lists.fill(&Step { lanes: &lanes }, 2);
    let of = |s: &Section| (s.pages[0], s.first, s.n_rows, s.position, s.home, s.cell);
    let sections: Vec<_> = lists.sections.iter().map(of).collect();
    assert_eq!(
        sections,
        [(9, 50, 70, 0, 0, 0), (0, 40, 256, 100, 7, 1), (4, 0, 84, 316, 223, 4)],
        "position and home are those of the first row that counts"
    );
    assert_eq!(rows_of(&lists.sections[1].marks), [56, 140]);
    assert_eq!(lists.stretches[0].of_cells, [0, 1, 2, 3, 3]);
    let queries: Vec<_> = lists
        .items
        .iter()
        .map(|item| (item.first, item.n_rows, item.queries[0].rotate_at))
        .collect();
    assert_eq!(queries, [(50, 70, 399), (40, 256, 306), (0, 84, 306)]);
    // Its own row is the last of the last section.
    assert_eq!((lists.items[2].n_stores, lists.items[2].stores[0]), (1, 83));
    let lanes = [lane(&[1], &[120], &[5], &a)];
    lists.fill(&Step { lanes: &lanes }, 2);
    assert_eq!((lists.items[1].queries[0].seen, lists.items[1].n_rows), (61, 61));
    assert_eq!(
        lists.items[2].n_queries, 0,
        "a row before the span's first does not belong to the span"
    );
}

#[test]
fn only_a_lane_s_last_token_keeps_shares() {
    let (a, positions) = ([span(0, 300, 0)], [297, 298, 299]);
    let lanes = [lane(&[0; 3], &positions, &positions, &a)];
    let mut lists = Lists::default();
    lists.fill(&Step { lanes: &lanes }, 2);
    let cells: Vec<_> = lists.items[0].queries[..3].iter().map(|query| query.cell).collect();
    assert_eq!(cells, [NO_CELL, NO_CELL, 0]);
    let of_cells: Vec<_> = lists.partials.iter().map(|own| own[2]).collect();
    assert_eq!(of_cells, [0, 0, 2]);
}

#[test]
fn every_token_of_a_draft_keeps_shares() {
    // The first section ends before the draft's last two tokens, and a mark lies before its last.
    let (a, positions) = ([span(0, 258, 0)], [254, 255, 256, 257]);
    let marks = [100, 200, 257];
    let of = |outputs| Lane { outputs, marks: &marks, ..lane(&[0; 4], &positions, &positions, &a) };
    let mut lists = Lists::default();
    lists.fill(&Step { lanes: &[of(Outputs::All)] }, 2);
    assert_eq!(lists.partials, [[1, 0, 3, 0], [1, 1, 3, 3], [2, 2, 4, 6], [2, 4, 5, 10]]);
    assert_eq!(lists.counts.n_cells, 15);
    assert_eq!(lists.stretches[0].of_cells, [0, 1, 2, 2, 3]);
    let cells: Vec<_> = (0..4).map(|output| lists.cells_of_output(0, output)).collect();
    assert_eq!(cells, [0..3, 3..6, 6..10, 10..15]);
    let items: Vec<_> = lists.items.iter().map(|item| (item.n_queries, item.n_marks)).collect();
    // Results of one part and of two; then those that see the last mark, and those that do not.
    assert_eq!(items, [(2, 2), (2, 2), (1, 0), (1, 1)]);
    let queries = lists.items.iter().flat_map(|item| &item.queries[..item.n_queries as usize]);
    let cells: Vec<_> = queries.map(|query| (query.token, query.cell)).collect();
    assert_eq!(cells, [(0, 0), (1, 3), (2, 6), (3, 10), (2, 9), (3, 13)]);
    assert_eq!(lists.sum_stretches(0, &[1.0, 2.0, 4.0, 8.0]), [1.0, 2.0, 12.0, 0.0]);
    // The same tokens without a draft.
    lists.fill(&Step { lanes: &[of(Outputs::Last)] }, 2);
    assert_eq!(lists.counts.n_cells, 5);
    assert_eq!((lists.cells_of_output(0, 0), lists.items.len()), (0..5, 3));
}

#[test]
fn a_token_of_a_draft_has_the_cells_that_it_has_alone() {
    let marks = [3, 64, 250, 256, 259, 261];
    let a = [span(0, 262, 0)];
    let positions: Vec<u32> = (255..262).collect();
    let draft =
        Lane { outputs: Outputs::All, marks: &marks, ..lane(&[0; 7], &positions, &positions, &a) };
    let mut lists = Lists::default();
    for (output, position) in positions.iter().enumerate() {
        lists.fill(&Step { lanes: &[draft] }, 4);
        let shared = (lists.cells_of_output(0, output).len(), lists.partials[output][0]);
        let numbers: Vec<f32> = (1..=shared.0).map(|cell| cell as f32).collect();
        let sums = lists.sum_stretches(0, &numbers);
        let a = [span(0, *position as usize + 1, 0)];
        let at = [*position];
        let alone = Lane { marks: &marks, ..lane(&[0], &at, &at, &a) };
        lists.fill(&Step { lanes: &[alone] }, 4);
        assert_eq!((lists.cells_of_output(0, 0).len(), lists.partials[0][0]), shared);
        assert_eq!(lists.sum_stretches(0, &numbers), sums, "position {position}");
    }
}

#[test]
fn lanes_share_only_rows_that_both_see() {
    let items = |seen: [usize; 2], marks: [&[u32]; 2]| {
        let spans = seen.map(|len| [span(0, len, 0)]);
        let positions = seen.map(|len| [len as u32 - 1]);
        // The first lane writes the last row that it sees.
        let of = |i: usize| {
            let slots: &[u32] = if i == 0 { &positions[0] } else { &[640] };
            Lane { marks: marks[i], ..lane(&[1], &positions[i], slots, &spans[i]) }
        };
        let lanes = [of(0), of(1)];
        let mut lists = Lists::default();
        lists.fill(&Step { lanes: &lanes }, 2);
        lists.items.iter().filter(|item| item.n_queries > 0).count()
    };
    assert_eq!(items([40, 40], [&[], &[]]), 1);
    assert_eq!(items([40, 39], [&[], &[]]), 2, "a row that only one of them sees");
    assert_eq!(items([40, 40], [&[7], &[7]]), 1);
    assert_eq!(items([40, 40], [&[7], &[8]]), 2);
    // Tokens of one lane see one another's rows or come later.
    let (a, b) = ([span(0, 40, 0)], [span(0, 39, 0)]);
    let positions = [38, 39];
    let lanes = [lane(&[1, 2], &positions, &positions, &a), lane(&[3], &[38], &[640], &b)];
    let mut lists = Lists::default();
    lists.fill(&Step { lanes: &lanes }, 2);
    let queries: Vec<_> = lists.queries_of_items().filter(|n| *n > 0).collect();
    assert_eq!(queries, [2, 1]);
}

#[test]
fn a_few_tokens_behind_a_long_context_are_shared_out_by_sections() {
    let positions: Vec<u32> = (2000..2032).collect();
    let tokens = vec![0; 32];
    let a = [span(0, 2032, 0)];
    let lanes = [lane(&tokens, &positions, &positions, &a)];
    let split = SplitRule {
        kv_heads: 8,
        at_once: 264,
        shared_over: 264,
        most_partials: 1000,
        ..SplitRule::default()
    };
    let mut lists = Lists::new(split);
    lists.fill(&Step { lanes: &lanes }, 2);
    // One tile of 8 KV heads, and 8 sections.
    assert_eq!((lists.counts.n_tiles, lists.counts.n_splits), (1, 8));
    assert_eq!(lists.counts.n_partials, 32 * 8);
    assert_eq!((lists.partials[0], lists.partials[31]), ([8, 0, 0, 0], [8, 31 * 8, 8, 0]));
    assert_eq!(lists.counts.n_cells, 8, "shares belong to the last token");
    let mut lists = Lists::new(SplitRule { shared_over: 32, ..split });
    lists.fill(&Step { lanes: &lanes }, 2);
    assert_eq!(lists.counts.n_splits, 4, "32 blocks for 8 KV heads");
    for too_much in [SplitRule { most_partials: 255, ..split }, SplitRule { at_once: 15, ..split }]
    {
        let mut lists = Lists::new(too_much);
        lists.fill(&Step { lanes: &lanes }, 2);
        assert_eq!((lists.counts.n_splits, lists.counts.n_cells), (1, 8));
    }
}

#[test]
fn pages_are_laid_if_many_tiles_see_them() {
    let lays = |before: usize, n: usize, n_lanes: usize| {
        let positions: Vec<u32> = (before..before + n).map(|p| p as u32).collect();
        let tokens = vec![0; n];
        let spans: Vec<_> =
            (0..n_lanes).map(|i| [span(200 * i as PageId, before + n, 0)]).collect();
        let lanes: Vec<_> =
            spans.iter().map(|own| lane(&tokens, &positions, &positions, own)).collect();
        let split = SplitRule {
            tile_queries: Some(128),
            tiles_to_lay: TILES_TO_LAY,
            ..SplitRule::default()
        };
        let mut lists = Lists::new(split);
        lists.fill(&Step { lanes: &lanes }, 2);
        lists.counts.lays_pages
    };
    // A tile has 64 tokens. A prompt's own sections are seen by half of its tiles.
    assert!(!lays(0, 512, 1) && !lays(8192, 256, 1));
    assert!(lays(0, 2048, 1) && lays(8192, 512, 1));
    assert!(!lays(1024, 256, 4), "tiles of other lanes see other pages");
}
