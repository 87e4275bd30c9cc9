//! Lists objects. A store that lies could list without end: every object counts before its name is
//! looked at, and of each only what is read later stays in memory.

use futures_util::{Stream, StreamExt};
use object_store::ObjectMeta;
use object_store::path::Path;

use crate::get::{Bucket, miss};
use crate::miss::Miss;

/// Maximum number of objects in a folder: far more than the chunks or the rows of a team.
const MOST_LISTED: usize = 1_000_000;

impl Bucket {
    /// The objects of a folder, until there are too many.
    pub(crate) fn listed(
        &self,
        folder: &Path,
    ) -> impl Stream<Item = Result<ObjectMeta, Miss>> + Send + 'static {
        let bounded = |(n, meta): (usize, object_store::Result<ObjectMeta>)| {
            if n >= MOST_LISTED {
                return Err(Miss::TooMany { limit: MOST_LISTED });
            }
            // Tags and versions may be of any length, and nobody reads them.
            meta.map(|meta| ObjectMeta { e_tag: None, version: None, ..meta }).map_err(miss)
        };
        self.store.list(Some(folder)).enumerate().map(bounded)
    }
}
