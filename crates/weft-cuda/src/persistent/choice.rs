//! Decides whether tokens run in the persistent kernel or as graphs: by what was faster on this GPU,
//! and only if both compute the same bits.
//!
//! The times are measured once for a model on a GPU and kept on disk (`record.rs`). The bits are
//! compared at every start: while the times are measured, or for a few tokens in every kernel.

use std::fmt;
use std::time::{Duration, Instant};

use weft_core::device::{Device, DeviceError, Lane, Limits, OneToken, Step};
use weft_core::kv::{PageId, pages_for};
use weft_core::plan::plan;
use weft_core::sampling::{Sampler, Sampling};

use super::record::{self, Record};
use crate::CudaDevice;
use crate::device::Launches;
use crate::error::CudaError;
use crate::modules::WHOLE_PLANS;
use crate::tables::{Counts, SECTION_ROWS};

/// Numbers of lanes that are measured: those that kernels are compiled for.
pub(super) const LANES: [usize; WHOLE_PLANS.len()] = {
    let [(_, one), (_, two), (_, four), (_, eight)] = WHOLE_PLANS;
    [one, two, four, eight]
};
/// Rows of each lane. A step is decided by the measured number of rows that is nearest to its mean
/// rows per token.
pub(super) const ROWS: [usize; 4] = [72, 2056, 8008, 32_008];
/// From these numbers of rows on, a step is nearer to the second, third and last point.
const NEARER_ROWS: [usize; 3] = [1024, 5120, 20_480];
/// Tokens of every lane that are run for a point: they fit in the page of its last row.
const TOKENS: usize = 6;
/// Runs of a point in each way, of which the fastest counts; one is enough if it takes long.
const RUNS: usize = 2;
const LONG: Duration = Duration::from_millis(8);
/// After this time no more points are measured. Those with few lanes and rows come first.
const ALL: Duration = Duration::from_millis(250);

/// One measured point: the time of a token in µs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) graph_us: f64,
    pub(super) persistent_us: f64,
}

/// By lanes, then by rows; none if the device is too small for the point or the time was over.
pub(super) type Points = [[Option<Point>; ROWS.len()]; LANES.len()];

impl Point {
    fn is_persistent(&self) -> bool {
        self.persistent_us < self.graph_us
    }
}

/// The measurements and the decision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    points: Points,
    /// Why the persistent kernel is not used at all.
    refused: Option<String>,
}

impl Choice {
    /// Only graphs, and the reason why.
    pub(crate) fn refuse(reason: String) -> Self {
        Self { refused: Some(reason), ..Self::default() }
    }

    /// Whether a step with these counts runs in the persistent kernel, which would be one of
    /// `WHOLE_PLANS`. A point that was not measured is decided like shorter contexts; if none was
    /// measured, the step runs as a graph.
    pub(crate) fn is_persistent(&self, counts: &Counts, plan: usize) -> bool {
        let of_lanes = &self.points[plan];
        let rows = counts.n_partials * SECTION_ROWS / counts.n_tokens.max(1);
        let nearest = NEARER_ROWS.iter().filter(|from| rows >= **from).count();
        let measured = of_lanes[..=nearest].iter().rev().find_map(|point| *point);
        self.refused.is_none() && measured.is_some_and(|point| point.is_persistent())
    }

    /// Whether single tokens of short contexts run in the persistent kernel.
    pub(crate) fn is_mostly_persistent(&self) -> bool {
        self.is_persistent(&Counts { n_tokens: 1, n_outputs: 1, ..Counts::default() }, 0)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(reason) = &self.refused {
            return write!(f, "graph, because {reason}");
        }
        let of_lanes = |(lanes, points): (&usize, &[Option<Point>; 4])| {
            let faster = ROWS.iter().zip(points).filter_map(|(rows, point)| {
                let Point { graph_us, persistent_us } = (*point).filter(Point::is_persistent)?;
                Some(format!("{rows} rows {persistent_us:.0} to {graph_us:.0} µs"))
            });
            let faster: Vec<String> = faster.collect();
            (!faster.is_empty()).then(|| format!("{lanes}× {}", faster.join(", ")))
        };
        let faster: Vec<String> = LANES.iter().zip(&self.points).filter_map(of_lanes).collect();
        match faster.as_slice() {
            [] => f.write_str("graph, faster than persistent"),
            faster => write!(f, "persistent where faster than graph: {}", faster.join("; ")),
        }
    }
}

