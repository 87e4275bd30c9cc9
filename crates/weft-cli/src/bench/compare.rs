//! `weft bench compare A B`: compares two saved runs.
//!
//! A difference counts only if the ranges of p10 to p90 do not overlap, so that noise does not look
//! like progress. Different logits are reported first.

use std::process::ExitCode;

use super::args::CompareArgs;
use super::report::{Report, Row};
use super::table::{Column, markdown, number, short};
use crate::answer::print;
use crate::error::CliError;

const COLUMNS: [Column; 8] = [
    ("test", false),
    ("batch", true),
    ("A t/s", true),
    ("B t/s", true),
    ("B/A", true),
    ("range of B/A", true),
    ("B is", false),
    ("logits", false),
];

pub(super) fn run(args: &CompareArgs) -> Result<ExitCode, CliError> {
    let (a, b) = (Report::read(&args.a)?, Report::read(&args.b)?);
    print(&compared(&a, &b))?;
    Ok(ExitCode::SUCCESS)
}

/// The comparison as text.
fn compared(a: &Report, b: &Report) -> String {
    let pairs: Vec<(&Row, &Row)> =
        a.rows.iter().filter_map(|row| Some((row, same_test(row, b)?))).collect();
    let mut text = format!("A: {}\nB: {}\n", about(a), about(b));
    for difference in differences(a, b) {
        text += &format!("note: {difference}\n");
    }
    let differing: Vec<String> = pairs
        .iter()
        .filter(|(a, b)| same_logits(a, b) == Some(false))
        .map(|(a, _)| a.name())
        .collect();
    if !differing.is_empty() {
        text += &format!(
            "\n**THE LOGITS DIFFER in {} of {} tests: {}.** One of the runs is wrong.\n",
            differing.len(),
            pairs.len(),
            differing.join(", "),
        );
    }
    let lines: Vec<Vec<String>> = pairs.iter().map(|(a, b)| line(a, b)).collect();
    text += &format!("\n{}", markdown(&COLUMNS, &lines));
    for (name, from, to) in [("A", a, b), ("B", b, a)] {
        let alone = from.rows.iter().filter(|row| same_test(row, to).is_none());
        let alone: Vec<String> = alone.map(Row::name).collect();
        if !alone.is_empty() {
            text += &format!("only in {name}: {}\n", alone.join(", "));
        }
    }
    text
}

fn same_test<'r>(row: &Row, report: &'r Report) -> Option<&'r Row> {
    report.rows.iter().find(|other| other.name() == row.name())
}

/// Whether both ended with the same logits; `None` if one has no logits.
fn same_logits(a: &Row, b: &Row) -> Option<bool> {
    Some(a.logits.as_ref()?.hash == b.logits.as_ref()?.hash)
}

fn line(a: &Row, b: &Row) -> Vec<String> {
    let (from, to) = (a.tokens_per_s, b.tokens_per_s);
    let verdict = match to.median.total_cmp(&from.median) {
        _ if from.overlaps(to) => "=",
        std::cmp::Ordering::Greater => "faster",
        _ => "slower",
    };
    let logits = match same_logits(a, b) {
        Some(true) => "same",
        Some(false) => "**DIFFER**",
        None => "",
    };
    vec![
        a.test.clone(),
        a.batch.to_string(),
        number(from.median),
        number(to.median),
        format!("{:.3}", to.median / from.median),
        format!("{:.3} – {:.3}", to.p10 / from.p90, to.p90 / from.p10),
        verdict.to_owned(),
        logits.to_owned(),
    ]
}

fn about(report: &Report) -> String {
    format!(
        "{} ({}) · {} · {} · {} · read bandwidth {:.1} GB/s · {}",
        report.model.name,
        report.model.weights,
        report.device,
        report.commit.as_ref().map_or("no commit".to_owned(), |commit| short(commit)),
        report.machine.cpu.as_deref().unwrap_or("unknown CPU"),
        report.bandwidth.best_gb_per_s,
        report.date,
    )
}

/// Differences between the runs that make a comparison doubtful.
fn differences(a: &Report, b: &Report) -> Vec<String> {
    let checks = [
        (a.model != b.model, "the models differ, so logits and speeds do"),
        (a.machine.cpu != b.machine.cpu, "the machines differ"),
        (a.threads != b.threads, "the numbers of threads differ"),
        (a.debug_build || b.debug_build, "a debug build is among them"),
        (!a.problems.is_empty(), "A had wrong results when it was measured"),
        (!b.problems.is_empty(), "B had wrong results when it was measured"),
    ];
    checks.iter().filter(|(found, _)| *found).map(|(_, text)| (*text).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    fn line_of<'t>(text: &'t str, test: &str, batch: &str) -> Vec<&'t str> {
        let cells = |line: &'t str| line.split('|').map(str::trim).collect::<Vec<_>>();
        let mut lines = text.lines().filter(|line| line.starts_with('|')).map(cells);
        lines.find(|cells| cells[1] == test && cells[2] == batch).expect("the line is there")
    }

    #[test]
    fn ratios_are_of_b_to_a() {
        let a = report(&[(0, 1, 10.0, "aa"), (1024, 1, 8.0, "bb"), (0, 2, 15.0, "cc")]);
        let b = report(&[(0, 1, 20.0, "aa"), (1024, 1, 8.1, "bb"), (0, 2, 5.0, "cc")]);
        let text = compared(&a, &b);
        assert_eq!(line_of(&text, "tg32", "1")[5..8], ["2.000", "1.846 – 2.167", "faster"]);
        assert_eq!(line_of(&text, "tg32 @ d1024", "1")[7], "=");
        assert_eq!(line_of(&text, "tg32", "2")[7..9], ["slower", "same"]);
        assert!(!text.contains("DIFFER"), "{text}");
    }

    #[test]
    fn other_logits_are_reported_first() {
        let a = report(&[(0, 1, 10.0, "aa"), (0, 2, 15.0, "cc")]);
        let b = report(&[(0, 1, 10.0, "ab"), (0, 2, 15.0, "cc")]);
        let text = compared(&a, &b);
        assert!(text.contains("THE LOGITS DIFFER in 1 of 2 tests: tg32 b1"), "{text}");
        assert!(text.find("DIFFER") < text.find("| test"), "{text}");
        assert_eq!(line_of(&text, "tg32", "1")[8], "**DIFFER**");
    }

    #[test]
    fn tests_without_a_partner_are_named() {
        let a = report(&[(0, 1, 10.0, "aa"), (64, 1, 9.0, "bb")]);
        let mut b = report(&[(0, 1, 10.0, "aa"), (0, 4, 30.0, "cc")]);
        b.model.name = "qwen3-8b".into();
        let text = compared(&a, &b);
        assert!(text.contains("only in A: tg32 @ d64 b1"), "{text}");
        assert!(text.contains("only in B: tg32 b4") && text.contains("models differ"), "{text}");
    }
}
