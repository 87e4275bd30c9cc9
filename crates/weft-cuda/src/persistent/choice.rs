//! Whether a token runs faster in the persistent kernel or as a graph: measured when a device is made, on the model and
//! the GPU that are there, and only if both compute the same bits.

use std::fmt;
use std::time::Instant;

use weft::device::{Device, DeviceError, Lane, Limits, Outputs, Span, Step};
use weft::kv::pages_for;
use weft::plan::plan;

use crate::CudaDevice;
use crate::device::Launches;
use crate::tables::{Counts, SECTION_ROWS};

/// Lanes and rows of each that are measured; a step goes the way of the point that is nearest to it.
const LANES: [usize; 2] = [1, 4];
const ROWS: [usize; 2] = [200, 8000];
/// From here on a step is nearer to the second of each: lanes, and rows of all its lanes' sections.
const MANY_LANES: usize = 3;
const MANY_ROWS: usize = 2048;
/// Runs of a point in each way; the fastest counts.
const RUNS: usize = 5;

/// One measured point.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    lanes: usize,
    rows: usize,
    graph_us: f64,
    persistent_us: f64,
}

/// What was measured, and what follows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// By lanes, then by rows; none where the device is too small for it.
    points: [[Option<Point>; 2]; 2],
    /// Why the persistent kernel is not used at all.
    refused: Option<String>,
}

impl Choice {
    /// The graph alone, and why.
    pub(crate) fn refuse(reason: String) -> Self {
        Self { refused: Some(reason), ..Self::default() }
    }

    /// Whether a step with these lists runs in the persistent kernel.
    pub(crate) fn is_persistent(&self, counts: &Counts) -> bool {
        let rows = counts.n_partials * SECTION_ROWS / counts.n_tokens.max(1);
        let lanes = usize::from(counts.n_tokens >= MANY_LANES);
        let point = self.points[lanes][usize::from(rows >= MANY_ROWS)];
        let wins = |point: Point| point.persistent_us < point.graph_us;
        self.refused.is_none() && point.or(self.points[lanes][0]).is_some_and(wins)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(reason) = &self.refused {
            return write!(f, "graph, because {reason}");
        }
        let points: Vec<String> = { self.points.iter().flatten().flatten() }
            .map(|point| {
                let Point { lanes, rows, graph_us, persistent_us } = point;
                format!("{lanes}×{rows} rows {persistent_us:.0} of {graph_us:.0} µs")
            })
            .collect();
        write!(f, "persistent where it is faster than a graph: {}", points.join(", "))
    }
}

/// Measures all points that the device has room for.
pub(crate) fn measure(device: &mut CudaDevice) -> Choice {
    let mut choice = Choice::default();
    for (lanes, of_lanes) in LANES.iter().zip(&mut choice.points) {
        for (rows, point) in ROWS.iter().zip(of_lanes) {
            if !fits(&device.limits(), *lanes, *rows) {
                continue;
            }
            match compare(device, *lanes, *rows) {
                Ok(Some(measured)) => *point = Some(measured),
                Ok(None) => {
                    return Choice::refuse("the persistent kernel gave other bits".to_owned());
                }
                Err(error) => return Choice::refuse(error.to_string()),
            }
        }
    }
    choice
}

fn fits(limits: &Limits, lanes: usize, rows: usize) -> bool {
    rows <= limits.positions
        && lanes * pages_for(rows) <= limits.pages
        && lanes <= limits.step_tokens.min(limits.step_outputs)
}

/// One point in both ways; nothing where their logits differ. The rows before are whatever the pages hold: a new
/// device's are zeros.
fn compare(
    device: &mut CudaDevice,
    lanes: usize,
    rows: usize,
) -> Result<Option<Point>, DeviceError> {
    let n_pages = pages_for(rows);
    let position = [rows as u32 - 1];
    let spans: Vec<[Span; 1]> = (0..lanes)
        .map(|lane| {
            let pages = (lane * n_pages..(lane + 1) * n_pages).map(|page| page as u32).collect();
            [Span { pages, len: rows, home_position: 0, position: 0 }]
        })
        .collect();
    let slots: Vec<[u32; 1]> = spans.iter().map(|spans| [spans[0].slot(rows - 1)]).collect();
    let of_step: Vec<Lane<'_>> = { spans.iter().zip(&slots) }
        .map(|(spans, slot)| Lane {
            tokens: &[0],
            positions: &position,
            key_positions: &position,
            store_at: slot,
            spans,
            outputs: Outputs::Last,
        })
        .collect();
    let step = Step { lanes: &of_step };
    let mut time = |way| -> Result<(f64, Vec<Vec<u32>>), DeviceError> {
        let (ops, before) = (plan(&device.config), device.launches);
        device.launches = way;
        let mut best_us = f64::INFINITY;
        let ran = (0..RUNS).try_for_each(|_| {
            let start = Instant::now();
            device.run(&ops, &step)?;
            best_us = best_us.min(start.elapsed().as_secs_f64() * 1e6);
            Ok(())
        });
        device.launches = before;
        ran?;
        let bits = |lane| device.logits(lane).iter().map(|logit: &f32| logit.to_bits()).collect();
        Ok((best_us, (0..lanes).map(bits).collect()))
    };
    let (graph_us, expected) = time(Launches::Graph)?;
    let (persistent_us, bits) = time(Launches::Persistent)?;
    Ok((bits == expected).then_some(Point { lanes, rows, graph_us, persistent_us }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(lanes: usize, rows: usize, persistent_us: f64) -> Option<Point> {
        Some(Point { lanes, rows, graph_us: 100.0, persistent_us })
    }

    fn counts(n_tokens: usize, rows: usize) -> Counts {
        let n_partials = n_tokens * rows.div_ceil(SECTION_ROWS);
        Counts { n_tokens, n_partials, ..Counts::default() }
    }

    #[test]
    fn a_step_goes_the_way_of_the_nearest_point() {
        let points = [[point(1, 200, 90.0), point(1, 8000, 110.0)], [point(4, 200, 120.0), None]];
        let choice = Choice { points, refused: None };
        assert!(choice.is_persistent(&counts(1, 300)));
        assert!(choice.is_persistent(&counts(2, 1000)));
        assert!(!choice.is_persistent(&counts(1, 9000)));
        assert!(!choice.is_persistent(&counts(8, 100)));
        // What was not measured goes as the shorter context does.
        assert!(!choice.is_persistent(&counts(4, 9000)));
        assert_eq!(
            choice.to_string(),
            "persistent where it is faster than a graph: 1×200 rows 90 of 100 µs, \
             1×8000 rows 110 of 100 µs, 4×200 rows 120 of 100 µs"
        );
    }

    #[test]
    fn what_was_refused_is_never_chosen() {
        let choice =
            Choice { points: [[point(1, 200, 1.0); 2]; 2], refused: Some("of this".into()) };
        assert!(!choice.is_persistent(&counts(1, 100)));
        assert_eq!(choice.to_string(), "graph, because of this");
    }

    #[test]
    fn nothing_is_measured_beyond_the_device() {
        let limits = Limits { step_tokens: 8, step_outputs: 8, positions: 8192, pages: 200 };
        assert!(fits(&limits, 1, 8000) && !fits(&limits, 4, 8000) && fits(&limits, 4, 200));
    }
}
