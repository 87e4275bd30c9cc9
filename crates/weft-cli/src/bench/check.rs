//! Checks of a bench's results.
//!
//! Problems make the results invalid and fail the run; notes are printed with the results.

use super::report::{Report, Row};

/// Maximum variation of the read bandwidth on an idle machine.
const STEADY: f64 = 1.25;

/// Logits that are not finite, and lanes whose results depend on the other lanes.
pub(crate) fn problems(rows: &[Row]) -> Vec<String> {
    let mut problems = Vec::new();
    for row in rows {
        let Some(logits) = &row.logits else { continue };
        if !logits.finite {
            problems.push(format!("{}: logits are not finite", row.name()));
        }
        // The same test with the smallest measured number of lanes.
        let alone = rows.iter().find(|other| other.test == row.test && other.batch < row.batch);
        let Some(alone) = alone.and_then(|row| row.logits.as_ref()) else { continue };
        let pairs = logits.lane_hashes.iter().zip(&alone.lane_hashes);
        if let Some(lane) = pairs.into_iter().position(|(a, b)| a != b) {
            problems.push(format!(
                "{}: lane {lane} gives other logits than in a smaller batch",
                row.name()
            ));
        }
    }
    problems
}

/// Reasons to doubt the results.
pub(crate) fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    if report.debug_build {
        notes.push("a debug build: figures mean little, use `cargo build --release`".to_owned());
    }
    let beyond =
        report.rows.iter().find(|row| row.bandwidth_share.is_some_and(|share| share > 1.0));
    if let Some(row) = beyond {
        notes.push(format!(
            "{} moves more than the read bandwidth: its bytes fit the caches, or the machine was \
             busy while the bandwidth was measured; run it again",
            row.name()
        ));
    }
    let (low, high) = report.bandwidth.range();
    if high > STEADY * low {
        notes.push(format!(
            "the read bandwidth was between {low:.1} and {high:.1} GB/s: the machine is shared or \
             busy, and figures of tests that had less of it are too low"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn lanes_must_agree_with_themselves_alone() {
        let mut rows = report(&[(0, 1, 10.0, "aa"), (0, 2, 15.0, "bb"), (64, 2, 15.0, "cc")]).rows;
        let lanes = |rows: &mut [Row], row: usize, hashes: [&str; 2]| {
            rows[row].logits.as_mut().unwrap().lane_hashes = hashes.map(str::to_owned).to_vec();
        };
        lanes(&mut rows, 1, ["aa", "dd"]);
        assert!(problems(&rows).is_empty());
        lanes(&mut rows, 1, ["dd", "aa"]);
        assert_eq!(problems(&rows).len(), 1);
        assert!(problems(&rows)[0].contains("tg32 b2: lane 0"), "{:?}", problems(&rows));
    }

    #[test]
    fn what_is_no_number_is_a_problem() {
        let mut rows = report(&[(0, 1, 10.0, "aa")]).rows;
        rows[0].logits.as_mut().unwrap().finite = false;
        assert!(problems(&rows)[0].contains("not finite"));
    }

    #[test]
    fn more_than_the_bandwidth_is_doubtful() {
        let mut report = report(&[(0, 1, 10.0, "aa")]);
        assert!(notes(&report).is_empty());
        report.rows[0].bandwidth_share = Some(1.1);
        report.debug_build = true;
        report.bandwidth.after[0].gb_per_s = 40.0;
        assert_eq!(notes(&report).len(), 3);
    }
}
