//! What the service promises: rows come back as they were, writes are behind and bounded, a store
//! that fails is left alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use weft_core::chunk::{ChunkId, Kind};
use weft_core::engine::{Fetched, RemoteTier};
use weft_core::store::{Header, HostRows, KvKey, RowForm};
use weft_remote::{BreakerState, Limits, Sweep, Trust};

use super::faulty::{Faulty, denied, full, reset, server_error};
use super::*;

#[test]
fn rows_come_back_on_another_machine_as_they_were() {
    let store = Faulty::new();
    let here = open(&store);
    let wanted: Vec<Header> = (1..6).map(|n| header(&vec![n; n as usize])).collect();
    wanted.iter().for_each(|header| store_rows(&here, header));
    let there = open(&store);
    for header in &wanted {
        assert_eq!(fetch(&there, header).as_ref(), Some(&*rows(header)));
    }
    assert_eq!(fetch(&there, &header(&[99])), None);
    let stats = there.stats();
    assert_eq!((stats.hits, stats.misses, stats.reads.count), (5, 1, 5));
    assert_eq!(reasons(&stats), [("absent", 1)]);
    assert_eq!((here.stats().stored, here.stats().present), (5, 0));
    store_rows(&there, &wanted[0]);
    assert_eq!((there.stats().stored, there.stats().present), (0, 1));
}

#[test]
fn long_rows_travel_in_parts_and_in_ranges() {
    let store = Faulty::new();
    let remote = open(&store);
    // 20 MB: more than one part, and a layer is more than one range.
    let long = Header { layers: 2, kv_width: 5_000, ..header(&[7; 501]) };
    store_rows(&remote, &long);
    let before = store.reads();
    assert!(fetch(&remote, &long).as_ref() == Some(&*rows(&long)));
    assert_eq!(store.reads() - before, 4, "a manifest and three ranges");
    assert_eq!(remote.stats().read_bytes, 2 * 2 * 5_000 * 501 * 2);
}

/// Its parts take room in the store.
#[test]
fn an_upload_that_fails_is_given_up() {
    let store = Faulty::new();
    let remote = open(&store);
    let long = Header { layers: 2, kv_width: 5_000, ..header(&[7; 501]) };
    *store.refuses_parts.lock().unwrap() = Some(full);
    assert!(remote.put(&key(&long), &long, rows(&long)));
    assert_eq!(remote.flush(LONG), 0);
    assert_eq!((remote.stats().count_failed("failed"), store.paths().len()), (1, 0));
    assert_eq!(store.n_aborted.load(Ordering::SeqCst), 1);
}

/// A reader that comes in between finds no manifest, and no manifest without its rows.
#[test]
fn the_manifest_is_deleted_before_everything_else() {
    let store = Faulty::new();
    let remote = open(&store);
    let header = header(&[1, 2]);
    let chunk = ChunkId::of(Kind::Context, &[1, 2]);
    assert!(RemoteTier::put(&remote, &chunk, &key(&header), &header, rows(&header)));
    assert_eq!(remote.flush(LONG), 0);
    let before = store.paths();
    assert_eq!(before.len(), 3, "rows, their manifest, and their use by a chunk: {before:?}");
    remote.sweep(&Sweep { older_than: Some(Duration::ZERO), max_bytes: None }).unwrap();
    let mut deleted = store.deleted.lock().unwrap().clone();
    assert!(deleted[0].as_ref().ends_with("/manifest"), "{deleted:?}");
    deleted.sort();
    assert_eq!(deleted, before);
}

#[test]
fn the_manifest_is_written_last_and_without_it_there_are_no_rows() {
    let store = Faulty::new();
    let header = header(&[1, 2]);
    store_rows(&open(&store), &header);
    let paths = store.paths();
    let [rows_path, manifest] = &paths[..] else { panic!("{paths:?}") };
    assert!(manifest.as_ref().ends_with("/manifest"), "{manifest}");
    assert!(rows_path.as_ref().starts_with("team/kv/rows/"), "{rows_path}");
    let other = Faulty::new();
    other.write(rows_path, store.bytes(rows_path));
    let remote = open(&other);
    assert_eq!(fetch(&remote, &header), None);
    assert_eq!(reasons(&remote.stats()), [("absent", 1)]);
}

