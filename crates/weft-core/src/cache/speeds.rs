//! Which is faster: to fetch a node's rows from a file or the remote tier, or to compute them? All
//! are measured.
//!
//! Rows have the same bits either way, so only time depends on the choice. weft assumes that a disk
//! is slow until it has measured it. A tier that was found slower is tried again now and then:
//! a disk may have been busy with something else. Nobody waits for such a read of a file: the rows
//! are computed meanwhile.

use std::time::Duration;

use crate::chunk::{ExpectedTimes, Tier};

/// How much each sample counts after the next one.
const FADE: f64 = 0.9;

/// Reads that must be measured before they count.
const FEWEST_READS: u32 = 4;

/// What a disk gives until it has been measured: about as much as the slowest of today's.
const UNKNOWN_DISK_BYTES_PER_S: f64 = 5e8;

/// Tokens that must be computed before computing is chosen.
const FEWEST_TOKENS: f64 = 64.0;

/// After so many reads that were left out, one is made to measure again.
const TRY_AGAIN: u32 = 16;

/// Measured speeds.
#[derive(Debug, Default)]
pub(super) struct Speeds {
    disk: Source,
    remote: Source,
    /// Tokens of prompts that were computed, and the seconds that they took. Old ones fade.
    tokens: f64,
    seconds: f64,
    /// Whether to fetch whatever is kept.
    always_fetches: bool,
}

/// A tier that rows are read from.
#[derive(Debug, Default)]
struct Source {
    reads: Line,
    n_reads: u32,
    /// Reads left out since the last one.
    n_left_out: u32,
    /// Reads that were begun only to measure, and have not ended.
    n_trials: u32,
}

/// Where rows come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// They are fetched.
    Fetch,
    /// They are computed.
    Compute,
    /// They are computed. They are also read, to measure the tier, and nothing waits for that.
    ComputeAndTry,
}

impl Speeds {
    fn source(&mut self, tier: Tier) -> &mut Source {
        if tier == Tier::Remote { &mut self.remote } else { &mut self.disk }
    }

    /// Counts a read of rows.
    pub(super) fn count_read(&mut self, tier: Tier, bytes: u64, time: Duration) {
        let source = self.source(tier);
        source.reads.add(bytes as f64, time.as_secs_f64());
        source.n_reads = source.n_reads.saturating_add(1);
    }

    /// Counts computed tokens of a prompt.
    pub(super) fn count_computed(&mut self, tokens: usize, time: Duration) {
        // Large steps show more than small ones.
        let fade = FADE.powf(tokens as f64 / FEWEST_TOKENS);
        self.tokens = self.tokens * fade + tokens as f64;
        self.seconds = self.seconds * fade + time.as_secs_f64();
    }

    pub(super) fn always_fetch(&mut self, always: bool) {
        self.always_fetches = always;
    }

    /// The expected time to fetch `bytes`, and to compute `tokens` that once took `cost`. `None` if
    /// one of them is unknown.
    pub(super) fn compare(
        &self,
        tier: Tier,
        bytes: u64,
        tokens: usize,
        cost: Duration,
    ) -> Option<ExpectedTimes> {
        let source = if tier == Tier::Remote { &self.remote } else { &self.disk };
        let fetch = match tier {
            _ if source.n_reads >= FEWEST_READS => source.reads.at(bytes as f64),
            Tier::Remote => return None,
            _ => bytes as f64 / UNKNOWN_DISK_BYTES_PER_S,
        };
        let computed = (self.tokens >= FEWEST_TOKENS)
            .then(|| Duration::from_secs_f64(tokens as f64 * self.seconds / self.tokens));
        let once = Some(cost).filter(|cost| !cost.is_zero());
        // Rows that were computed alone, or beside others, may have taken longer than they need.
        let compute = computed.into_iter().chain(once).min()?;
        Some(ExpectedTimes { fetch: Duration::from_secs_f64(fetch), compute })
    }

    /// Whether to fetch, after a comparison.
    pub(super) fn choose(&mut self, tier: Tier, choice: Option<ExpectedTimes>) -> Way {
        let is_slower = choice.is_some_and(|choice| choice.fetch > choice.compute);
        let may_leave_out = is_slower && !self.always_fetches;
        let source = self.source(tier);
        if !may_leave_out {
            source.n_left_out = 0;
            return Way::Fetch;
        }
        let is_known = source.n_reads + source.n_trials >= FEWEST_READS;
        if is_known && source.n_left_out < TRY_AGAIN {
            source.n_left_out += 1;
            return Way::Compute;
        }
        source.n_left_out = 0;
        if tier == Tier::Remote {
            return Way::Fetch;
        }
        source.n_trials += 1;
        Way::ComputeAndTry
    }

