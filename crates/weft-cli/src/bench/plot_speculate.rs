//! `weft bench plot` of runs of `weft bench speculate`: tokens per second against the share of the
//! drafts that was right, and against the share that was accepted, with plain decoding beside. A
//! line for each length of drafts; a block for each run and depth.

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
    svg.text(
        (16.0, 28.0),
        Anchor::Start,
        "title",
        "Speed of drafted answers; the drafts are oracles",
    );
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
    let fastest = rows.iter().map(|row| row.tokens_per_s.p90).fold(plain, f64::max);
    let panels: [(&str, Share); 2] = [
        ("% of the draft's tokens right", |row| row.right_percent),
        ("% of the drafted tokens accepted", |row| row.accepted_share.map(|share| 100.0 * share)),
    ];
    let bottom = top + ABOVE + HEIGHT;
    for (x, (label, share)) in PANELS.into_iter().zip(panels) {
        let panel = Panel { x, bottom, ticks: ticks(fastest) };
        panel.axes(svg, label, plain);
        for (i, length) in lengths.iter().enumerate() {
            let of_length = rows.iter().filter(|row| row.draft == *length);
            panel.line(svg, of_length.copied(), share, &format!("c{}", i % COLOURS));
        }
    }
    legend(svg, &lengths, bottom + 60.0);
}

/// What a panel's x axis shows, in per cent.
type Share = fn(&Row) -> Option<f64>;

/// One panel: speeds against a share.
struct Panel {
    /// From, to.
    x: (f64, f64),
    bottom: f64,
    /// Of the y axis.
    ticks: Vec<f64>,
}

impl Panel {
    fn at(&self, percent: f64, speed: f64) -> (f64, f64) {
        let (from, to) = self.x;
        let top = self.ticks[self.ticks.len() - 1];
        (from + percent / 100.0 * (to - from), self.bottom - speed / top * HEIGHT)
    }

    /// The axes, and a dashed line for plain decoding.
    fn axes(&self, svg: &mut Svg, label: &str, plain: f64) {
        let ((from, to), bottom) = (self.x, self.bottom);
        let head = (from - 42.0, bottom - HEIGHT - 18.0);
        svg.text(head, Anchor::Start, "small", "tokens per second; dashed: plain decoding");
        for tick in &self.ticks {
            let (_, y) = self.at(0.0, *tick);
            svg.line((from, y), (to, y), if *tick == 0.0 { "axis" } else { "grid" });
            svg.text((from - 7.0, y + 4.0), Anchor::End, "small", &tick.to_string());
        }
        svg.line(self.at(0.0, plain), self.at(100.0, plain), "floor axis");
        for tick in ticks(100.0) {
            let (x, _) = self.at(tick, 0.0);
            svg.line((x, bottom), (x, bottom + 4.0), "axis");
            svg.text((x, bottom + 18.0), Anchor::Middle, "small", &tick.to_string());
        }
        svg.text((f64::midpoint(from, to), bottom + 37.0), Anchor::Middle, "small", label);
    }

    /// The speeds of one length of drafts.
    fn line<'r>(
        &self,
        svg: &mut Svg,
        rows: impl Iterator<Item = &'r Row>,
        share: Share,
        class: &str,
    ) {
        let point = |row: &'r Row| Some((share(row)?, &row.tokens_per_s));
        let mut points: Vec<(f64, &Spread)> = rows.filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let medians: Vec<_> =
            points.iter().map(|(percent, speed)| self.at(*percent, speed.median)).collect();
        svg.polyline(&medians, &format!("line {class}"));
        medians.iter().for_each(|point| svg.dot(*point, class));
        for (percent, speed) in points {
            svg.line(self.at(percent, speed.p10), self.at(percent, speed.p90), class);
        }
    }
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
