//! Rows of layers cut into pieces: what is copied and reordered at a time.
//!
//! A copy costs the bus some microseconds besides its bytes, so a piece has as many layers of a
//! chunk as there is room for. Rows of several layers follow one another in the lists.

use std::ops::Range;

use weft_core::config::Config;
use weft_core::kv::{PAGE_ROWS, PageId};

/// The most pages of a piece.
pub(crate) const PIECE_PAGES: usize = 64;
const PIECE_ROWS: usize = PIECE_PAGES * PAGE_ROWS;
/// The most bytes of a piece's keys, and of its values; more if a page of a layer has more.
const HALF_BYTES: usize = 8 << 20;
/// The fewest bytes of keys of a chunk's layers that are copied together, and the most groups of
/// layers.
const RUN_BYTES: usize = 4 << 20;
const MOST_GROUPS: usize = 8;

/// Layers of some chunks that are copied before those of the next group, so that a step can begin
/// with the first ones.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Chunks, by their number, and which of their layers.
    pub(super) runs: Vec<(usize, Range<u16>)>,
    /// After it, all chunks have all layers before this one.
    pub(super) end: u16,
}

/// The order in which layers of chunks are copied. `chunks` are the layers of each, and the bytes of
/// a layer's keys. There are only a few groups, and copies of a chunk are long enough not to cost the bus much: a small
/// chunk comes with more layers than others at a time, or as a whole.
pub(super) fn groups(chunks: &[(Range<u16>, usize)]) -> Vec<Group> {
    let mut left: Vec<Range<u16>> = chunks.iter().map(|(layers, _)| layers.clone()).collect();
    let bounds = |left: &[Range<u16>]| {
        let some = || left.iter().filter(|layers| layers.start < layers.end);
        some().map(|layers| layers.start).min().zip(some().map(|layers| layers.end).max())
    };
    let few =
        bounds(&left).map_or(0, |(start, end)| usize::from(end - start).div_ceil(MOST_GROUPS));
    let mut groups = Vec::new();
    while let Some((start, end)) = bounds(&left) {
        let until = start.saturating_add(few as u16);
        let mut runs = Vec::new();
        for (n, (layers, (_, bytes))) in left.iter_mut().zip(chunks).enumerate() {
            if layers.start >= until.min(layers.end) {
                continue;
            }
            let long = RUN_BYTES.div_ceil((*bytes).max(1));
            let long = layers.start.saturating_add(u16::try_from(long).unwrap_or(u16::MAX));
            let run = layers.start..until.max(long).min(layers.end);
            layers.start = run.end;
            runs.push((n, run));
        }
        groups.push(Group { runs, end: bounds(&left).map_or(end, |(start, _)| start) });
    }
    groups
}

/// Some rows of some layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    pub(super) layers: Range<u16>,
    pub(super) pages: &'a [PageId],
    /// Their first row in the first page.
    pub(super) first_row: usize,
    pub(super) n_rows: usize,
    /// Their byte range in the lists: all rows of the first layer, then those of the next.
    pub(super) bytes: Range<usize>,
}

/// Bytes of the keys, and of the values, of the largest piece of a model.
pub(super) fn half_bytes(config: &Config) -> usize {
    let row_bytes = config.kv_width() * 2;
    let all = config.layers * PIECE_ROWS * row_bytes;
    HALF_BYTES.min(all).max(PAGE_ROWS * row_bytes)
}