    /// Counts a read that was made only to measure; none if it failed.
    pub(super) fn count_trial(&mut self, tier: Tier, read: Option<(u64, Duration)>) {
        let source = self.source(tier);
        source.n_trials = source.n_trials.saturating_sub(1);
        if let Some((bytes, time)) = read {
            self.count_read(tier, bytes, time);
        }
    }
}

/// A straight line through measured points, by least squares. Old points fade.
#[derive(Debug, Default)]
struct Line {
    n: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    fn add(&mut self, x: f64, y: f64) {
        for sum in [&mut self.n, &mut self.x, &mut self.y, &mut self.xx, &mut self.xy] {
            *sum *= FADE;
            // A sum that fades to nothing must not stop at the smallest number that there is.
            if *sum < 1e-200 {
                *sum = 0.0;
            }
        }
        self.n += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
    }

    /// The height at `x`. If all points are about as far out, they say nothing about a slope, and
    /// the line goes through the origin.
    fn at(&self, x: f64) -> f64 {
        let spread = self.n * self.xx - self.x * self.x;
        if spread < 0.01 * self.n * self.xx {
            return if self.x > 0.0 { self.y / self.x * x } else { 0.0 };
        }
        let slope = ((self.n * self.xy - self.x * self.y) / spread).max(0.0);
        let start = ((self.y - slope * self.x) / self.n).max(0.0);
        start + slope * x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_line_has_a_start_and_a_slope() {
        let mut line = Line::default();
        (1..20).for_each(|n| line.add(f64::from(n * 10), 5.0 + f64::from(n)));
        assert!((line.at(500.0) - 55.0).abs() < 1e-6, "{line:?}");
        let mut line = Line::default();
        (0..9).for_each(|_| line.add(10.0, 2.0));
        assert!((line.at(30.0) - 6.0).abs() < 1e-9, "{line:?}");
        let mut falling = Line::default();
        (1..9).for_each(|n| falling.add(f64::from(n), 9.0 - f64::from(n)));
        assert!(falling.at(100.0) >= 0.0);
    }

    #[test]
    fn rows_are_fetched_unless_computing_was_measured_to_be_faster() {
        let mut speeds = Speeds::default();
        let compare = |speeds: &Speeds| speeds.compare(Tier::Disk, 1000, 100, Duration::ZERO);
        assert_eq!(compare(&speeds), None);
        assert_eq!(speeds.choose(Tier::Disk, None), Way::Fetch);
        speeds.count_computed(100, 10 * MS);
        (0..4).for_each(|_| speeds.count_read(Tier::Disk, 1000, 90 * MS));
        let choice = compare(&speeds).unwrap();
        assert!(choice.fetch > choice.compute, "{choice:?}");
        assert!(choice.compute.abs_diff(10 * MS) < MS / 100, "{choice:?}");
        let ways: Vec<Way> = (0..34).map(|_| speeds.choose(Tier::Disk, Some(choice))).collect();
        let tried = ways.iter().filter(|way| **way == Way::ComputeAndTry).count();
        assert_eq!(tried, 2, "one of seventeen, to measure again");
        assert!(!ways.contains(&Way::Fetch), "nobody waits for those");
        speeds.always_fetch(true);
        assert!((0..34).all(|_| speeds.choose(Tier::Disk, Some(choice)) == Way::Fetch));
        speeds.always_fetch(false);
        (0..80).for_each(|_| speeds.count_trial(Tier::Disk, Some((1000, MS))));
        let choice = compare(&speeds).unwrap();
        assert!(choice.fetch < choice.compute, "{choice:?}");
        assert_eq!(speeds.choose(Tier::Disk, Some(choice)), Way::Fetch);
        // It once took less than a token takes on average.
        assert_eq!(speeds.compare(Tier::Disk, 1000, 100, MS / 2).unwrap().compute, MS / 2);
    }

    /// One read says little: until there are four, a disk is taken for a slow one.
    #[test]
    fn a_few_reads_do_not_count_yet() {
        let mut speeds = Speeds::default();
        speeds.count_computed(100, 10 * MS);
        let fetch = |speeds: &Speeds| {
            speeds.compare(Tier::Disk, 1_000_000, 100, Duration::ZERO).unwrap().fetch
        };
        for _ in 0..3 {
            assert_eq!(fetch(&speeds), 2 * MS, "500 MB a second");
            speeds.count_read(Tier::Disk, 1_000_000, 90 * MS);
        }
        speeds.count_read(Tier::Disk, 1_000_000, 90 * MS);
        assert!(fetch(&speeds).abs_diff(90 * MS) < MS, "{:?}", fetch(&speeds));
    }

    /// A machine may have been busy with something else: what was measured long ago fades.
    #[test]
    fn computing_is_as_fast_as_it_was_lately() {
        let mut speeds = Speeds::default();
        (0..4).for_each(|_| speeds.count_computed(1000, 1000 * MS));
        (0..4).for_each(|_| speeds.count_computed(1000, 10 * MS));
        let choice = speeds.compare(Tier::Disk, 1000, 1000, Duration::ZERO).unwrap();
        assert!(choice.compute < 20 * MS, "{choice:?}");
    }

    /// An H200 and 256 tokens of Qwen3-0.6B and 8B, by measured figures.
    #[test]
    fn a_fast_gpu_reads_what_it_does_not_compute_faster() {
        let mb = |n: u64| n * 1_000_000;
        let at = |bytes: u64, gb_per_s: f64| Duration::from_secs_f64(bytes as f64 / gb_per_s / 1e9);
        // Bytes of 256 tokens, tokens a second, the disk in GB/s, and whether it is faster.
        let cases = [
            (mb(29), 150_000.0, 8.0, false),
            (mb(29), 150_000.0, 22.0, true),
            (mb(38), 26_000.0, 3.3, false),
            (mb(38), 26_000.0, 8.0, true),
        ];
        for (bytes, tokens_per_s, disk, is_faster) in cases {
            let cost = Duration::from_secs_f64(256.0 / tokens_per_s);
            let mut speeds = Speeds::default();
            // The first prompt of a process: nothing is measured but what the file says. Nobody
            // waits for a disk that may be slow; four reads beside the prompt measure it.
            let mut ways = Vec::new();
            for _ in 0..64 {
                let choice = speeds.compare(Tier::Disk, bytes, 256, cost);
                ways.push(speeds.choose(Tier::Disk, choice));
            }
            assert!(!ways.contains(&Way::Fetch), "{bytes} bytes of an unknown disk");
            let tried = ways.iter().filter(|way| **way == Way::ComputeAndTry).count();
            assert!((4..=8).contains(&tried), "{tried} reads to measure");
            speeds.count_computed(64 * 256, 64 * cost);
            (0..tried).for_each(|_| {
                speeds.count_trial(Tier::Disk, Some((bytes, at(bytes, disk))));
            });
            // The second.
            let choice = speeds.compare(Tier::Disk, bytes, 256, cost).unwrap();
            let expected = if is_faster { Way::Fetch } else { Way::Compute };
            assert_eq!(speeds.choose(Tier::Disk, Some(choice)), expected, "{choice:?}");
            assert!(choice.fetch.abs_diff(at(bytes, disk)) < MS / 100, "{choice:?}");
        }
    }

    #[test]
    fn a_slow_computer_reads_from_an_unknown_disk() {
        let mut speeds = Speeds::default();
        // 256 tokens of 0.6B on two cores.
        let choice = speeds.compare(Tier::Disk, 29_000_000, 256, 500 * MS);
        assert_eq!(speeds.choose(Tier::Disk, choice), Way::Fetch, "{choice:?}");
        // Reads that fail measure nothing, and are not waited for to measure again.
        let choice = speeds.compare(Tier::Disk, 29_000_000, 256, MS);
        let ways: Vec<Way> = (0..5).map(|_| speeds.choose(Tier::Disk, choice)).collect();
        assert_eq!(ways[3..], [Way::ComputeAndTry, Way::Compute]);
        speeds.count_trial(Tier::Disk, None);
        assert_eq!(speeds.choose(Tier::Disk, choice), Way::ComputeAndTry);
    }

    #[test]
    fn tiers_are_measured_apart_and_absences_show_the_latency() {
        let mut speeds = Speeds::default();
        speeds.count_computed(100, 10 * MS);
        (0..9).for_each(|_| speeds.count_read(Tier::Disk, 1000, MS));
        assert_eq!(speeds.compare(Tier::Remote, 1000, 100, Duration::ZERO), None);
        (0..9).for_each(|_| speeds.count_read(Tier::Remote, 0, 20 * MS));
        let choice = speeds.compare(Tier::Remote, 1000, 100, Duration::ZERO).unwrap();
        assert!(choice.fetch.abs_diff(20 * MS) < MS / 100, "{choice:?}");
        assert_eq!(speeds.choose(Tier::Remote, Some(choice)), Way::Compute);
        let choice = speeds.compare(Tier::Disk, 1000, 100, Duration::ZERO).unwrap();
        assert_eq!(speeds.choose(Tier::Disk, Some(choice)), Way::Fetch, "{choice:?}");
        // 1,000 bytes take 1 ms more than none.
        (0..9).for_each(|_| speeds.count_read(Tier::Remote, 1000, 21 * MS));
        let choice = speeds.compare(Tier::Remote, 10_000, 100, Duration::ZERO).unwrap();
        assert!(choice.fetch.abs_diff(30 * MS) < MS / 100, "{choice:?}");
    }
}
