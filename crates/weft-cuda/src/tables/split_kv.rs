//! Blocks that share the sections of a tile, and where each token's parts of the result go.

use weft_core::config::Config;
use weft_core::device::{Limits, Step};

use super::{Lists, max_partials};
use crate::shape::Shape;

/// When blocks share the sections of a tile: if there are so few tiles that most of the GPU would
/// be idle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SplitRule {
    pub(crate) kv_heads: usize,
    /// Blocks that the GPU runs at once.
    pub(crate) at_once: usize,
    /// Blocks that sections are shared out over.
    pub(crate) shared_over: usize,
    /// Parts that there is room for.
    pub(crate) most_partials: usize,
    /// Rows of a tile of queries; [`TILE_QUERIES`](super::TILE_QUERIES) if none are named.
    pub(crate) tile_queries: Option<usize>,
    /// Tiles that must see a section, on average, for pages to be laid.
    pub(crate) tiles_to_lay: usize,
}

/// If this many tiles see a section, laying its pages once takes less time than rearranging them in
/// every block.
pub(crate) const TILES_TO_LAY: usize = 7;

impl SplitRule {
    pub(crate) fn new(
        config: &Config,
        shape: &Shape,
        limits: &Limits,
        tiles_to_lay: usize,
    ) -> Self {
        // Two blocks share a multiprocessor, unless two warpgroups of a block attend. Then a block
        // takes long to begin; otherwise twice as many blocks as run at once are faster, since those
        // of short sections make room for others.
        let n_sms = shape.chip.n_sms;
        let (at_once, shared_over) =
            if shape.attends_tiled() { (n_sms, n_sms) } else { (2 * n_sms, 4 * n_sms) };
        Self {
            kv_heads: config.kv_heads,
            at_once,
            shared_over,
            most_partials: max_partials(limits),
            tile_queries: Some(shape.tile_queries()),
            tiles_to_lay,
        }
    }

    /// Blocks that share each of `n_tiles` tiles, of which the longest has `n_sections` sections.
    fn splits(&self, n_tiles: usize, n_sections: usize, n_partials: usize) -> usize {
        let blocks = n_tiles * self.kv_heads;
        if n_partials > self.most_partials || 2 * blocks > self.at_once {
            return 1;
        }
        (self.shared_over / blocks.max(1)).clamp(1, n_sections.max(1))
    }
}

impl Lists {
    /// Whether the pages of a step are laid before warpgroups attend to them.
    pub(super) fn lays_pages(&self) -> bool {
        let n_seen: usize = self.tiles.iter().map(|tile| tile.n_sections as usize).sum();
        n_seen >= self.split.tiles_to_lay * self.sections.len()
    }

    /// Gives every token of a step parts to combine if that is faster: one for each section that it
    /// sees.
    pub(super) fn split_tiles(&mut self, step: &Step<'_>) {
        let seen = |lane: usize, position: u32| {
            let own = &self.sections[self.lanes[lane].clone()];
            own.iter().take_while(|section| section.position <= position).count()
        };
        let lanes = step.lanes.iter().enumerate();
        let parts = lanes.flat_map(|(i, lane)| (0..).zip(lane.positions).map(move |t| (i, t)));
        let mut n_partials = 0;
        let partials: Vec<[u32; 4]> = parts
            .map(|(index, (of_lane, position))| {
                let n = seen(index, *position);
                n_partials += n;
                let [n_cells, first_cell] = self.cells_of(index, of_lane);
                [n as u32, (n_partials - n) as u32, n_cells, first_cell]
            })
            .collect();
        let n_sections = self.tiles.iter().map(|tile| tile.n_sections as usize).max();
        let n_sections = n_sections.unwrap_or_default();
        self.counts.n_splits = self.split.splits(self.tiles.len(), n_sections, n_partials);
        if self.counts.n_splits > 1 {
            self.counts.n_partials = n_partials;
            self.partials = partials;
        }
    }
}
