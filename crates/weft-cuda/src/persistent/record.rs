//! Times of the persistent kernel and of graphs, kept on disk beside the cubins.
//!
//! A record's name is the hash of everything that the times depend on, so a record is never out of
//! date, only unused. A damaged record is measured again.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::choice::{LANES, Point, Points, ROWS};
use crate::CudaDevice;
use crate::compile;

/// The first line of a record. Another number is another format.
const TITLE: &str = "weft times 1";

/// No time of a token is longer, in µs.
const LONGEST_US: f64 = 1e9;

/// Where the record of a device is: by its GPU and driver, all its cubins, its model and limits.
pub(super) fn entry(device: &CudaDevice) -> Option<PathBuf> {
    let CudaDevice { gpu, config, limits, shape, modules, .. } = device;
    let mut facts = vec![
        format!("{TITLE} {} {}", env!("CARGO_PKG_VERSION"), gpu.facts.name),
        format!("{:?} {} {}", gpu.facts.capability, gpu.facts.driver_version, driver_build()),
        format!("{config:?} {limits:?} {shape:?}"),
    ];
    facts.extend(modules.keys().map(str::to_owned));
    let hash = Sha256::digest(facts.join("\n"));
    compile::entry(&format!("{}.times", compile::hex(&hash)))
}

/// The driver's build, where the system says it: CUDA only knows the version that it supports.
fn driver_build() -> String {
    let said = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    said.lines().next().unwrap_or_default().to_owned()
}

pub(super) fn read(path: &Path) -> Option<Points> {
    parse(std::str::from_utf8(&compile::read_entry(path)?).ok()?)
}

pub(super) fn write(path: &Path, points: &Points) -> std::io::Result<()> {
    compile::write_entry(path, text(points).as_bytes())
}

/// A line per point: lanes, rows, and both times in µs.
fn text(points: &Points) -> String {
    let mut text = format!("{TITLE}\n");
    for (lanes, of_lanes) in LANES.iter().zip(points) {
        for (rows, point) in ROWS.iter().zip(of_lanes) {
            if let Some(Point { graph_us, persistent_us }) = point {
                writeln!(text, "{lanes} {rows} {graph_us:.3} {persistent_us:.3}")
                    .expect("strings take all");
            }
        }
    }
    text
}

/// None if a line is not what `text` writes.
fn parse(text: &str) -> Option<Points> {
    let mut lines = text.lines();
    lines.next().filter(|title| *title == TITLE)?;
    let mut points = Points::default();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let [lanes, rows, graph_us, persistent_us] = words[..] else { return None };
        let place = |of: &[usize], word: &str| {
            let number: usize = word.parse().ok()?;
            of.iter().position(|known| *known == number)
        };
        let time = |word: &str| {
            word.parse().ok().filter(|us: &f64| (0.0..LONGEST_US).contains(us) && *us > 0.0)
        };
        let point = Point { graph_us: time(graph_us)?, persistent_us: time(persistent_us)? };
        points[place(&LANES, lanes)?][place(&ROWS, rows)?] = Some(point);
    }
    points.iter().flatten().any(Option::is_some).then_some(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut points = Points::default();
        points[0][0] = Some(Point { graph_us: 443.25, persistent_us: 385.5 });
        points[3][2] = Some(Point { graph_us: 1.0, persistent_us: 2_000_000.125 });
        assert_eq!(parse(&text(&points)), Some(points));
        let folder = std::env::temp_dir().join(format!("weft-times-{}", std::process::id()));
        let path = folder.join("a.times");
        write(&path, &points).unwrap();
        assert_eq!(read(&path), Some(points));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read(&path), None, "damaged");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_nobody_writes_is_no_record() {
        for text in [
            "",
            "weft times 1\n",
            "weft times 2\n1 72 443.0 385.0\n",
            "weft times 1\n1 72 443.0\n",
            "weft times 1\n3 72 443.0 385.0\n",
            "weft times 1\n1 73 443.0 385.0\n",
            "weft times 1\n1 72 NaN 385.0\n",
            "weft times 1\n1 72 443.0 -1\n",
            "weft times 1\n1 72 443.0 inf\n",
            "weft times 1\n1 72 443.0 385.0 1\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