#[test]
fn a_store_that_ignores_conditions_is_as_good() {
    let store = Faulty::new();
    store.ignores_create.store(true, Ordering::SeqCst);
    let (one, two) = (open(&store), open(&store));
    let header = header(&[1, 2]);
    store.is_slow.store(true, Ordering::SeqCst);
    // Both find no manifest, then both write.
    assert!(one.put(&key(&header), &header, rows(&header)));
    assert!(two.put(&key(&header), &header, rows(&header)));
    while store.reads() < 2 {
        std::thread::yield_now();
    }
    store.gate.add_permits(1000);
    assert_eq!((one.flush(LONG), two.flush(LONG)), (0, 0));
    assert_eq!(store.paths().len(), 2);
    assert_eq!(fetch(&open(&store), &header).as_ref(), Some(&*rows(&header)));
}

#[test]
fn an_absence_is_remembered_until_somebody_here_stores_the_rows() {
    let store = Faulty::new();
    let remote = open(&store);
    let header = header(&[1, 2]);
    (0..10).for_each(|_| assert_eq!(fetch(&remote, &header), None));
    assert_eq!(store.reads(), 1);
    assert_eq!(reasons(&remote.stats()), [("absent", 1), ("recently_absent", 9)]);
    store_rows(&remote, &header);
    assert!(fetch(&remote, &header).is_some());
}

#[test]
fn the_queue_is_bounded_in_bytes_and_what_does_not_fit_is_dropped() {
    let store = Faulty::new();
    let header = header(&[1, 2]);
    let bytes = 2 * header.tensor_bytes().unwrap() as u64;
    let remote =
        open_as(&store, Trust::Key(KEY), Limits { queue_bytes: 2 * bytes + 1, ..limits() });
    store.is_slow.store(true, Ordering::SeqCst);
    let put = |n: u32| {
        let header = super::header(&[n, n]);
        remote.put(&key(&header), &header, rows(&header))
    };
    assert_eq!([1, 2, 3, 4].map(put), [true, true, false, false]);
    assert_eq!((remote.stats().queued, remote.stats().dropped), ((2, 2 * bytes), 2));
    store.gate.add_permits(1000);
    assert_eq!(remote.flush(LONG), 0);
    assert_eq!((remote.stats().queued, remote.stats().stored), ((0, 0), 2));
    assert!(put(3));
    assert_eq!(remote.close(LONG).stored, 3);
}

#[test]
fn rows_that_are_larger_than_the_queue_wait_alone() {
    let store = Faulty::new();
    let remote = open_as(&store, Trust::Key(KEY), Limits { queue_bytes: 1, ..limits() });
    store.is_slow.store(true, Ordering::SeqCst);
    let put = |n: u32| {
        let header = header(&[n, n]);
        remote.put(&key(&header), &header, rows(&header))
    };
    assert_eq!([1, 2].map(put), [true, false]);
    store.gate.add_permits(1000);
    assert_eq!(remote.flush(LONG), 0);
    assert!(put(2));
    assert_eq!(remote.close(LONG).stored, 2);
}

#[test]
fn closing_ends_within_its_limit_and_counts_what_is_lost() {
    let store = Faulty::new();
    let remote = open(&store);
    let header = header(&[1, 2]);
    store.is_slow.store(true, Ordering::SeqCst);
    assert!(remote.put(&key(&header), &header, rows(&header)));
    let answer = remote.fetch(&key(&header), &header);
    let stats = remote.close(Duration::from_millis(1));
    assert_eq!((stats.dropped, stats.stored), (1, 0));
    // A fetch that nobody will answer ends too.
    assert!(answer.recv_timeout(LONG).is_err());
}

#[test]
fn one_timeout_opens_the_breaker_and_then_nothing_is_asked() {
    let store = Faulty::new();
    let limits = Limits { fetch: Duration::from_millis(20), ..limits() };
    let remote = open_as(&store, Trust::Key(KEY), limits);
    store.is_slow.store(true, Ordering::SeqCst);
    assert_eq!(fetch(&remote, &header(&[1])), None);
    assert_eq!((store.reads(), remote.stats().read_breaker), (1, BreakerState::Open));
    for n in 2..1000 {
        let header = header(&[n]);
        // The answer is there when the call returns.
        assert_eq!(remote.fetch(&key(&header), &header).try_recv(), Ok(None));
    }
    assert_eq!(store.reads(), 1);
    let stats = remote.stats();
    assert_eq!(reasons(&stats), [("breaker_open", 998), ("timeout", 1)]);
    assert_eq!((stats.n_opened, remote.take_warnings().len()), (1, 1));
    assert_eq!(remote.take_warnings(), Vec::<String>::new());
    assert_eq!(stats.write_breaker, BreakerState::Closed, "writes have their own");
}

