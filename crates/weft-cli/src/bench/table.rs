//! Formats a report as llama-bench's markdown table, and as CSV.

use super::report::{Kind, Report, Row, best};
use crate::size;

/// A column: its heading, and whether it holds numbers.
pub(crate) type Column = (&'static str, bool);

const TESTS: [Column; 9] = [
    ("test", false),
    ("batch", true),
    ("t/s", true),
    ("p10 – p90", true),
    ("time", true),
    ("GB/s", true),
    ("of read bandwidth", true),
    ("GFLOP/s", true),
    ("logits", false),
];

/// The tests of a report, below a line about the model and the device.
pub(crate) fn tests(report: &Report) -> String {
    let lines: Vec<Vec<String>> = report.rows.iter().map(test_line).collect();
    format!("{}\n\n{}\n{}", heading(report), markdown(&TESTS, &lines), footer(report))
}

fn heading(report: &Report) -> String {
    let model = &report.model;
    format!(
        "{} {} · {} parameters, {} · {} · {}",
        model.name,
        model.dtype,
        size::count(model.parameters),
        size::bytes(model.weight_bytes),
        report.device,
        size::plural(report.threads, "thread"),
    )
}

fn test_line(row: &Row) -> Vec<String> {
    let decode = row.kind == Kind::Decode;
    let only = |show: bool, text: String| if show { text } else { String::new() };
    vec![
        row.test.clone(),
        row.batch.to_string(),
        number(row.tokens_per_s.median),
        format!("{} – {}", number(row.tokens_per_s.p10), number(row.tokens_per_s.p90)),
        size::time_ms(row.time_us.median / 1e3),
        only(decode, number(row.gb_per_s)),
        percent(row.bandwidth_share),
        only(!decode, number(row.gflop_per_s)),
        row.logits.as_ref().map_or(String::new(), |logits| logits.hash.clone()),
    ]
}

/// The lines below every table: the read bandwidth, the machine, the build.
pub(crate) fn footer(report: &Report) -> String {
    let bandwidth = &report.bandwidth;
    let mut text = format!(
        "read bandwidth: {:.1} GB/s before, {:.1} after, {:.1} at best ({} passes over {}, \
         {} threads)\n",
        best(&bandwidth.before),
        best(&bandwidth.after),
        bandwidth.best_gb_per_s,
        bandwidth.n_passes(),
        size::bytes(bandwidth.buffer_bytes),
        bandwidth.threads,
    );
    text += &format!(
        "weft {}{} · {} · {} weights · {}\n",
        report.weft_version,
        report.commit.as_ref().map_or(String::new(), |commit| format!(" ({})", short(commit))),
        report.machine.cpu.as_deref().unwrap_or("unknown CPU"),
        report.model.weights,
        report.date,
    );
    for problem in &report.problems {
        text += &format!("**WRONG RESULTS: {problem}**\n");
    }
    text
}

/// A commit's first digits, and whether it had changes.
pub(crate) fn short(commit: &str) -> String {
    let digits: String = commit.chars().take(10).collect();
    if commit.ends_with("-dirty") { digits + "-dirty" } else { digits }
}

pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or(String::new(), |share| format!("{:.1} %", share * 100.0))
}

