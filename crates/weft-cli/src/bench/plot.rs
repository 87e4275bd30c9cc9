//! `weft bench plot`: plots saved runs.
//!
//! Left: tokens per second against the depth of the context, a line per batch, with the limit set
//! by the read bandwidth. Right: the share of that limit that each decode test reached.

use std::process::ExitCode;

use super::args::PlotArgs;
use super::file::write_whole;
use super::plot_first_token::{self, FirstTokens};
use super::plot_speculate::{self, Speculated};
use super::report::{Kind, Report, Row};
use super::svg::{Anchor, COLOURS, Svg, binary_ticks, ticks};
use super::table::short;
use crate::error::CliError;

const WIDTH: f64 = 900.0;
/// The top of the panels, below the title.
const TOP: f64 = 82.0;
/// The left panel's axes: x from, x to.
const LEFT: (f64, f64) = (58.0, 440.0);
/// The right panel's bars: x from, x to.
const RIGHT: (f64, f64) = (628.0, 842.0);
const MIN_HEIGHT: f64 = 260.0;
const BAR: f64 = 25.0;
const LEGEND_LINE: f64 = 19.0;

pub(super) fn run(args: &PlotArgs) -> Result<ExitCode, CliError> {
    let first_tokens = args.runs.iter().map(|path| FirstTokens::read(path));
    if let Some(runs) = first_tokens.collect::<Result<Option<Vec<_>>, _>>()? {
        write_whole(&args.out, &plot_first_token::drawn(&runs))?;
        return Ok(ExitCode::SUCCESS);
    }
    let speculated = args.runs.iter().map(|path| Speculated::read(path));
    if let Some(runs) = speculated.collect::<Result<Option<Vec<_>>, _>>()? {
        write_whole(&args.out, &plot_speculate::drawn(&runs))?;
        return Ok(ExitCode::SUCCESS);
    }
    let runs = args.runs.iter().map(|path| Report::read(path)).collect::<Result<Vec<_>, _>>()?;
    let series = series(&runs);
    if series.is_empty() {
        return Err(CliError::Usage(
            "these runs have no decode test to plot; run `weft bench` with -n above 0".to_owned(),
        ));
    }
    write_whole(&args.out, &drawn(&runs, &series))?;
    Ok(ExitCode::SUCCESS)
}

/// The decode tests of one batch of one run.
struct Series<'r> {
    /// The name of the run, if there are several.
    run: String,
    /// The name of the model, if there are several.
    model: Option<&'r str>,
    batch: usize,
    /// Sorted by depth.
    rows: Vec<&'r Row>,
    class: String,
}

impl Series<'_> {
    fn label(&self, between: &str) -> String {
        let batch = format!("batch {}", self.batch);
        if self.run.is_empty() { batch } else { format!("{}{between}{batch}", self.run) }
    }
}

fn series(runs: &[Report]) -> Vec<Series<'_>> {
    let mut all = Vec::new();
    let several_models = runs.iter().any(|run| run.model.name != runs[0].model.name);
    for run in runs {
        let decode = || run.rows.iter().filter(|row| row.kind == Kind::Decode);
        let mut batches: Vec<usize> = decode().map(|row| row.batch).collect();
        batches.sort_unstable();
        batches.dedup();
        for batch in batches {
            let mut rows: Vec<&Row> = decode().filter(|row| row.batch == batch).collect();
            rows.sort_by_key(|row| row.depth);
            let class = format!("c{}", all.len() % COLOURS);
            let model = several_models.then_some(run.model.name.as_str());
            all.push(Series { run: run_name(run, runs), model, batch, rows, class });
        }
    }
    all
}

/// A run's distinguishing name: its model, else its day and commit.
fn run_name(run: &Report, runs: &[Report]) -> String {
    let same_model = runs.iter().filter(|other| other.model.name == run.model.name).count();
    let (name, day) = (&run.model.name, run.date.get(..10).unwrap_or(&run.date));
    match (runs.len(), same_model) {
        (1, _) => String::new(),
        (_, 1) => name.clone(),
        _ => format!("{name} {day} {}", run.commit.as_deref().map(short).unwrap_or_default()),
    }
}

