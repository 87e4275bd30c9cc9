//! The metrics of the remote tier.

use std::fmt::Display;

use weft_core::engine::{BreakerState, CacheStats, RemoteStats};

use super::{head, line};

/// Writes the series; none without a remote tier.
pub(super) fn write(text: &mut String, cache: &CacheStats) {
    let Some(remote) = &cache.remote else { return };
    write_fetches(text, remote);
    write_writes(text, remote);
    let counters = [
        ("weft_remote_read_bytes_total", "Bytes of rows fetched.", remote.read_bytes),
        ("weft_remote_written_bytes_total", "Bytes written.", remote.written_bytes),
        ("weft_remote_breaker_opened_total", "Times that the store was given up.", remote.n_opened),
        (
            "weft_remote_not_asked_total",
            "Rows not asked for, because computing them is expected to be faster.",
            cache.not_asked,
        ),
    ];
    for (name, help, count) in counters {
        one(text, name, help, "counter", count);
    }
    let name = "weft_remote_fetch_seconds";
    head(text, name, "Time of the fetches that returned rows.", "summary");
    line(text, format_args!("{name}_sum"), remote.reads.total.as_secs_f64());
    line(text, format_args!("{name}_count"), remote.reads.count);
    let help = "Bytes of rows that wait to be written.";
    one(text, "weft_remote_queue_bytes", help, "gauge", remote.queued.1);
    let name = "weft_remote_open";
    head(text, name, "1 if the store is left alone because it has failed.", "gauge");
    for (what, state) in [("read", remote.read_breaker), ("write", remote.write_breaker)] {
        let is_open = u8::from(state != BreakerState::Closed);
        line(text, format_args!("{name}{{what=\"{what}\"}}"), is_open);
    }
}

fn write_fetches(text: &mut String, remote: &RemoteStats) {
    let name = "weft_remote_fetches_total";
    head(text, name, "Fetches from the remote store, by result.", "counter");
    line(text, format_args!("{name}{{result=\"hit\"}}"), remote.hits);
    for (reason, count) in &remote.reasons {
        line(text, format_args!("{name}{{result=\"{reason}\"}}"), count);
    }
}

fn write_writes(text: &mut String, remote: &RemoteStats) {
    let name = "weft_remote_writes_total";
    head(text, name, "Rows offered to the remote store, by result.", "counter");
    let results =
        [("stored", remote.stored), ("present", remote.present), ("dropped", remote.dropped)];
    let failed = remote.failed_writes.iter().map(|(reason, count)| (*reason, *count));
    for (result, count) in results.into_iter().chain(failed) {
        line(text, format_args!("{name}{{result=\"{result}\"}}"), count);
    }
}

fn one(text: &mut String, name: &str, help: &str, kind: &str, value: impl Display) {
    head(text, name, help, kind);
    line(text, format_args!("{name}"), value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_has_its_series() {
        let mut text = String::new();
        write(&mut text, &CacheStats::default());
        assert_eq!(text, "", "there is no remote tier");
        let mut remote = RemoteStats { hits: 2, dropped: 1, ..RemoteStats::default() };
        remote.reasons.insert("timeout", 3);
        remote.failed_writes.insert("denied", 4);
        remote.read_breaker = BreakerState::HalfOpen;
        write(&mut text, &CacheStats { remote: Some(remote), ..CacheStats::default() });
        for series in [
            "weft_remote_fetches_total{result=\"hit\"} 2\n",
            "weft_remote_fetches_total{result=\"timeout\"} 3\n",
            "weft_remote_writes_total{result=\"dropped\"} 1\n",
            "weft_remote_writes_total{result=\"denied\"} 4\n",
            "weft_remote_open{what=\"read\"} 1\n",
            "weft_remote_open{what=\"write\"} 0\n",
        ] {
            assert!(text.contains(series), "{series}: {text}");
        }
    }
}
