//! How a lane's rows lie in pages: those of a node may go on in a page that holds rows before them.
//!
//! A lane writes only to pages that were taken for it. What such a page holds of earlier rows is
//! copied into it when they are all there, before a step uses the page.

use super::Sequence;
use crate::cache::{Begin, Cache, NodeId};
use crate::device::Device;
use crate::engine::held::{AnswerStart, HeldNode};
use crate::kv::PageId;

/// The answer's rows: pages of its own, taken one by one of those that were promised.
pub(super) struct Answer {
    /// None before the first row.
    pub(super) pages: Vec<PageId>,
    pub(super) start: AnswerStart,
    pub(super) promised: usize,
    pub(super) stored: usize,
    /// Whether its rows are kept.
    pub(super) is_kept: bool,
}

impl Answer {
    /// The next row, counted from the first row of the first page.
    pub(super) fn next_row(&self) -> usize {
        self.start.begin.lead + self.stored
    }
}

impl Sequence {
    /// Copies what is missing of the rows before those of nodes in their first pages, for the first
    /// `n` nodes. All that those see is there.
    pub(in crate::engine) fn complete_pages(
        &mut self,
        n: usize,
        cache: &mut Cache,
        device: &mut dyn Device,
    ) {
        for index in self.n_complete..n {
            let HeldNode { node, sees, lead, ref pages, .. } = self.nodes[index];
            if lead == 0 {
                continue;
            }
            let (from, to) = (self.nodes[sees - 1].last_page(), pages[0]);
            if from != to {
                if !cache.node(node).has_lead {
                    device.copy_rows(from, to, lead);
                }
                self.move_ends(sees, to, cache);
            }
            cache.node_mut(node).has_lead = true;
        }
        self.n_complete = self.n_complete.max(n);
    }

    /// Has nodes that end in the last page of the first `n` nodes end in page `to` instead, which holds
    /// their rows too.
    fn move_ends(&self, n: usize, to: PageId, cache: &mut Cache) {
        let from = self.nodes[n - 1].last_page();
        let ends_there = |held: &&HeldNode| held.last_page() == from;
        let nodes = self.nodes[..n].iter().rev().take_while(ends_there);
        // A node of which the prompt uses a part has rows after it.
        let whole = nodes.filter(|held| held.range.len() == cache.node(held.node).len());
        let nodes: Vec<NodeId> = whole.map(|held| held.node).collect();
        cache.move_ends(&nodes, from, to);
    }

    /// Gives the answer its first page, unless that begins with its first row: the prompt's last page,
    /// or a copy of it.
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
                device.copy_rows(self.nodes[n_nodes - 1].last_page(), copy, lead);
                self.move_ends(n_nodes, copy, cache);
                copy
            }
        };
        self.answer.pages.push(first);
    }
}
