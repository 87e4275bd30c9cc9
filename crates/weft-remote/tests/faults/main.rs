//! The remote tier over a store that fails in every way: no wrong row is ever returned, every
//! failure is counted, and nobody waits for it.

mod engines;
mod faulty;
mod listing;
mod lying;
mod service;

use std::sync::Arc;
use std::time::Duration;

use faulty::Faulty;
use weft_core::dtype::Dtype;
use weft_core::store::{Header, HostRows, KvKey, RowForm, SigningKey};
use weft_remote::{Limits, Remote, RemoteStats, Trust};

/// Longer than any wait that must end by itself, on any machine.
const LONG: Duration = Duration::from_secs(300);

const KEY: SigningKey = SigningKey::from_bytes([3; 32]);

fn limits() -> Limits {
    Limits { fetch: LONG, whole_fetch: LONG, write: LONG, ..Limits::default() }
}

fn open_as(store: &Arc<Faulty>, trust: Trust, limits: Limits) -> Remote {
    Remote::with_store(Arc::clone(store) as _, "team/kv", trust, limits).unwrap()
}

fn open(store: &Arc<Faulty>) -> Remote {
    open_as(store, Trust::Key(KEY), limits())
}

fn header(tokens: &[u32]) -> Header {
    Header {
        fingerprint: "model on device".to_owned(),
        dtype: Dtype::Bf16,
        form: RowForm::Full,
        layers: 3,
        kv_width: 64,
        reuse: "exact".to_owned(),
        parent: KvKey::from_bytes([9; 32]),
        home_position: 17,
        tokens: tokens.to_vec(),
        prefill_us: 1234,
    }
}

fn key(header: &Header) -> KvKey {
    header.key()
}

fn rows(header: &Header) -> Arc<HostRows> {
    let n = header.tensor_bytes().unwrap();
    let byte = |i: usize| (i * 31 + i / 251 + header.tokens[0] as usize) as u8;
    Arc::new(HostRows { k: (0..n).map(byte).collect(), v: (n..2 * n).map(byte).collect() })
}

/// Writes the rows of a header, and waits until they are there.
fn store_rows(remote: &Remote, header: &Header) {
    assert!(remote.put(&key(header), header, rows(header)));
    assert_eq!(remote.flush(LONG), 0);
}

fn fetch(remote: &Remote, header: &Header) -> Option<HostRows> {
    remote.fetch(&key(header), header).recv_timeout(LONG).unwrap()
}

/// The reasons of all misses, with their counts.
fn reasons(stats: &RemoteStats) -> Vec<(&str, u64)> {
    stats.reasons.iter().map(|(name, count)| (*name, *count)).collect()
}