/// No range is late, and all of them together are.
#[test]
fn a_fetch_ends_in_its_time_however_its_parts_come() {
    let store = Faulty::new();
    let header = header(&[1, 2]);
    store_rows(&open(&store), &header);
    let limits = Limits { whole_fetch: Duration::from_millis(300), ..limits() };
    let remote = open_as(&store, Trust::Key(KEY), limits);
    // The manifest comes, and then nothing.
    store.is_slow.store(true, Ordering::SeqCst);
    store.gate.add_permits(1);
    let answer = remote.fetch(&key(&header), &header);
    assert_eq!(answer.recv_timeout(Duration::from_secs(60)), Ok(None));
    assert_eq!(reasons(&remote.stats()), [("timeout", 1)]);
}

#[test]
fn failing_answers_open_the_breaker_after_a_few_and_each_is_counted() {
    for (error, reason) in
        [(server_error as fn() -> _, "failed"), (reset, "failed"), (denied, "denied")]
    {
        let store = Faulty::new();
        let remote = open(&store);
        *store.refuses_reads.lock().unwrap() = Some(error);
        (0..5).for_each(|n| assert_eq!(fetch(&remote, &header(&[n])), None));
        let stats = remote.stats();
        assert_eq!((stats.count(reason), stats.count("breaker_open")), (3, 2), "{stats:?}");
        let warnings = remote.take_warnings();
        assert!(
            warnings.len() == 1 && warnings[0].contains("rows are not fetched"),
            "{warnings:?}"
        );
    }
}

#[test]
fn a_full_bucket_stops_writing_and_not_reading() {
    let store = Faulty::new();
    let remote = open(&store);
    store_rows(&remote, &header(&[1]));
    *store.refuses_writes.lock().unwrap() = Some(full);
    for n in 2..7 {
        let header = header(&[n]);
        remote.put(&key(&header), &header, rows(&header));
        assert_eq!(remote.flush(LONG), 0);
    }
    let stats = remote.stats();
    assert_eq!((stats.stored, stats.count_failed("failed"), stats.dropped), (1, 3, 2));
    assert_eq!(stats.write_breaker, BreakerState::Open);
    assert!(fetch(&remote, &header(&[1])).is_some());
    assert_eq!(fetch(&remote, &header(&[2])), None);
    assert!(remote.take_warnings()[0].contains("the bucket is full"));
}

#[test]
fn a_slow_fetch_delays_no_other_and_too_many_are_refused() {
    let store = Faulty::new();
    let remote = open(&store);
    store_rows(&remote, &header(&[1]));
    let remote = open_as(
        &store,
        Trust::Key(KEY),
        Limits { fetches_at_once: 2, fetches_waiting: 1, ..limits() },
    );
    store.is_slow.store(true, Ordering::SeqCst);
    let fetch = |n: u32| remote.fetch(&key(&header(&[n])), &header(&[n]));
    let (one, two, waits) = (fetch(1), fetch(2), fetch(3));
    assert_eq!(fetch(4).try_recv(), Ok(None));
    assert_eq!(remote.stats().count("busy"), 1);
    assert_eq!(one.try_recv(), Err(TryRecvError::Empty));
    store.gate.add_permits(1000);
    assert!(one.recv_timeout(LONG).unwrap().is_some());
    assert_eq!(two.recv_timeout(LONG).unwrap(), None);
    assert_eq!(waits.recv_timeout(LONG).unwrap(), None);
}

#[test]
fn rows_that_do_not_fit_their_header_or_key_are_not_written() {
    let store = Faulty::new();
    let remote = open(&store);
    let header = header(&[1, 2]);
    let short = Arc::new(HostRows { k: vec![0; 3].into(), v: vec![0; 3].into() });
    remote.put(&key(&header), &header, short);
    remote.put(&KvKey::from_bytes([5; 32]), &header, rows(&header));
    assert_eq!(remote.flush(LONG), 0);
    assert_eq!(store.paths(), []);
    let stats = remote.stats();
    assert_eq!((stats.count_failed("form"), stats.count_failed("key")), (1, 1));
}

