//! What an object of a store takes of memory while it is read: little more than its bytes.
#![cfg(target_os = "linux")]

use std::fs;
use std::sync::Arc;

use futures_util::StreamExt;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use weft_core::dtype::Dtype;
use weft_core::store::{Header, HostRows, KvKey, RowForm};
use weft_remote::{Limits, Remote, Trust};

/// The most memory that this process had so far.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let kilobytes = status.split_once("VmHWM:").unwrap().1.split_whitespace().next().unwrap();
    kilobytes.parse::<u64>().unwrap() * 1024
}

/// Replaces the tokens of the only manifest by as many zeros as fit, and seals it again.
async fn fill_manifest(store: &InMemory) {
    let mut paths = store.list(None).map(|meta| meta.unwrap().location);
    let path = loop {
        let path = paths.next().await.unwrap();
        if path.as_ref().ends_with("/manifest") {
            break path;
        }
    };
    let text = store.get(&path).await.unwrap().bytes().await.unwrap();
    let body = str::from_utf8(&text).unwrap().lines().next().unwrap();
    let zeros = "0,".repeat(4_190_000);
    let body = body.replace("\"tokens\":[", &format!("\"tokens\":[{zeros}"));
    let seal = format!("{{\"blake3\":\"{}\"}}", blake3::hash(body.as_bytes()));
    store.put(&path, format!("{body}\n{seal}\n").into()).await.unwrap();
}

/// The only test of this program: others would change its memory.
#[test]
fn a_manifest_of_zeros_takes_little_memory() {
    let store = Arc::new(InMemory::new());
    let remote = Remote::with_store(store.clone(), "kv", Trust::Anyone, Limits::default()).unwrap();
    let header = Header {
        fingerprint: "model on device".to_owned(),
        dtype: Dtype::F32,
        form: RowForm::Full,
        layers: 1,
        kv_width: 1,
        reuse: "exact".to_owned(),
        parent: KvKey::NOTHING,
        home_position: 0,
        tokens: vec![1],
        prefill_us: 5,
    };
    let rows = HostRows { k: vec![0; 4].into(), v: vec![0; 4].into() };
    assert!(remote.put(&header.key(), &header, Arc::new(rows)));
    assert_eq!(remote.flush(Limits::default().write), 0);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(fill_manifest(&store));
    let before = peak();
    assert_eq!(remote.fetch(&header.key(), &header).recv().unwrap(), None);
    let took = peak() - before;
    assert_eq!(remote.stats().reasons.keys().collect::<Vec<_>>(), [&"key"]);
    assert!(took < 64_000_000, "{took} bytes");
}
