//! Writes rows to a store and reads them back, for tests against real servers
//! (`tools/remote/check.py`).
//!
//!     exercise write|read|delete URL FIRST COUNT
//!
//! `write` stores the entries FIRST to FIRST + COUNT, `read` fetches them with a fresh service and
//! compares every byte, `delete` sweeps all rows. The result is one line of JSON. Entries are
//! computed from their number, so two processes mean the same.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use weft_core::dtype::Dtype;
use weft_core::store::{Header, HostRows, KvKey, RowForm, SigningKey};
use weft_remote::{Limits, Remote, RemoteStats, Sweep, Trust};

fn header(n: u32) -> Header {
    Header {
        fingerprint: "exercise".to_owned(),
        dtype: Dtype::Bf16,
        form: RowForm::Full,
        layers: 28,
        kv_width: 1024,
        reuse: "exact".to_owned(),
        parent: KvKey::NOTHING,
        home_position: 0,
        // From 1 to 64 tokens: 0.1 to 7 MB.
        tokens: vec![n; 1 + (n as usize * 7) % 64],
        prefill_us: 1000,
    }
}

fn key(header: &Header) -> KvKey {
    header.key()
}

fn rows(header: &Header) -> HostRows {
    let n = header.tensor_bytes().expect("it is small");
    let byte = |i: usize| (i * 31 + i / 251 + header.tokens[0] as usize * 17) as u8;
    HostRows { k: (0..n).map(byte).collect(), v: (n..2 * n).map(byte).collect() }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, url, first, count] = &args[..] else {
        panic!("usage: exercise write|read|delete URL FIRST COUNT")
    };
    let first: u32 = first.parse().expect("FIRST is a number");
    let count: u32 = count.parse().expect("COUNT is a number");
    let trust = Trust::Key(SigningKey::from_bytes([3; 32]));
    let limits = Limits { queue_bytes: 1 << 30, ..Limits::default() };
    let remote = Remote::open(url, trust, limits).expect("the URL names a store");
    let begun = Instant::now();
    let mut result = json!({ "what": what });
    match what.as_str() {
        "write" => {
            for n in first..first + count {
                let header = header(n);
                remote.put(&key(&header), &header, Arc::new(rows(&header)));
            }
            result["left"] = remote.flush(Duration::from_secs(300)).into();
        }
        "read" => {
            let (mut right, mut wrong) = (0, 0);
            let mut times = Vec::new();
            for n in first..first + count {
                let (header, begun) = (header(n), Instant::now());
                match remote.fetch(&key(&header), &header).recv() {
                    Ok(Some(found)) if found == rows(&header) => right += 1,
                    Ok(Some(_)) => wrong += 1,
                    Ok(None) | Err(_) => {}
                }
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            times.sort_by(f64::total_cmp);
            result["right"] = right.into();
            result["wrong"] = wrong.into();
            result["median_ms"] = times[times.len() / 2].into();
            result["longest_ms"] = times[times.len() - 1].into();
        }
        _ => {
            let swept = remote.sweep(&Sweep { older_than: Some(Duration::ZERO), max_bytes: None });
            result["deleted"] = swept.map_or(json!(null), |swept| json!(swept.deleted.0));
        }
    }
    result["seconds"] = begun.elapsed().as_secs_f64().into();
    result["stats"] = facts(&remote.stats());
    result["warnings"] = remote.take_warnings().into();
    println!("{result}");
}

fn facts(stats: &RemoteStats) -> serde_json::Value {
    json!({
        "hits": stats.hits,
        "misses": stats.misses,
        "reasons": stats.reasons,
        "read_bytes": stats.read_bytes,
        "stored": stats.stored,
        "present": stats.present,
        "written_bytes": stats.written_bytes,
        "failed_writes": stats.failed_writes,
        "dropped": stats.dropped,
        "read_breaker": stats.read_breaker.name(),
        "write_breaker": stats.write_breaker.name(),
    })
}
