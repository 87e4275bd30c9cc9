//! `weft bench plot` of runs of `weft bench first-token`: the time to the first token, cold and with
//! the rows kept in each tier. One block of bars for each run, and the time saved beside each bar.

use std::path::Path;

use serde::Deserialize;

use super::stats::Spread;
use super::svg::{Anchor, Svg};
use crate::error::CliError;

const WIDTH: f64 = 900.0;
/// The bars: x from, x to. The longest of a run fills it.
const BARS: (f64, f64) = (216.0, 640.0);
const PITCH: f64 = 28.0;
const THICK: f64 = 18.0;
/// What a run takes beside its bars: a line above them and space below.
const AROUND: f64 = 56.0;
const TITLE: f64 = 48.0;

/// What a saved run has that is drawn.
#[derive(Deserialize)]
pub(super) struct FirstTokens {
    date: String,
    machine: Machine,
    device: String,
    model: String,
    context_tokens: usize,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Machine {
    cpu: Option<String>,
    cores: usize,
}

#[derive(Deserialize)]
struct Case {
    rows: String,
    first_token_ms: Spread,
}

impl FirstTokens {
    /// Reads a saved run; none if the file is of another bench.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, CliError> {
        let name = path.display();
        let text = std::fs::read_to_string(path).map_err(CliError::io(name.to_string()))?;
        let is_one = |json: &serde_json::Value| json["cases"][0]["first_token_ms"].is_object();
        let Some(json) = serde_json::from_str(&text).ok().filter(is_one) else { return Ok(None) };
        let refused = |error| CliError::Usage(format!("{name}: not a saved bench: {error}"));
        serde_json::from_value(json).map(Some).map_err(refused)
    }

    /// The GPU, or the cores that computed.
    fn computer(&self) -> String {
        // Earlier versions wrote `CUDA (NVIDIA H200, …)`.
        let gpu = self.device.strip_prefix("CUDA · ").or(self.device.strip_prefix("CUDA ("));
        let gpu = gpu.and_then(|rest| rest.split([',', '·']).next()).map(str::trim);
        let cpu = self.machine.cpu.as_deref().unwrap_or("CPU");
        gpu.map_or_else(|| format!("{} cores of an {cpu}", self.machine.cores), str::to_owned)
    }
}

pub(super) fn drawn(runs: &[FirstTokens]) -> String {
    let height = |run: &FirstTokens| AROUND + run.cases.len() as f64 * PITCH;
    let mut svg = Svg::new(WIDTH, TITLE + runs.iter().map(height).sum::<f64>());
    svg.text((16.0, 28.0), Anchor::Start, "title", "Time to the first token of an answer");
    let mut top = TITLE;
    for run in runs {
        block(&mut svg, run, top);
        top += height(run);
    }
    svg.finish()
}

fn block(svg: &mut Svg, run: &FirstTokens, top: f64) {
    let (tokens, model, computer) = (run.context_tokens, &run.model, run.computer());
    let head = format!("{tokens} tokens of documents, {model}, {computer}");
    svg.text((16.0, top + 18.0), Anchor::Start, "head", &head);
    svg.text((WIDTH - 16.0, top + 18.0), Anchor::End, "small", run.date.get(..10).unwrap_or(""));
    let longest = run.cases.iter().map(|case| case.first_token_ms.median).fold(0.0, f64::max);
    let cold = run.cases.iter().find(|case| case.rows == "cold");
    for (i, Case { rows, first_token_ms }) in run.cases.iter().enumerate() {
        let middle = top + 30.0 + (i as f64 + 0.5) * PITCH;
        let (label, class) = match rows.as_str() {
            "cold" => ("computed now", "c1"),
            "device" => ("kept on the device", "c2"),
            "ram" => ("kept in main memory", "c2"),
            "disk" => ("kept on disk", "c2"),
            other => (other, "c7"),
        };
        svg.text((BARS.0 - 10.0, middle + 4.0), Anchor::End, "", label);
        let width = (first_token_ms.median / longest * (BARS.1 - BARS.0)).max(2.0);
        svg.bar((BARS.0, middle - THICK / 2.0), (width, THICK), class);
        let saved = cold.map_or(0.0, |cold| cold.first_token_ms.median - first_token_ms.median);
        let saved =
            if saved > 0.0 { format!(", {} saved", time(saved, longest)) } else { String::new() };
        let text = format!("{}{saved}", time(first_token_ms.median, longest));
        svg.text((BARS.0 + width + 8.0, middle + 4.0), Anchor::Start, "", &text);
    }
}

/// A time in the unit of the longest of its block.
fn time(ms: f64, longest: f64) -> String {
    let (value, unit) = if longest < 1000.0 { (ms, "ms") } else { (ms / 1000.0, "s") };
    let decimals = if value < 1.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_block_have_one_unit() {
        assert_eq!(time(22_939.9, 22_939.9), "22.9 s");
        assert_eq!(time(420.8, 22_939.9), "0.42 s");
        assert_eq!(time(3.795, 235.2), "3.8 ms");
        assert_eq!(time(191.9, 235.2), "192 ms");
    }
}