fn drawn(runs: &[Report], series: &[Series<'_>]) -> String {
    let n_bars: usize = series.iter().map(|series| series.rows.len()).sum();
    let height = MIN_HEIGHT.max(n_bars as f64 * BAR);
    let mut machines: Vec<String> = runs.iter().map(machine).collect();
    machines.dedup();
    let below = TOP + height + 62.0;
    let lines = (series.len() + 1 + machines.len()) as f64;
    let mut svg = Svg::new(WIDTH, below + lines * LEGEND_LINE);
    title(&mut svg, runs);
    speeds(&mut svg, series, height);
    legends(&mut svg, series, below);
    for (i, machine) in machines.iter().enumerate() {
        let y = below + (series.len() + 1 + i) as f64 * LEGEND_LINE;
        svg.text((16.0, y), Anchor::Start, "small", machine);
    }
    shares(&mut svg, series, height);
    svg.finish()
}

fn title(svg: &mut Svg, runs: &[Report]) {
    let mut models: Vec<&str> = runs.iter().map(|run| run.model.name.as_str()).collect();
    models.dedup();
    let first = &runs[0];
    let text = format!("weft: decode of {}, {}", models.join(", "), first.model.dtype);
    svg.text((16.0, 28.0), Anchor::Start, "title", &text);
    svg.text((LEFT.0 - 42.0, TOP - 18.0), Anchor::Start, "head", "tokens per second, all lanes");
    svg.text((476.0, TOP - 18.0), Anchor::Start, "head", "% of the read bandwidth");
}

fn machine(run: &Report) -> String {
    format!(
        "{}, {}, read bandwidth {:.1} GB/s, {}",
        run.machine.cpu.as_deref().unwrap_or("unknown CPU"),
        run.device,
        run.bandwidth.best_gb_per_s,
        run.date.get(..10).unwrap_or(&run.date),
    )
}

/// The left panel.
fn speeds(svg: &mut Svg, series: &[Series<'_>], height: f64) {
    let rows = || series.iter().flat_map(|series| &series.rows);
    let speed = |row: &Row| floor(row).unwrap_or(0.0).max(row.tokens_per_s.median);
    let y_ticks = ticks(rows().map(|row| speed(row)).fold(0.0, f64::max));
    let x_ticks = binary_ticks(rows().map(|row| row.depth).max().unwrap_or(0) as f64);
    let scale = |ticks: &[f64], value: f64| value / ticks[ticks.len() - 1];
    let x = |depth: f64| LEFT.0 + 8.0 + scale(&x_ticks, depth) * (LEFT.1 - LEFT.0 - 8.0);
    let y = |speed: f64| TOP + height * (1.0 - scale(&y_ticks, speed));
    for tick in &y_ticks {
        svg.line(
            (LEFT.0, y(*tick)),
            (LEFT.1, y(*tick)),
            if *tick == 0.0 { "axis" } else { "grid" },
        );
        svg.text((LEFT.0 - 7.0, y(*tick) + 4.0), Anchor::End, "small", &tick.to_string());
    }
    let deep = rows().any(|row| row.depth > 0);
    for tick in x_ticks.iter().take(if deep { x_ticks.len() } else { 1 }) {
        svg.line((x(*tick), TOP + height), (x(*tick), TOP + height + 4.0), "axis");
        svg.text((x(*tick), TOP + height + 18.0), Anchor::Middle, "small", &count(*tick));
    }
    let middle = f64::midpoint(LEFT.0, LEFT.1);
    svg.text((middle, TOP + height + 37.0), Anchor::Middle, "small", "tokens in the context");
    for Series { rows, class, .. } in series {
        let points = |of: &dyn Fn(&Row) -> Option<f64>| -> Vec<(f64, f64)> {
            let point = |row: &&Row| Some((x(row.depth as f64), y(of(row)?)));
            rows.iter().filter_map(point).collect()
        };
        let floor_points = points(&floor);
        svg.polyline(&floor_points, &format!("floor {class}"));
        let line = points(&|row| Some(row.tokens_per_s.median));
        svg.polyline(&line, &format!("line {class}"));
        line.iter().for_each(|point| svg.dot(*point, class));
        for row in rows {
            let at = |speed| (x(row.depth as f64), y(speed));
            svg.line(at(row.tokens_per_s.p10), at(row.tokens_per_s.p90), class);
        }
    }
}

/// Tokens per second at the full read bandwidth.
fn floor(row: &Row) -> Option<f64> {
    row.bandwidth_share.map(|share| row.tokens_per_s.median / share)
}

fn legends(svg: &mut Svg, series: &[Series<'_>], top: f64) {
    for (i, series) in series.iter().enumerate() {
        let y = top + i as f64 * LEGEND_LINE;
        svg.line((LEFT.0, y - 4.0), (LEFT.0 + 24.0, y - 4.0), &format!("line {}", series.class));
        svg.text((LEFT.0 + 32.0, y), Anchor::Start, "small", &series.label(", "));
    }
    let y = top + series.len() as f64 * LEGEND_LINE;
    svg.line((LEFT.0, y - 4.0), (LEFT.0 + 24.0, y - 4.0), "floor axis");
    let text = "dashed: if every byte came at the read bandwidth; strokes: p10 to p90";
    svg.text((LEFT.0 + 32.0, y), Anchor::Start, "small", text);
}

/// The right panel.
fn shares(svg: &mut Svg, series: &[Series<'_>], height: f64) {
    let rows = || series.iter().flat_map(|s| s.rows.iter().map(move |row| (s, *row)));
    let share = |row: &Row| row.bandwidth_share.unwrap_or(0.0) * 100.0;
    let x_ticks = ticks(rows().map(|(_, row)| share(row)).fold(100.0, f64::max));
    let width = RIGHT.1 - RIGHT.0;
    let x = |percent: f64| RIGHT.0 + percent / x_ticks[x_ticks.len() - 1] * width;
    for tick in &x_ticks {
        let class = if *tick == 0.0 || *tick == 100.0 { "axis" } else { "grid" };
        svg.line((x(*tick), TOP), (x(*tick), TOP + height), class);
        svg.text((x(*tick), TOP + height + 18.0), Anchor::Middle, "small", &tick.to_string());
    }
    let n_bars = rows().count();
    let pitch = height / n_bars as f64;
    let thick = (pitch * 0.62).min(26.0);
    for (i, (series, row)) in rows().enumerate() {
        let middle = TOP + pitch * (i as f64 + 0.5);
        let label = match &series.model {
            Some(model) => format!("{model} {}", row.name()),
            None => row.name(),
        };
        svg.text((RIGHT.0 - 8.0, middle + 4.0), Anchor::End, "small", &label);
        let bar = (x(share(row)) - RIGHT.0, thick);
        svg.bar((RIGHT.0, middle - thick / 2.0), bar, &series.class);
        let value = format!("{:.0} %", share(row));
        svg.text((WIDTH - 14.0, middle + 4.0), Anchor::End, "small", &value);
    }
}

/// A token count as text.
fn count(tokens: f64) -> String {
    if tokens >= 1024.0 { format!("{}k", tokens / 1024.0) } else { tokens.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    /// Every element is closed, in order, and no text has an unescaped character.
    fn assert_well_formed(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        for part in svg.split('<').skip(1) {
            let (tag, text) = part.split_once('>').expect("a tag ends");
            assert!(
                !text
                    .replace("&lt;", "")
                    .replace("&gt;", "")
                    .replace("&amp;", "")
                    .contains(['&', '>']),
                "{text}"
            );
            assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !tag.ends_with('/') {
                open.push(tag.split(' ').next().unwrap());
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn a_line_for_each_batch_and_a_bar_for_each_test() {
        let runs = [report(&[(0, 1, 10.0, "a"), (1024, 1, 9.0, "b"), (0, 4, 30.0, "c")])];
        let svg = drawn(&runs, &series(&runs));
        assert_well_formed(&svg);
        assert_eq!(svg.matches("class=\"line c").count(), 2 + 2, "lines and their legend: {svg}");
        assert_eq!(svg.matches("<polyline").count(), 2 + 2, "lines and floors");
        assert_eq!(svg.matches("<rect").count(), 3);
        assert!(svg.contains("batch 4") && svg.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn several_runs_have_distinct_names() {
        let mut runs = [report(&[(0, 1, 10.0, "a")]), report(&[(0, 1, 3.0, "b")])];
        runs[1].model.name = "a <odd> & name".into();
        let svg = drawn(&runs, &series(&runs));
        assert_well_formed(&svg);
        assert!(svg.contains("qwen3-0.6b, batch 1") && svg.contains("a &lt;odd&gt;"), "{svg}");
    }
}