/// Four digits or two decimals, whichever is more.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A markdown table with aligned source.
pub(crate) fn markdown(columns: &[Column], lines: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.chain([columns[column].0.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |cells: &[&str]| {
        let padded = cells.iter().zip(columns).zip(&widths).map(|((cell, (_, numeric)), width)| {
            if *numeric { format!(" {cell:>width$} |") } else { format!(" {cell:<width$} |") }
        });
        format!("|{}\n", padded.collect::<String>())
    };
    let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    let rule = columns.iter().zip(&widths).map(|((_, numeric), width)| {
        let dashes = "-".repeat(width + 1);
        if *numeric { format!(" {dashes}:|").replacen(" -", "-", 1) } else { format!("{dashes}-|") }
    });
    let mut text = line(&heads) + &format!("|{}\n", rule.collect::<String>());
    for cells in lines {
        text += &line(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

/// One line per row, with all digits.
pub(crate) fn csv(report: &Report) -> String {
    let mut text = String::from(
        "model,dtype,device,threads,commit,date,test,batch,depth,n_tokens,tokens_per_s,\
         tokens_per_s_p10,tokens_per_s_p90,time_us,bytes,gb_per_s,read_gb_per_s,bandwidth_share,\
         gflop_per_s,logits_hash\n",
    );
    for row in &report.rows {
        let cells = [
            report.model.name.clone(),
            report.model.dtype.clone(),
            report.device.clone(),
            report.threads.to_string(),
            report.commit.clone().unwrap_or_default(),
            report.date.clone(),
            row.test.clone(),
            row.batch.to_string(),
            row.depth.to_string(),
            row.n_tokens.to_string(),
            row.tokens_per_s.median.to_string(),
            row.tokens_per_s.p10.to_string(),
            row.tokens_per_s.p90.to_string(),
            row.time_us.median.to_string(),
            row.bytes.to_string(),
            row.gb_per_s.to_string(),
            report.bandwidth.best_gb_per_s.to_string(),
            row.bandwidth_share.map_or(String::new(), |share| share.to_string()),
            row.gflop_per_s.to_string(),
            row.logits.as_ref().map_or(String::new(), |logits| logits.hash.clone()),
        ];
        let quoted = cells.map(|cell| quote(&cell));
        text += &(quoted.join(",") + "\n");
    }
    text
}

fn quote(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn the_table_is_markdown_of_even_width_and_fits_120_columns() {
        let hash = "0123456789abcdef";
        let mut report = report(&[(0, 1, 10.0, "ab"), (1024, 4, 30.0, "cd")]);
        report.rows[0].logits.as_mut().unwrap().hash = hash.to_owned();
        report.rows[1].test = "tg128 @ d131072".to_owned();
        report.device = "CPU (AVX-512 BF16, 2 threads, bf16)".to_owned();
        let wide = tests(&report);
        assert!(wide.contains(hash) && wide.contains("AVX-512"), "{wide}");
        assert!(wide.lines().all(|line| line.chars().count() <= 120), "{wide}");
        report.rows[1].test = "tg32 @ d1024".to_owned();
        let table = tests(&report);
        let lines: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(lines.len(), 4, "{table}");
        let width = lines[0].chars().count();
        assert!(lines.iter().all(|line| line.chars().count() == width), "{table}");
        assert!(lines[1].chars().all(|c| "|-:".contains(c)), "{table}");
        assert!(lines[3].contains("tg32 @ d1024") && lines[3].contains("cd"), "{table}");
        assert!(table.contains("19.0 GB/s before, 20.0 after, 20.0 at best"), "{table}");
    }

    #[test]
    fn problems_stand_below_the_table() {
        let mut report = report(&[(0, 1, 10.0, "ab")]);
        assert!(!tests(&report).contains("WRONG"));
        report.problems.push("logits are not finite".into());
        assert!(tests(&report).contains("WRONG RESULTS: logits are not finite"));
    }

    #[test]
    fn csv_has_a_cell_for_each_head() {
        let mut report = report(&[(0, 1, 10.0, "ab")]);
        report.device = "CPU".into();
        let csv = csv(&report);
        let counts: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(counts, [20, 20]);
        assert_eq!(quote("CPU (AVX2, \"2\")"), "\"CPU (AVX2, \"\"2\"\")\"");
    }

    #[test]
    fn numbers_keep_the_digits_that_count() {
        assert_eq!(
            [0.0123, 1.5, 123.46, 65_700.4].map(number),
            ["0.012", "1.50", "123.5", "65700"]
        );
    }
}
