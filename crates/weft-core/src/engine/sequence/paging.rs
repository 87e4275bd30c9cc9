//! Pages of a lane's rows. The rows of a node may continue in a page that holds earlier rows.
//!
//! A lane writes only to pages that were taken for it, and to the missing rows of a node that it
//! takes over. Earlier rows of such a page are copied into it once they are all computed, before a
//! step uses the page.

use super::Sequence;
use crate::cache::{Begin, Cache, NodeId};
use crate::device::Device;
use crate::engine::held::{AnswerStart, HeldNode};
use crate::engine::placement::Sees;
use crate::kv::PageId;

/// The answer's rows, in their own pages, taken one by one from the promised ones.
pub(super) struct Answer {
    /// Empty before the first row.
    pub(super) pages: Vec<PageId>,
    pub(super) start: AnswerStart,
    pub(super) promised: usize,
    pub(super) stored: usize,
    /// Whether its rows are cached.
    pub(super) is_kept: bool,
}

impl Answer {
    /// The next row, counted from the first row of the first page.
    pub(super) fn next_row(&self) -> usize {
        self.start.begin.lead + self.stored
    }
}

impl Sequence {
    /// Copies the missing earlier rows into the first pages of the first `n` nodes. All rows that
    /// these nodes attend to have been computed.
    pub(in crate::engine) fn complete_pages(
        &mut self,
        n: usize,
        cache: &mut Cache,
        device: &mut dyn Device,
    ) {
        for index in self.n_complete..n {
            let HeldNode { node, ref sees, lead, ref pages, .. } = self.nodes[index];
            let Some(last) = sees.places().next_back().filter(|_| lead > 0) else { continue };
            let (from, to) = (self.nodes[last].last_page(), pages[0]);
            if from != to {
                if !cache.node(node).has_lead {
                    device.copy_rows(from, to, lead);
                }
                self.move_ends(sees, from, to, cache);
            }
            cache.node_mut(node).has_lead = true;
        }
        self.n_complete = self.n_complete.max(n);
    }

    /// Makes those of the nodes that end in page `from` end in page `to` instead, which also holds
    /// their rows.
    fn move_ends(&self, nodes: &Sees, from: PageId, to: PageId, cache: &mut Cache) {
        let ends_there = |held: &&HeldNode| held.last_page() == from;
        let nodes = nodes.places().rev().map(|place| &self.nodes[place]).take_while(ends_there);
        // If the prompt uses only a part of a node, the node has rows after it.
        let whole = nodes.filter(|held| held.range.len() == cache.node(held.node).len());
        let nodes: Vec<NodeId> = whole.map(|held| held.node).collect();
        cache.move_ends(&nodes, from, to);
    }

    /// Gives the answer its first page, unless that page starts with the answer's first row: the
    /// prompt's last page, or a copy of it.
    pub(super) fn begin_answer(&mut self, cache: &mut Cache, device: &mut dyn Device) {
        let Begin { lead, page } = self.answer.start.begin;
        if lead == 0 {
            return;
        }
        let first = match page {
            Some(page) => {
                cache.hold_pages(&[page]);
                page
            }
            None => {
                let copy = self.take_pages(1, cache, device)[0];
                let n_nodes = self.nodes.len();
                let last = self.nodes[n_nodes - 1].last_page();
                device.copy_rows(last, copy, lead);
                self.move_ends(&Sees::first(n_nodes), last, copy, cache);
                copy
            }
        };
        self.answer.pages.push(first);
    }
}