/// The only turn is held by a fetch that the store does not answer.
#[test]
fn a_fetch_that_nobody_wants_gives_its_turn_back() {
    let store = Faulty::new();
    let (first, second) = (header(&[1, 2]), header(&[3, 4]));
    for header in [&first, &second] {
        store_rows(&open(&store), header);
    }
    let remote = open_as(&store, Trust::Key(KEY), Limits { fetches_at_once: 1, ..limits() });
    store.is_slow.store(true, Ordering::SeqCst);
    let before = store.reads();
    let (sender, answers) = std::sync::mpsc::channel();
    let ask = |header: &Header| {
        let sender = sender.clone();
        let done = Box::new(move |fetched| sender.send(fetched).unwrap());
        RemoteTier::fetch(&remote, &key(header), header, done).unwrap()
    };
    let interest = ask(&first);
    wait_until("the first one asks", || store.reads() > before);
    let _wanted = ask(&second);
    drop(interest);
    wait_until("the first one is given up", || remote.stats().misses > 0);
    // The second one asks now, though the first one never got an answer.
    wait_until("the second one asks", || store.reads() > before + 1);
    store.gate.add_permits(1000);
    let Fetched::Rows { rows: found, .. } = answers.recv_timeout(LONG).unwrap() else {
        panic!("no rows")
    };
    assert_eq!(found, *rows(&second));
    let stats = remote.stats();
    assert_eq!((stats.hits, reasons(&stats)), (1, vec![("unwanted", 1)]));
    assert_eq!(stats.read_breaker, BreakerState::Closed);
    assert!(remote.take_warnings().is_empty());
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "never: {what}");
        std::thread::yield_now();
    }
}

/// Numbers rather than any bytes, which 8 bits need.
fn numbers(header: &Header) -> Arc<HostRows> {
    let n = header.full_bytes().unwrap() / 2;
    let tensor = |from: usize| -> Vec<u8> {
        let number = |i: usize| (((i * 37 + from) % 401) as f32 - 200.0) / 64.0;
        let bytes = |i: usize| ((number(i).to_bits() >> 16) as u16).to_le_bytes();
        (from..from + n).flat_map(bytes).collect()
    };
    Arc::new(HostRows { k: tensor(0).into(), v: tensor(7).into() })
}

fn coarse(tokens: &[u32]) -> Header {
    Header { form: RowForm::Int8 { group: 16 }, reuse: "coarse".to_owned(), ..header(tokens) }
}

#[test]
fn coarse_rows_travel_in_8_bits_under_their_own_name() {
    let store = Faulty::new();
    let (full, coarse) = (header(&[1, 2]), coarse(&[1, 2]));
    let here = open(&store);
    assert!(here.put(&key(&coarse), &coarse, numbers(&coarse)));
    assert_eq!(here.flush(LONG), 0);
    let there = open(&store);
    assert_eq!(fetch(&there, &full), None, "whoever wants full rows does not find them");
    let found = fetch(&there, &coarse).unwrap();
    let stored = coarse.stored(&numbers(&coarse)).unwrap().unwrap();
    assert_eq!(found, coarse.read_stored(stored.clone()).unwrap());
    let bytes = there.stats().read_bytes;
    assert_eq!(bytes, 2 * stored.k.len() as u64);
    assert!(bytes < 2 * 6 * full.full_bytes().unwrap() as u64 / 10);
    // They stay the same when they are written again.
    assert!(there.put(&key(&coarse), &coarse, Arc::new(found)));
    assert_eq!((there.flush(LONG), there.stats().present, store.paths().len()), (0, 1, 2));
}

#[test]
fn rows_that_are_not_finite_are_not_written_in_8_bits() {
    let store = Faulty::new();
    let remote = open(&store);
    let coarse = coarse(&[1, 2]);
    let mut rows = HostRows::clone(&numbers(&coarse));
    rows.k[..2].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    assert!(remote.put(&key(&coarse), &coarse, Arc::new(rows)));
    assert_eq!(remote.flush(LONG), 0);
    assert_eq!((remote.stats().count_failed("form"), store.paths().len()), (1, 0));
}
