//! Rows that only the requests of one group share: the choices of one answer that must not use the
//! cache. They are found under their own root, and they go with the group's last request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::{Cache, Node, NodeId};
use crate::store::Prefix;

/// Requests that share the rows of their prompts even without the cache. The rows stay as long as a
/// request of the group runs or holds a clone of this.
#[derive(Clone, Debug)]
pub struct RowGroup(Arc<GroupId>);

/// A group's id. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupId(u64);

impl Default for RowGroup {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(Arc::new(GroupId(NEXT.fetch_add(1, Ordering::Relaxed))))
    }
}

impl RowGroup {
    pub(crate) fn id(&self) -> GroupId {
        *self.0
    }
}

/// A group as the cache knows it.
pub(super) type Waiting = Weak<GroupId>;

impl Cache {
    /// Lets the rows of a group stay until its last request has gone.
    pub(crate) fn join(&mut self, group: &RowGroup) {
        self.groups.entry(group.id()).or_insert_with(|| Arc::downgrade(&group.0));
    }

    /// The empty context of all requests, or of a group.
    pub(crate) fn root_of(&self, group: Option<GroupId>) -> Prefix {
        let mut root = self.root();
        if let Some(GroupId(id)) = group {
            root.add_group(id);
        }
        root
    }

    /// Whether a request of the node's group may still need it.
    pub(super) fn is_awaited(&self, node: &Node) -> bool {
        let waiting = node.group.and_then(|group| self.groups.get(&group));
        waiting.is_some_and(|waiting| waiting.strong_count() > 0)
    }

    /// The number of groups that the cache knows.
    #[cfg(test)]
    pub(crate) fn n_groups(&self) -> usize {
        self.groups.len()
    }

    /// Drops the unused rows of groups whose last waiting request has gone.
    pub(crate) fn drop_unawaited(&mut self) {
        if self.groups.is_empty() {
            return;
        }
        let is_over =
            |node: &Node| node.group.is_some() && node.users == 0 && !self.is_awaited(node);
        let over = self.nodes.iter().filter(|(_, node)| is_over(node));
        let over: Vec<NodeId> = over.map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.drop_node(id));
        self.groups.retain(|_, waiting| waiting.strong_count() > 0);
    }
}
