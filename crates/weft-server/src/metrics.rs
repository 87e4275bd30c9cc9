//! The server's metrics, in the text format of Prometheus.
//!
//! Written by hand: a few counters, gauges and two histograms need no library. Counters are atomic;
//! only the table of routes takes a lock, once per request.

mod remote;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weft_core::chunk::Tier;
use weft_core::engine::{
    CacheStats, DraftSource, Engine, FinishReason, Finished, RemoteTier, TierStats,
};
use weft_core::store::StoreStats;

/// Upper bounds of the histograms' buckets, in microseconds.
const BORDERS_US: [u64; 16] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 60_000_000,
];

/// Durations, counted by size.
#[derive(Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BORDERS_US.len()],
    sum_us: AtomicU64,
    count: AtomicU64,
}

impl Histogram {
    pub(crate) fn observe(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = BORDERS_US.iter().position(|border| us <= *border) {
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        self.sum_us.fetch_add(us, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn write(&self, text: &mut String, name: &str, help: &str) {
        head(text, name, help, "histogram");
        let mut sum = 0;
        for (border, bucket) in BORDERS_US.iter().zip(&self.buckets) {
            sum += bucket.load(Ordering::Relaxed);
            let border = *border as f64 / 1e6;
            line(text, format_args!("{name}_bucket{{le=\"{border}\"}}"), sum);
        }
        let count = self.count.load(Ordering::Relaxed);
        line(text, format_args!("{name}_bucket{{le=\"+Inf\"}}"), count);
        let seconds = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        line(text, format_args!("{name}_sum"), seconds);
        line(text, format_args!("{name}_count"), count);
    }
}

/// Requests of all models, by route and status.
#[derive(Default)]
pub(crate) struct RequestMetrics(Mutex<BTreeMap<(String, u16), u64>>);

impl RequestMetrics {
    /// Counts an answered HTTP request. `route` is the pattern, so that ids do not create series.
    pub(crate) fn count(&self, route: &str, status: u16) {
        if let Ok(mut requests) = self.0.lock() {
            *requests.entry((route.to_owned(), status)).or_default() += 1;
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let name = "weft_http_requests_total";
        head(&mut text, name, "HTTP requests by route and status.", "counter");
        for ((route, status), count) in self.0.lock().iter().flat_map(|table| table.iter()) {
            let labels = format_args!("{name}{{route=\"{route}\",status=\"{status}\"}}");
            line(&mut text, labels, *count);
        }
        text
    }
}

/// The metrics of one model.
#[derive(Default)]
pub(crate) struct Metrics {
    pub(crate) first_token: Histogram,
    pub(crate) token: Histogram,
    lanes: AtomicU64,
    waiting: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    /// By source.
    drafted_tokens: [AtomicU64; DraftSource::ALL.len()],
    accepted_tokens: [AtomicU64; DraftSource::ALL.len()],
    saved_us: AtomicU64,
    answers: [AtomicU64; 4],
    readings: AtomicU64,
    hits: [AtomicU64; TIERS.len()],
    computed_pieces: AtomicU64,
    faults: AtomicU64,
    unwritten_chunks: AtomicU64,
    cache: Mutex<CacheStats>,
    /// Its counts change while the engine has nothing to do.
    remote: Mutex<Option<Arc<dyn RemoteTier>>>,
}

const ANSWERS: [&str; 4] = ["stop", "length", "cancelled", "error"];
const TIERS: [Tier; 4] = [Tier::Device, Tier::Ram, Tier::Disk, Tier::Remote];

impl Metrics {
    pub(crate) fn count_answer(&self, finished: &Finished) {
        let index = match finished.reason {
            FinishReason::Stop => 0,
            FinishReason::Length => 1,
            FinishReason::Cancelled => 2,
        };
        add(&self.answers[index], 1);
        self.count_prompt(finished);
        add(&self.generated_tokens, finished.stats.generated_tokens as u64);
        for (index, source) in DraftSource::ALL.into_iter().enumerate() {
            let counts = finished.stats.speculation.of(source);
            add(&self.drafted_tokens[index], counts.drafted as u64);
            add(&self.accepted_tokens[index], counts.accepted as u64);
        }
    }

    /// Counts a text that was embedded or a document that was ranked.
    pub(crate) fn count_reading(&self, finished: &Finished) {
        if finished.reason != FinishReason::Cancelled {
            add(&self.readings, 1);
        }
        self.count_prompt(finished);
    }

    fn count_prompt(&self, finished: &Finished) {
        add(&self.prompt_tokens, finished.stats.prompt_tokens as u64);
        add(&self.cached_tokens, finished.stats.cached_tokens as u64);
        let saved = u64::try_from(finished.report.saved().as_micros()).unwrap_or_default();
        add(&self.saved_us, saved);
        for piece in &finished.report.pieces {
            match piece.source {
                Some(tier) => add(&self.hits[tier as usize], 1),
                None => add(&self.computed_pieces, 1),
            }
        }
    }

    pub(crate) fn count_failure(&self) {
        add(&self.answers[3], 1);
    }

    pub(crate) fn count_fault(&self) {
        add(&self.faults, 1);
    }

    pub(crate) fn count_unwritten_chunk(&self) {
        add(&self.unwritten_chunks, 1);
    }

    pub(crate) fn set_lanes(&self, running: usize, waiting: usize) {
        self.lanes.store(running as u64, Ordering::Relaxed);
        self.waiting.store(waiting as u64, Ordering::Relaxed);
    }

    /// The model is unloaded: it runs nothing and caches nothing.
    pub(crate) fn clear_gauges(&self) {
        self.set_lanes(0, 0);
        if let Ok(mut cache) = self.cache.lock() {
            let store = cache.store.take();
            *cache = CacheStats { store, ..CacheStats::default() };
        }
    }

    /// Answers that run now.
    pub(crate) fn running(&self) -> usize {
        usize::try_from(self.lanes.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    pub(crate) fn set_cache(&self, engine: &Engine) {
        if let Ok(mut cache) = self.cache.lock() {
            *cache = engine.cache_stats();
        }
        if let Ok(mut remote) = self.remote.lock() {
            *remote = engine.remote();
        }
    }

    /// The cache's contents by tier.
    pub(crate) fn cache(&self) -> CacheStats {
        let cache = self.cache.lock().map(|cache| cache.clone()).unwrap_or_default();
        let remote = self.remote.lock().ok().and_then(|remote| Some(remote.as_ref()?.stats()));
        CacheStats { remote, ..cache }
    }

    /// The whole text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        self.write_answers(&mut text);
        self.write_lanes(&mut text);
        self.write_tokens(&mut text);
        self.write_chunks(&mut text);
        let cache = self.cache();
        write_cache(&mut text, &cache);
        remote::write(&mut text, &cache);
        self.write_disk(&mut text, &cache.store.unwrap_or_default());
        text
    }

    fn write_answers(&self, text: &mut String) {
        let name = "weft_answers_total";
        head(text, name, "Answers by how they ended.", "counter");
        for (reason, count) in ANSWERS.iter().zip(&self.answers) {
            let count = count.load(Ordering::Relaxed);
            line(text, format_args!("{name}{{reason=\"{reason}\"}}"), count);
        }
        let help = "Texts embedded and documents ranked.";
        counter(text, "weft_readings_total", help, &self.readings);
        let help = "Engine faults; after each, the engine was loaded again or stayed down.";
        counter(text, "weft_engine_faults_total", help, &self.faults);
    }

    fn write_lanes(&self, text: &mut String) {
        for (name, help, value) in [
            ("weft_lanes_running", "Lanes that run now.", &self.lanes),
            ("weft_requests_waiting", "Lanes that wait to run.", &self.waiting),
        ] {
            head(text, name, help, "gauge");
            line(text, format_args!("{name}"), value.load(Ordering::Relaxed));
        }
        let help = "From a request's arrival to its first token.";
        self.first_token.write(text, "weft_first_token_seconds", help);
        let help = "From one token of an answer to the next.";
        self.token.write(text, "weft_token_seconds", help);
    }

    fn write_tokens(&self, text: &mut String) {
        let counters = [
            ("weft_prompt_tokens_total", "Tokens of prompts.", &self.prompt_tokens),
            (
                "weft_cached_tokens_total",
                "Prompt tokens whose KV rows were cached.",
                &self.cached_tokens,
            ),
            ("weft_generated_tokens_total", "Tokens generated.", &self.generated_tokens),
        ];
        for (name, help, value) in counters {
            counter(text, name, help, value);
        }
        let drafts = [
            ("weft_drafted_tokens_total", "Tokens drafted and verified.", &self.drafted_tokens),
            ("weft_accepted_tokens_total", "Drafted tokens of answers.", &self.accepted_tokens),
        ];
        for (name, help, counts) in drafts {
            head(text, name, help, "counter");
            for (source, count) in DraftSource::ALL.iter().zip(counts) {
                let count = count.load(Ordering::Relaxed);
                line(text, format_args!("{name}{{source=\"{source}\"}}"), count);
            }
        }
        let name = "weft_saved_seconds_total";
        head(text, name, "Time saved by cached rows.", "counter");
        let seconds = self.saved_us.load(Ordering::Relaxed) as f64 / 1e6;
        line(text, format_args!("{name}"), seconds);
    }

    fn write_disk(&self, text: &mut String, store: &StoreStats) {
        let name = "weft_disk_write_failures_total";
        head(text, name, "Files that could not be written.", "counter");
        line(text, format_args!("{name}{{what=\"rows\"}}"), store.failed_writes);
        let chunks = self.unwritten_chunks.load(Ordering::Relaxed);
        line(text, format_args!("{name}{{what=\"chunks\"}}"), chunks);
        let name = "weft_disk_full";
        head(text, name, "1 if rows are not written because the disk is full.", "gauge");
        line(text, format_args!("{name}"), u8::from(store.disk_is_full));
    }

    fn write_chunks(&self, text: &mut String) {
        let name = "weft_chunk_uses_total";
        head(text, name, "Pieces of prompts by where their rows came from.", "counter");
        for (tier, count) in TIERS.iter().zip(&self.hits) {
            let count = count.load(Ordering::Relaxed);
            line(text, format_args!("{name}{{source=\"{tier}\"}}"), count);
        }
        let computed = self.computed_pieces.load(Ordering::Relaxed);
        line(text, format_args!("{name}{{source=\"computed\"}}"), computed);
    }
}

/// The metrics of several models as one text: each series has its model as a label, and each name
/// its head once.
pub(crate) fn labelled<'m>(models: impl Iterator<Item = (&'m str, &'m Metrics)>) -> String {
    // The heads and the series of each name, in the order of their first appearance.
    let mut groups: Vec<(String, String)> = Vec::new();
    for (model, metrics) in models {
        let (model, mut at) = (escaped(model), 0);
        for row in metrics.text().lines() {
            if row.starts_with('#') {
                let is_help = row.starts_with("# HELP ");
                let known = groups.iter().position(|(head, _)| head.lines().any(|l| l == row));
                at = known.unwrap_or_else(|| match is_help {
                    true => {
                        groups.push((format!("{row}\n"), String::new()));
                        groups.len() - 1
                    }
                    false => {
                        groups[at].0 += &format!("{row}\n");
                        at
                    }
                });
                continue;
            }
            let Some((series, value)) = row.rsplit_once(' ') else { continue };
            let series = match series.split_once('{') {
                Some((name, labels)) => format!("{name}{{model=\"{model}\",{labels}"),
                None => format!("{series}{{model=\"{model}\"}}"),
            };
            groups[at].1 += &format!("{series} {value}\n");
        }
    }
    groups.into_iter().map(|(head, series)| head + &series).collect()
}

/// A label's value as the format wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn write_cache(text: &mut String, cache: &CacheStats) {
    let tiers = [("device", &cache.device), ("ram", &cache.ram), ("disk", &cache.disk)];
    type Read = fn(&TierStats) -> u64;
    let gauges: [(&str, &str, Read); 3] = [
        ("weft_cache_bytes", "Bytes of cached rows.", |tier| tier.used_bytes),
        ("weft_cache_budget_bytes", "Bytes that cached rows may take.", |tier| tier.budget_bytes),
        ("weft_cache_tokens", "Tokens whose rows are cached.", |tier| tier.tokens as u64),
    ];
    for (name, help, read) in gauges {
        head(text, name, help, "gauge");
        for (tier, stats) in tiers {
            line(text, format_args!("{name}{{tier=\"{tier}\"}}"), read(stats));
        }
    }
    let counters = [
        ("weft_rows_unfiled_total", "Rows lost as too many waited for the disk.", cache.unfiled),
        (
            "weft_rows_computed_again_total",
            "Rows computed although a file had them, because that is faster.",
            cache.computed_again,
        ),
        (
            "weft_rows_coarse_total",
            "Rows read from files or the remote store that are stored in 8 bits.",
            cache.brought_coarse,
        ),
    ];
    for (name, help, count) in counters {
        head(text, name, help, "counter");
        line(text, format_args!("{name}"), count);
    }
    let name = "weft_cache_coarse_tokens";
    head(text, name, "Tokens whose rows are stored on disk in 8 bits.", "gauge");
    line(text, format_args!("{name}"), cache.coarse.tokens);
    let name = "weft_draft_index_bytes";
    head(text, name, "Bytes of the indexes that drafts are looked up in.", "gauge");
    line(text, format_args!("{name}"), cache.draft_index_bytes);
    let name = "weft_cache_evictions_total";
    head(text, name, "Times that rows were evicted from a tier.", "counter");
    line(text, format_args!("{name}{{tier=\"device\"}}"), cache.evicted_from_device);
    line(text, format_args!("{name}{{tier=\"ram\"}}"), cache.evicted_from_ram);
    let store = cache.store.clone().unwrap_or_default();
    line(text, format_args!("{name}{{tier=\"disk\"}}"), store.evicted);
    let name = "weft_cache_corrupt_files_total";
    head(text, name, "Damaged row files that were moved to quarantine.", "counter");
    line(text, format_args!("{name}"), store.quarantined);
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn head(text: &mut String, name: &str, help: &str, kind: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: std::fmt::Arguments<'_>, value: impl std::fmt::Display) {
    let _ = writeln!(text, "{name} {value}");
}

fn counter(text: &mut String, name: &str, help: &str, value: &AtomicU64) {
    head(text, name, help, "counter");
    line(text, format_args!("{name}"), value.load(Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_share_the_heads_and_have_their_own_series() {
        let (a, b) = (Metrics::default(), Metrics::default());
        a.set_lanes(3, 0);
        b.count_failure();
        let text = labelled([("a", &a), ("b\"", &b)].into_iter());
        assert_eq!(text.matches("# TYPE weft_lanes_running gauge").count(), 1, "{text}");
        let lanes = "weft_lanes_running{model=\"a\"} 3\nweft_lanes_running{model=\"b\\\"\"} 0\n";
        assert!(text.contains(lanes), "{text}");
        assert!(
            text.contains("weft_answers_total{model=\"b\\\"\",reason=\"error\"} 1\n"),
            "{text}"
        );
        assert!(text.contains("_bucket{model=\"a\",le=\"+Inf\"} 0\n"), "{text}");
        // Each row follows the head of its name.
        let mut name = "";
        for row in text.lines() {
            match row.strip_prefix("# TYPE ") {
                Some(head) => name = head.split(' ').next().unwrap(),
                None if row.starts_with('#') => {}
                None => assert!(row.starts_with(name), "{row} after {name}"),
            }
        }
    }

    #[test]
    fn buckets_add_up() {
        let histogram = Histogram::default();
        for us in [100, 900, 70_000_000] {
            histogram.observe(Duration::from_micros(us));
        }
        let mut text = String::new();
        histogram.write(&mut text, "t", "h");
        assert!(text.starts_with("# HELP t h\n# TYPE t histogram\n"), "{text}");
        assert!(text.contains("t_bucket{le=\"0.00025\"} 1\n"), "{text}");
        assert!(text.contains("t_bucket{le=\"60\"} 2\nt_bucket{le=\"+Inf\"} 3\n"), "{text}");
        assert!(text.contains("t_count 3\n"), "{text}");
    }
}
