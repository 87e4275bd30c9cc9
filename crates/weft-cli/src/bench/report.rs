//! A saved run, with everything needed to judge and to repeat it.
//!
//! It defines the file format. [`FORMAT`] increases when a field changes its meaning, and readers
//! refuse unknown formats.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::file::lists_on_one_line;
use super::logits::Logits;
use super::machine::Machine;
use super::stats::Spread;
use crate::error::CliError;

/// The version of the file format.
pub(crate) const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) format: u32,
    pub(crate) weft_version: String,
    /// The commit of the build: see [`machine::commit`](super::machine::commit).
    pub(crate) commit: Option<String>,
    /// Whether the program was built with debug assertions, which makes the results meaningless.
    pub(crate) debug_build: bool,
    /// UTC.
    pub(crate) date: String,
    pub(crate) command: Vec<String>,
    pub(crate) machine: Machine,
    pub(crate) model: ModelFacts,
    pub(crate) device: String,
    /// Measurements behind the device's description, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device_details: Option<String>,
    /// Threads of the device.
    pub(crate) threads: usize,
    pub(crate) step_tokens: usize,
    pub(crate) bandwidth: Bandwidth,
    pub(crate) rows: Vec<Row>,
    /// Reasons why the results are invalid: logits that are not finite, or that changed.
    pub(crate) problems: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelFacts {
    pub(crate) name: String,
    /// Where the weights come from.
    pub(crate) weights: String,
    pub(crate) parameters: u64,
    pub(crate) weight_bytes: u64,
    pub(crate) dtype: String,
}

/// The read bandwidth, measured before, between and after the tests: on a shared machine it changes
/// within seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bandwidth {
    pub(crate) buffer_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) before: Vec<BandwidthPass>,
    /// The passes before each test except the first.
    pub(crate) between: Vec<Vec<BandwidthPass>>,
    pub(crate) after: Vec<BandwidthPass>,
    /// The fastest pass of all. Shares refer to it.
    pub(crate) best_gb_per_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BandwidthPass {
    pub(crate) streams: usize,
    pub(crate) gb_per_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// A sample is one prompt.
    Prefill,
    /// A sample is one step of one token in each lane.
    Decode,
    /// A sample is one op in all layers of one decode step.
    Op,
}

/// One test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// `pp512`, `tg32 @ d1024`, `attend @ d0`.
    pub(crate) test: String,
    pub(crate) kind: Kind,
    pub(crate) batch: usize,
    pub(crate) depth: usize,
    /// Tokens of one sample, over all lanes.
    pub(crate) n_tokens: usize,
    pub(crate) tokens_per_s: Spread,
    pub(crate) time_us: Spread,
    /// Bytes that one sample must move; the mean, if samples differ.
    pub(crate) bytes: u64,
    pub(crate) gb_per_s: f64,
    /// gb_per_s relative to the best read bandwidth. `None` for prefill, which is bound by
    /// arithmetic.
    pub(crate) bandwidth_share: Option<f64>,
    pub(crate) gflop_per_s: f64,
    /// Logits of the last step; `None` for ops.
    pub(crate) logits: Option<Logits>,
    pub(crate) samples_us: Vec<f64>,
}

impl Row {
    /// The test with its batch.
    pub(crate) fn name(&self) -> String {
        match self.kind {
            Kind::Prefill => self.test.clone(),
            _ => format!("{} b{}", self.test, self.batch),
        }
    }
}

impl Bandwidth {
    /// From all measurements, in order.
    pub(crate) fn new(
        (buffer_bytes, threads): (u64, usize),
        mut taken: Vec<Vec<BandwidthPass>>,
    ) -> Self {
        let best_gb_per_s = taken.iter().map(|passes| best(passes)).fold(0.0, f64::max);
        let after = taken.pop().expect("it was measured after the tests");
        let mut rest = taken.into_iter();
        let before = rest.next().expect("it was measured before the tests");
        Self { buffer_bytes, threads, before, between: rest.collect(), after, best_gb_per_s }
    }

    /// The slowest and the fastest measurement, GB/s.
    pub(crate) fn range(&self) -> (f64, f64) {
        let all = self.between.iter().chain([&self.before, &self.after]);
        all.map(|passes| best(passes))
            .fold((f64::MAX, 0.0), |(low, high), found| (low.min(found), high.max(found)))
    }

    pub(crate) fn n_passes(&self) -> usize {
        self.before.len() + self.between.iter().map(Vec::len).sum::<usize>() + self.after.len()
    }
}

/// The fastest of some passes, GB/s.
pub(crate) fn best(passes: &[BandwidthPass]) -> f64 {
    passes.iter().map(|pass| pass.gb_per_s).fold(0.0, f64::max)
}