/// Takes the times that are on disk and compares the bits of a few tokens, or measures and keeps
/// the times.
pub(crate) fn decide(device: &mut CudaDevice) -> Choice {
    let (launches, limits) = (device.launches, device.limits());
    let fits = LANES.map(|lanes| ROWS.map(|rows| fits(&limits, lanes, rows)));
    let entry = record::entry(device);
    let kept = entry.as_deref().and_then(record::read).filter(|record| record.serves(&fits));
    let choice = match &kept {
        Some(record) => check(device, record.points),
        None => measure(device),
    };
    device.launches = launches;
    if let (None, None, Some(entry)) = (&choice.refused, kept, entry) {
        // If it fails, the next start only measures again.
        let _ = record::write(&entry, &Record { fits, points: choice.points });
    }
    choice
}

/// Removes the times of a device from the disk. For tests.
pub(crate) fn forget(device: &CudaDevice) {
    if let Some(entry) = record::entry(device) {
        let _ = std::fs::remove_file(entry);
    }
}

/// Compares the bits of the shortest context in each kernel that the points let run.
fn check(device: &mut CudaDevice, points: Points) -> Choice {
    for (lanes, points) in LANES.iter().zip(&points) {
        if points[0].is_none() || !fits(&device.limits(), *lanes, ROWS[0]) {
            continue;
        }
        if let Err(reason) = compare(device, *lanes, ROWS[0], 1) {
            return Choice::refuse(reason);
        }
    }
    Choice { points, refused: None }
}

/// Measures all points that the device has room and time for.
fn measure(device: &mut CudaDevice) -> Choice {
    let (start, mut choice) = (Instant::now(), Choice::default());
    for (at_rows, rows) in ROWS.iter().enumerate() {
        for (at_lanes, lanes) in LANES.iter().enumerate() {
            if !fits(&device.limits(), *lanes, *rows) || start.elapsed() > ALL {
                continue;
            }
            match compare(device, *lanes, *rows, RUNS) {
                Ok(measured) => choice.points[at_lanes][at_rows] = Some(measured),
                Err(reason) => return Choice::refuse(reason),
            }
        }
    }
    match choice.points.iter().flatten().any(Option::is_some) {
        true => choice,
        false => Choice::refuse("its contexts are too short to measure".to_owned()),
    }
}

fn fits(limits: &Limits, lanes: usize, rows: usize) -> bool {
    let rows = rows + TOKENS;
    rows <= limits.positions
        && lanes * pages_for(rows) <= limits.pages
        && lanes <= limits.step_tokens.min(limits.step_outputs)
}