/// Rows of layers in pieces of at most `half_bytes` of keys, in the order of the lists, which begin
/// with layer `first_layer`. `rows` are those of the pages. A piece of several layers has all rows;
/// of others, all but the first begin with a page.
pub(super) fn pieces(
    layers: Range<u16>,
    first_layer: u16,
    pages: &[PageId],
    rows: Range<usize>,
    row_bytes: usize,
    half_bytes: usize,
) -> impl Iterator<Item = Piece<'_>> {
    let Range { start: first, end } = rows;
    let n_rows = end.saturating_sub(first);
    let most_rows = (half_bytes / row_bytes / PAGE_ROWS * PAGE_ROWS).clamp(PAGE_ROWS, PIECE_ROWS);
    let fits = end <= PIECE_ROWS && n_rows * row_bytes <= half_bytes;
    // All rows of several layers, or runs of one layer's.
    let (n_layers, run) = match n_rows {
        0 => (1, usize::MAX),
        _ if fits => ((half_bytes / (n_rows * row_bytes)).max(1), end),
        _ => (1, most_rows),
    };
    let first_layer = usize::from(first_layer);
    let starts = if n_rows > 0 { 0..end } else { 0..0 };
    let layer_starts = layers.clone().step_by(n_layers);
    layer_starts.flat_map(move |layer| {
        let of_piece = layer..layers.end.min(layer.saturating_add(n_layers as u16));
        let before = (usize::from(layer) - first_layer) * n_rows;
        starts.clone().step_by(run).filter(move |start| start + run > first).map(move |start| {
            let own = start.max(first)..end.min(start.saturating_add(run));
            let listed = before + own.start - first;
            let n_listed = own.len() * of_piece.len();
            let first_page = own.start / PAGE_ROWS;
            Piece {
                layers: of_piece.clone(),
                pages: &pages[first_page..own.end.div_ceil(PAGE_ROWS)],
                first_row: own.start - first_page * PAGE_ROWS,
                n_rows: own.len(),
                bytes: listed * row_bytes..(listed + n_listed) * row_bytes,
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts, and checks that every row of every layer is in one piece, in order and within bounds.
    fn cut(layers: Range<u16>, rows: Range<usize>, half_bytes: usize) -> Vec<(usize, usize)> {
        const ROW: usize = 6;
        let pages: Vec<PageId> = (10..200).collect();
        let n_rows = rows.len();
        let pieces: Vec<_> =
            pieces(layers.clone(), layers.start, &pages, rows.clone(), ROW, half_bytes).collect();
        let mut end = 0;
        for piece in &pieces {
            let (layer, row) = (end / ROW / n_rows, end / ROW % n_rows + rows.start);
            assert_eq!(usize::from(piece.layers.start - layers.start), layer);
            let place = (piece.pages[0] as usize - 10) * PAGE_ROWS + piece.first_row;
            assert_eq!(place, row, "where its first row lies");
            let n_pages = (piece.first_row + piece.n_rows).div_ceil(PAGE_ROWS);
            assert_eq!((piece.pages.len(), piece.first_row < PAGE_ROWS), (n_pages, true));
            assert!(n_pages <= PIECE_PAGES && piece.bytes.len() <= half_bytes);
            let bytes = piece.layers.len() * piece.n_rows * ROW;
            assert_eq!((piece.bytes.start, piece.bytes.len()), (end, bytes));
            end = piece.bytes.end;
        }
        assert_eq!(end, layers.len() * n_rows * ROW);
        pieces.iter().map(|piece| (piece.layers.len(), piece.n_rows)).collect()
    }

    #[test]
    fn pieces_cover_every_row_of_every_layer_once() {
        assert_eq!(cut(2..5, 37..37, 1 << 20), []);
        // Layers together, the last ones fewer.
        assert_eq!(cut(0..28, 0..256, 10 * 256 * 6), [(10, 256), (10, 256), (8, 256)]);
        assert_eq!(cut(2..5, 37..100, 1 << 20), [(3, 63)]);
        // A layer at a time, in runs of whole pages.
        assert_eq!(cut(2..4, 0..1300, 520 * 6)[..4], [(1, 512), (1, 512), (1, 276), (1, 512)]);
        assert_eq!(cut(2..5, 37..1337, 520 * 6)[..3], [(1, 475), (1, 512), (1, 313)]);
        // Rows that begin behind the first run.
        assert_eq!(cut(0..1, 600..700, 64 * 6), [(1, 40), (1, 60)]);
        // More pages than a piece may have.
        assert_eq!(cut(0..2, 0..5000, 1 << 20), [(1, 4096), (1, 904), (1, 4096), (1, 904)]);
        assert_eq!(cut(0..1, 4090..4100, 1 << 20), [(1, 6), (1, 4)]);
    }

    #[test]
    fn some_layers_lie_in_the_lists_of_all() {
        let pages: Vec<PageId> = (10..20).collect();
        let all: Vec<_> = pieces(2..5, 2, &pages, 37..100, 6, 63 * 6).collect();
        let some = |layers| pieces(layers, 2, &pages, 37..100, 6, 63 * 6).collect::<Vec<_>>();
        assert_eq!([some(2..3), some(3..5)].concat(), all);
    }

    #[test]
    fn layers_are_copied_in_a_few_groups_of_long_copies() {
        let of_rows = |chunks: &[(Range<u16>, usize)]| {
            let chunks = chunks.iter().map(|(layers, n_rows)| (layers.clone(), n_rows * 2048));
            groups(&chunks.collect::<Vec<_>>())
        };
        let ends = |chunks: &[(Range<u16>, usize)]| {
            let groups = of_rows(chunks);
            // Every layer of every chunk is copied once, in order, and in time.
            let mut next: Vec<u16> = chunks.iter().map(|(layers, _)| layers.start).collect();
            for Group { runs, end } in &groups {
                for (n, run) in runs {
                    assert!(run.start == next[*n] && !run.is_empty());
                    next[*n] = run.end;
                }
                let is_there = |(next, (layers, _)): (&u16, &(Range<u16>, usize))| {
                    *next >= *end.min(&layers.end)
                };
                assert!(next.iter().zip(chunks).all(is_there), "{groups:?}");
            }
            assert!(next.iter().zip(chunks).all(|(next, (layers, _))| *next == layers.end));
            groups.iter().map(|group| group.end).collect::<Vec<_>>()
        };
        // 0.6B and 8B, 256 tokens; a larger chunk.
        assert_eq!(ends(&vec![(0..28, 256); 64]), [8, 16, 24, 28]);
        assert_eq!(ends(&[(0..36, 256)]), [8, 16, 24, 32, 36]);
        assert_eq!(ends(&[(0..36, 16_384)]), [5, 10, 15, 20, 25, 30, 35, 36]);
        // A small one beside it comes first, as a whole.
        assert_eq!(ends(&[(0..36, 16_384), (0..36, 3)])[..2], [5, 10]);
        assert_eq!(of_rows(&[(0..36, 9999), (0..36, 3)])[0].runs, [(0, 0..5), (1, 0..36)]);
        assert_eq!(ends(&[(3..7, 9999), (1..2, 9999)]), [3, 4, 5, 6, 7]);
        assert!(ends(&[]).is_empty() && ends(&[(4..4, 9)]).is_empty());
    }

    #[test]
    fn a_stage_holds_a_page_of_any_model_and_is_small_for_small_ones() {
        for name in weft_core::shapes::NAMES {
            let config = weft_core::shapes::config(name).unwrap();
            let half = half_bytes(&config);
            assert!(half >= PAGE_ROWS * config.kv_width() * 2 && half <= HALF_BYTES, "{name}");
        }
    }
}
