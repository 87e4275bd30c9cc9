//! `weft bench plot` of runs of `weft bench speculate`: tokens per second, in those of plain
//! decoding, against the share of the drafts that was right, and against the share that was
//! accepted. A line for each length of drafts; a block for each run and depth.

use std::path::Path;

use serde::Deserialize;

use super::stats::Spread;
use super::svg::{Anchor, COLOURS, Svg, ticks};
use crate::error::CliError;

const WIDTH: f64 = 900.0;
const TITLE: f64 = 48.0;
/// The panels' axes: x from, x to.
const PANELS: [(f64, f64); 2] = [(58.0, 430.0), (500.0, 872.0)];
const HEIGHT: f64 = 260.0;
/// A block: its headings, its panels, and what stands below them.
const ABOVE: f64 = 66.0;
const BELOW: f64 = 74.0;

/// What a saved run has that is drawn.
#[derive(Deserialize)]
pub(super) struct Speculated {
    date: String,
    device: String,
    model: String,
    rows: Vec<Row>,
}

#[derive(Clone, Deserialize)]
struct Row {
    text: String,
    depth: usize,
    draft: String,
    right_percent: Option<f64>,
    accepted_share: Option<f64>,
    tokens_per_s: Spread,
    times_plain: Spread,
}

impl Speculated {
    /// Reads a saved run; none if the file is of another bench.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, CliError> {
        let name = path.display();
        let text = std::fs::read_to_string(path).map_err(CliError::io(name.to_string()))?;
        let is_one = |json: &serde_json::Value| json["rows"][0]["times_plain"].is_object();
        let Some(json) = serde_json::from_str(&text).ok().filter(is_one) else { return Ok(None) };
        let refused = |error| CliError::Usage(format!("{name}: not a saved bench: {error}"));
        serde_json::from_value(json).map(Some).map_err(refused)
    }

    /// The rows of oracle drafts, and the plain ones, by depth.
    fn blocks(&self) -> Vec<Vec<&Row>> {
        let of_oracle = || self.rows.iter().filter(|row| row.text == "oracle");
        let mut depths: Vec<usize> = of_oracle().map(|row| row.depth).collect();
        depths.dedup();
        depths.iter().map(|depth| of_oracle().filter(|row| row.depth == *depth).collect()).collect()
    }
}

pub(super) fn drawn(runs: &[Speculated]) -> String {
    let blocks: Vec<(&Speculated, Vec<&Row>)> =
        runs.iter().flat_map(|run| run.blocks().into_iter().map(move |rows| (run, rows))).collect();
    let block_height = ABOVE + HEIGHT + BELOW;
    let mut svg = Svg::new(WIDTH, TITLE + blocks.len() as f64 * block_height);
    svg.text((16.0, 28.0), Anchor::Start, "title", "Drafted answers, in speeds of plain ones");
    for (i, (run, rows)) in blocks.iter().enumerate() {
        block(&mut svg, run, rows, TITLE + i as f64 * block_height);
    }
    svg.finish()
}