/// Measures one point in both ways. Without a point, the kernel is refused, for the reason given:
/// their tokens or logits differ, or something failed. Rows that the device has stay as they are.
fn compare(
    device: &mut CudaDevice,
    lanes: usize,
    rows: usize,
    runs: usize,
) -> Result<Point, String> {
    let failed = |error: CudaError| error.to_string();
    // The tokens of a lane are in its last page.
    let per_lane = pages_for(rows + TOKENS);
    let pages: Vec<PageId> = (1..=lanes).map(|lane| (lane * per_lane - 1) as PageId).collect();
    let saved = match device.has_rows {
        true => Some(device.save_pages(&pages).map_err(failed)?),
        false => None,
    };
    let has_rows = device.has_rows;
    let compared = compare_ways(device, lanes, rows, runs);
    device.has_rows = has_rows;
    if let Some(saved) = &saved {
        device.restore_pages(&pages, saved).map_err(failed)?;
    }
    match compared {
        Ok(Some(point)) => Ok(point),
        Ok(None) => Err("the persistent kernel gave other bits".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn compare_ways(
    device: &mut CudaDevice,
    lanes: usize,
    rows: usize,
    runs: usize,
) -> Result<Option<Point>, DeviceError> {
    let mut time = |way| -> Result<_, DeviceError> {
        device.launches = way;
        let start = Instant::now();
        let (mut best_us, mut said) = time_tokens(device, lanes, rows)?;
        for _ in 1..runs {
            if start.elapsed() < LONG {
                let (time_us, again) = time_tokens(device, lanes, rows)?;
                best_us = best_us.min(time_us);
                said = if again == said { again } else { Said::default() };
            }
        }
        Ok((best_us, said))
    };
    let (graph_us, expected) = time(Launches::Graph)?;
    let (persistent_us, said) = time(Launches::Persistent)?;
    let is_same = said == expected && !said.tokens.is_empty();
    Ok(is_same.then_some(Point { graph_us, persistent_us }))
}

/// The tokens of a run, and the bits of its last logits.
#[derive(PartialEq, Default)]
struct Said {
    tokens: Vec<Vec<Option<u32>>>,
    logits: Vec<Vec<u32>>,
}

/// The tokens that lanes begin with: another one for each, because lanes that say the same choose
/// the same experts, and a step then reads fewer of them than it does for real answers.
fn first_tokens(lanes: usize, vocab: usize) -> Vec<u32> {
    (0..lanes).map(|lane| (lane * vocab / lanes) as u32).collect()
}

/// Decodes some tokens of every lane, started ahead like those of an answer. Returns the time of
/// one in µs, without the launch before the first. The rows of the context are whatever the pages
/// hold: zeros on a new device, and those of others later.
fn time_tokens(
    device: &mut CudaDevice,
    lanes: usize,
    rows: usize,
) -> Result<(f64, Said), DeviceError> {
    let ops = plan(&device.config);
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let mut sampler = Sampler::new(&greedy, &[], &[], device.config.vocab)
        .expect("nothing is asked of it that could be wrong");
    let mut next = first_tokens(lanes, device.config.vocab);
    let (mut said, mut first) = (Said::default(), Instant::now());
    for n in 0..TOKENS {
        let places: Vec<OneToken> = next
            .iter()
            .enumerate()
            .map(|(lane, token)| OneToken::new(lane, pages_for(rows + n), rows + n, *token))
            .collect();
        let of_step: Vec<Lane<'_>> = places.iter().map(OneToken::lane).collect();
        let samplers = vec![Some(&sampler); lanes];
        device.decode(&ops, &Step { lanes: &of_step }, &samplers, TOKENS - 1 - n)?;
        let tokens: Vec<_> = (0..lanes).map(|lane| device.chosen(lane, 0)).collect();
        next = tokens.iter().map(|token| token.unwrap_or_default()).collect();
        said.tokens.push(tokens);
        sampler.accept(next[0]).expect("it has no constraint");
        if n == 0 {
            first = Instant::now();
        }
    }
    let time_us = first.elapsed().as_secs_f64() * 1e6 / (TOKENS - 1) as f64;
    // Rows that others left may hold what is no number, and then neither do logits.
    let bits = |logit: &f32| if logit.is_nan() { u32::MAX } else { logit.to_bits() };
    let bits = |lane| device.logits(lane).iter().map(bits).collect();
    said.logits = (0..lanes).map(bits).collect();
    Ok((time_us, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_are_timed_begin_with_tokens_of_their_own() {
        assert_eq!(first_tokens(1, 151_936), [0]);
        assert_eq!(first_tokens(4, 10), [0, 2, 5, 7]);
    }
    use crate::modules::plan_for;

    fn point(persistent_us: f64) -> Option<Point> {
        Some(Point { graph_us: 100.0, persistent_us })
    }

    /// Of lanes of one token and some rows each.
    fn is_persistent(choice: &Choice, n_tokens: usize, rows: usize) -> bool {
        let n_partials = n_tokens * rows.div_ceil(SECTION_ROWS);
        let counts = Counts { n_tokens, n_outputs: n_tokens, n_partials, ..Counts::default() };
        plan_for(&counts, 1).is_some_and(|plan| choice.is_persistent(&counts, plan))
    }

    #[test]
    fn a_step_goes_the_way_of_the_nearest_point() {
        let one = [point(90.0), point(95.0), point(110.0), None];
        let points = [one, [point(99.0), None, None, None], [point(120.0); 4], [None; 4]];
        let choice = Choice { points, refused: None };
        let goes = |n_tokens, rows| is_persistent(&choice, n_tokens, rows);
        assert!(goes(1, 300) && goes(1, 3000) && goes(2, 700));
        assert!(!goes(1, 9000) && !goes(4, 100));
        // A point that was not measured is decided like the shorter context, or runs as a graph.
        assert!(!goes(1, 30_000) && goes(2, 9000) && !goes(8, 100));
        let points = [one, [point(99.0); 4], [point(99.0); 4], [point(101.0); 4]];
        let choice = Choice { points, refused: None };
        assert!(is_persistent(&choice, 4, 100) && !is_persistent(&choice, 3, 100));
        let choice = Choice { points: [one, [None; 4], [None; 4], [None; 4]], refused: None };
        assert_eq!(
            choice.to_string(),
            "persistent where faster than graph: 1× 72 rows 90 to 100 µs, 2056 rows 95 to 100 µs"
        );
        let choice = Choice { points: [[point(110.0); 4]; 4], refused: None };
        assert_eq!(choice.to_string(), "graph, faster than persistent");
    }

    #[test]
    fn what_was_refused_is_never_chosen() {
        let choice = Choice { points: [[point(1.0); 4]; 4], refused: Some("of this".into()) };
        assert!(!is_persistent(&choice, 1, 100));
        assert_eq!(choice.to_string(), "graph, because of this");
    }

    #[test]
    fn nothing_is_measured_beyond_the_device() {
        let limits = Limits { step_tokens: 8, step_outputs: 8, positions: 8192, pages: 200 };
        assert!(fits(&limits, 1, 8008) && !fits(&limits, 4, 8008) && fits(&limits, 4, 72));
    }

    #[test]
    fn the_tokens_of_a_point_stay_in_a_page() {
        for rows in ROWS {
            assert_eq!(pages_for(rows - 1), pages_for(rows + TOKENS), "{rows}");
        }
    }
}