impl Report {
    pub(crate) fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("a report has no odd keys");
        lists_on_one_line(&json)
    }

    /// Writes the file atomically.
    pub(crate) fn read(path: &Path) -> Result<Self, CliError> {
        let name = path.display();
        let text = std::fs::read_to_string(path).map_err(CliError::io(name.to_string()))?;
        let refused = |reason: String| CliError::Usage(format!("{name}: {reason}"));
        let json: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| refused(format!("not a saved bench: {error}")))?;
        match json["format"].as_u64() {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => {
                return Err(refused(format!("format {format}; this version reads {FORMAT}")));
            }
            None => return Err(refused("not a saved bench: it has no `format`".to_owned())),
        }
        serde_json::from_value(json).map_err(|error| refused(format!("not a saved bench: {error}")))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report of the given decode rows: (depth, batch, tokens per second, hash).
    pub(crate) fn report(rows: &[(usize, usize, f64, &str)]) -> Report {
        let row = |&(depth, batch, speed, hash): &(usize, usize, f64, &str)| {
            let time_us = batch as f64 * 1e6 / speed;
            let samples_us: Vec<f64> =
                (0..11).map(|i| time_us * (0.95 + 0.01 * f64::from(i))).collect();
            let spread = Spread::of(&samples_us);
            Row {
                test: if depth == 0 { "tg32".into() } else { format!("tg32 @ d{depth}") },
                kind: Kind::Decode,
                batch,
                depth,
                n_tokens: batch,
                tokens_per_s: spread.rate(batch as f64),
                time_us: spread,
                bytes: 1_000_000,
                gb_per_s: 1000.0 / time_us,
                bandwidth_share: Some(0.5),
                gflop_per_s: 1.0,
                logits: Some(Logits {
                    hash: hash.to_owned(),
                    lane_hashes: vec![hash.to_owned()],
                    max_abs: 1.0,
                    finite: true,
                }),
                samples_us,
            }
        };
        let pass = |gb_per_s| vec![BandwidthPass { streams: 1, gb_per_s }];
        Report {
            format: FORMAT,
            weft_version: "0".into(),
            commit: None,
            debug_build: false,
            date: "2026-01-02T03:04:05Z".into(),
            command: vec!["weft".into(), "bench".into()],
            machine: Machine { cpu: Some("a CPU".into()), ..Machine::default() },
            model: ModelFacts {
                name: "qwen3-0.6b".into(),
                weights: "random, seed 1".into(),
                parameters: 1,
                weight_bytes: 2,
                dtype: "bf16".into(),
            },
            device: "CPU".into(),
            device_details: None,
            threads: 2,
            step_tokens: 128,
            bandwidth: Bandwidth::new((1 << 30, 2), vec![pass(19.0), pass(18.0), pass(20.0)]),
            rows: rows.iter().map(row).collect(),
            problems: Vec::new(),
        }
    }

    #[test]
    fn the_fastest_measurement_counts() {
        let bandwidth = report(&[]).bandwidth;
        assert_eq!((bandwidth.best_gb_per_s, bandwidth.range()), (20.0, (18.0, 20.0)));
        assert_eq!((bandwidth.between.len(), bandwidth.n_passes()), (1, 3));
    }

    #[test]
    fn what_is_saved_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        let saved = report(&[(0, 1, 10.0, "ab"), (1024, 4, 30.0, "cd")]);
        super::super::file::save(&path, &saved.to_json(), false).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside");
        let read = Report::read(&path).unwrap();
        assert_eq!(read.rows.len(), 2);
        assert_eq!((&read.model, &read.rows[1].logits), (&saved.model, &saved.rows[1].logits));
        let samples = read.rows[1].samples_us.iter().zip(&saved.rows[1].samples_us);
        assert!(samples.into_iter().all(|(a, b)| (a - b).abs() < 1e-6));
    }

    #[test]
    fn samples_take_one_line() {
        let json = report(&[(0, 1, 10.0, "ab")]).to_json();
        let samples = json.lines().find(|line| line.contains("samples_us")).unwrap();
        assert!(samples.ends_with("104000.0, 105000.0]"), "{samples}");
        assert!(json.starts_with("{\n  \"format\": 1,\n") && json.ends_with("}\n"), "{json}");
    }

    #[test]
    fn another_format_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        for (text, says) in
            [("{\"format\": 99}", "format 99"), ("{}", "no `format`"), ("x", "not a saved")]
        {
            std::fs::write(&path, text).unwrap();
            let error = Report::read(&path).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