fn block(svg: &mut Svg, run: &Speculated, rows: &[&Row], top: f64) {
    let plain = rows.iter().find(|row| row.draft == "off");
    let plain = plain.map_or(0.0, |row| row.tokens_per_s.median);
    let depth = rows.first().map_or(0, |row| row.depth);
    let device = run.device.split(" (").next().unwrap_or_default();
    let head = format!("{}, {device}, depth {depth}: plain {plain:.1} tok/s", run.model);
    svg.text((16.0, top + 18.0), Anchor::Start, "head", &head);
    svg.text((WIDTH - 16.0, top + 18.0), Anchor::End, "small", run.date.get(..10).unwrap_or(""));
    let mut lengths: Vec<&str> = rows.iter().map(|row| row.draft.as_str()).collect();
    lengths.retain(|length| *length != "off");
    lengths.dedup();
    let fastest = rows.iter().map(|row| row.times_plain.p90).fold(1.0, f64::max);
    let y_ticks = ticks(fastest);
    type Share = fn(&Row) -> Option<f64>;
    let panels: [(&str, Share); 2] = [
        ("% of the draft's tokens right", |row| row.right_percent),
        ("% of the drafted tokens accepted", |row| row.accepted_share.map(|share| 100.0 * share)),
    ];
    for ((from, to), (label, share)) in PANELS.into_iter().zip(panels) {
        let bottom = top + ABOVE + HEIGHT;
        let x = |percent: f64| from + percent / 100.0 * (to - from);
        let y = |times: f64| bottom - times / y_ticks[y_ticks.len() - 1] * HEIGHT;
        svg.text((from - 42.0, top + ABOVE - 18.0), Anchor::Start, "small", "× plain decoding");
        for tick in &y_ticks {
            let class = if *tick == 0.0 { "axis" } else { "grid" };
            svg.line((from, y(*tick)), (to, y(*tick)), class);
            svg.text((from - 7.0, y(*tick) + 4.0), Anchor::End, "small", &tick.to_string());
        }
        svg.line((from, y(1.0)), (to, y(1.0)), "floor axis");
        for tick in ticks(100.0) {
            svg.line((x(tick), bottom), (x(tick), bottom + 4.0), "axis");
            svg.text((x(tick), bottom + 18.0), Anchor::Middle, "small", &tick.to_string());
        }
        svg.text((f64::midpoint(from, to), bottom + 37.0), Anchor::Middle, "small", label);
        for (i, length) in lengths.iter().enumerate() {
            let class = format!("c{}", i % COLOURS);
            let mut points: Vec<(f64, &Spread)> = rows
                .iter()
                .filter(|row| row.draft == *length)
                .filter_map(|row| Some((x(share(row)?), &row.times_plain)))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let line: Vec<_> = points.iter().map(|(x, speed)| (*x, y(speed.median))).collect();
            svg.polyline(&line, &format!("line {class}"));
            for ((x, speed), point) in points.iter().zip(line) {
                svg.dot(point, &class);
                svg.line((*x, y(speed.p10)), (*x, y(speed.p90)), &class);
            }
        }
    }
    legend(svg, &lengths, top + ABOVE + HEIGHT + 60.0);
}

fn legend(svg: &mut Svg, lengths: &[&str], y: f64) {
    let pitch = (WIDTH - PANELS[0].0) / (lengths.len() + 1) as f64;
    for (i, length) in lengths.iter().enumerate() {
        let x = PANELS[0].0 + i as f64 * pitch;
        svg.line((x, y - 4.0), (x + 24.0, y - 4.0), &format!("line c{}", i % COLOURS));
        let label =
            if *length == "auto" { "auto".to_owned() } else { format!("drafts of {length}") };
        svg.text((x + 32.0, y), Anchor::Start, "small", &label);
    }
    let x = PANELS[0].0 + lengths.len() as f64 * pitch;
    svg.text((x, y), Anchor::Start, "small", "strokes: p10 to p90");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_length_in_both_panels() {
        let speed = |median: f64| Spread { median, p10: 0.9 * median, p90: 1.1 * median };
        let row = |draft: &str, right: Option<f64>, times: f64| Row {
            text: "oracle".into(),
            depth: 16,
            draft: draft.into(),
            right_percent: right,
            accepted_share: right.map(|right| right / 200.0),
            tokens_per_s: speed(10.0 * times),
            times_plain: speed(times),
        };
        let mut rows = vec![row("off", None, 1.0)];
        for length in ["4", "auto"] {
            rows.extend([0.0, 100.0].map(|right| row(length, Some(right), 1.0 + right / 50.0)));
        }
        rows.push(Row { text: "always wrong".into(), ..row("auto", Some(0.0), 0.99) });
        let run = |rows| Speculated {
            date: "2026-01-02T03:04:05Z".into(),
            device: "CPU (2 threads)".into(),
            model: "a & b".into(),
            rows,
        };
        let svg = drawn(&[run(rows.clone())]);
        assert_eq!(svg.matches("<polyline").count(), 2 * 2, "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2 * 4, "the last row is of another text");
        assert!(svg.contains("a &amp; b, CPU, depth 16: plain 10.0 tok/s"), "{svg}");
        assert!(svg.contains("drafts of 4"), "{svg}");
    }
}
