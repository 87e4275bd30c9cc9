//! Median and spread of samples.

use serde::{Deserialize, Serialize};

/// The median of some samples, and the range from p10 to p90.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) p10: f64,
    pub(crate) p90: f64,
}

impl Spread {
    /// # Panics
    /// Without samples.
    pub(crate) fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |share| percentile(&sorted, share);
        Self { median: at(0.5), p10: at(0.1), p90: at(0.9) }
    }

    /// The rate per second of `n` items per sample, for samples in µs. p10 is the slow end, as for
    /// any rate.
    pub(crate) fn rate(self, n: f64) -> Self {
        let rate = |time_us: f64| n * 1e6 / time_us;
        Self { median: rate(self.median), p10: rate(self.p90), p90: rate(self.p10) }
    }

    /// Whether the ranges have a point in common.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.p10 <= other.p90 && other.p10 <= self.p90
    }
}

/// A percentile of sorted samples, interpolated linearly.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_its_range() {
        let tens: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        assert_eq!(Spread::of(&tens), Spread { median: 5.0, p10: 1.0, p90: 9.0 });
        assert_eq!(Spread::of(&[4.0, 2.0]).median, 3.0);
        assert_eq!(Spread::of(&[7.0]), Spread { median: 7.0, p10: 7.0, p90: 7.0 });
        let five = Spread::of(&[5.0, 1.0, 2.0, 4.0, 3.0]);
        assert!((five.p10 - 1.4).abs() < 1e-12 && (five.p90 - 4.6).abs() < 1e-12);
    }

    #[test]
    fn slow_samples_make_the_low_end_of_a_rate() {
        let rate = Spread { median: 1000.0, p10: 500.0, p90: 2000.0 }.rate(2.0);
        assert_eq!(rate, Spread { median: 2000.0, p10: 1000.0, p90: 4000.0 });
    }

    #[test]
    fn ranges_overlap_or_not() {
        let range = |p10, p90| Spread { median: p10, p10, p90 };
        assert!(range(1.0, 2.0).overlaps(range(2.0, 3.0)));
        assert!(range(1.0, 9.0).overlaps(range(2.0, 3.0)));
        assert!(!range(1.0, 2.0).overlaps(range(2.1, 3.0)));
    }
}
