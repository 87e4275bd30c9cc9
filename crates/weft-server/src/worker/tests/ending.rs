//! The end of the engine's thread, beside a remote store.

use std::sync::Mutex;

use weft_core::engine::{Interest, RemoteStats, RemoteTier, WhenFetched};
use weft_core::store::{Header, HostRows, KvKey};

use super::*;

/// A remote store that remembers how long it was given to write the last rows.
#[derive(Default)]
struct LastRows(Mutex<Option<Duration>>);

impl RemoteTier for LastRows {
    fn fetch(&self, _: &KvKey, _: &Header, _: WhenFetched) -> Option<Interest> {
        None
    }

    fn put(&self, _: &ChunkId, _: &KvKey, _: &Header, _: Arc<HostRows>) -> bool {
        false
    }

    fn close(&self, limit: Duration) -> usize {
        *self.0.lock().unwrap() = Some(limit);
        0
    }

    fn stats(&self) -> RemoteStats {
        RemoteStats::default()
    }

    fn take_warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

#[test]
fn the_end_gives_the_remote_store_time_for_the_last_rows() {
    let remote = Arc::new(LastRows::default());
    let own = Arc::clone(&remote);
    let tiers = move || Tiers { remote: Some(Arc::clone(&own) as _), ..Tiers::default() };
    let bench = bench_on(LIMITS, tiers);
    assert_eq!(end(&mut bench.submit(3).unwrap()), (3, Ok(())));
    assert_eq!(*remote.0.lock().unwrap(), None);
    bench.worker.drain();
    bench.thread.join().unwrap();
    assert_eq!(*remote.0.lock().unwrap(), Some(Duration::from_secs(10)));
}
