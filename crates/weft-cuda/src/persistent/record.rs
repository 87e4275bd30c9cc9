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

/// What a record says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Record {
    /// The points that the device had room for, by lanes, then by rows.
    pub(super) fits: [[bool; ROWS.len()]; LANES.len()],
    /// Those of them that it had time for.
    pub(super) points: Points,
}

impl Record {
    /// Whether a device that has room for these points would measure no other.
    pub(super) fn serves(&self, fits: &[[bool; ROWS.len()]; LANES.len()]) -> bool {
        fits.iter().flatten().zip(self.fits.iter().flatten()).all(|(now, then)| *then || !now)
    }
}

/// Where the record of a device is: by its GPU and driver, its model and all its cubins. The limits
/// of the device matter only if they leave out points.
pub(super) fn entry(device: &CudaDevice) -> Option<PathBuf> {
    let CudaDevice { gpu, config, shape, modules, .. } = device;
    let mut facts = vec![
        format!("{TITLE} {} {}", env!("CARGO_PKG_VERSION"), gpu.facts.identity()),
        format!("{config:?} {shape:?}"),
    ];
    facts.extend(modules.keys().map(str::to_owned));
    let hash = Sha256::digest(facts.join("\n"));
    compile::entry(&format!("{}.times", compile::hex(&hash)))
}

pub(super) fn read(path: &Path) -> Option<Record> {
    parse(std::str::from_utf8(&compile::read_entry(path)?).ok()?)
}

pub(super) fn write(path: &Path, record: &Record) -> std::io::Result<()> {
    compile::write_entry(path, text(record).as_bytes())
}

/// A line per point: lanes, rows, and both times in µs, or none.
fn text(record: &Record) -> String {
    let mut text = format!("{TITLE}\n");
    for (at_lanes, lanes) in LANES.iter().enumerate() {
        for (at_rows, rows) in ROWS.iter().enumerate() {
            let times = match (record.fits[at_lanes][at_rows], record.points[at_lanes][at_rows]) {
                (false, _) => continue,
                (true, None) => String::new(),
                (true, Some(Point { graph_us, persistent_us })) => {
                    format!(" {graph_us:.3} {persistent_us:.3}")
                }
            };
            writeln!(text, "{lanes} {rows}{times}").expect("strings take all");
        }
    }
    text
}

/// None if a line is not what `text` writes.
fn parse(text: &str) -> Option<Record> {
    let mut lines = text.lines();
    lines.next().filter(|title| *title == TITLE)?;
    let mut record = Record::default();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let place = |of: &[usize], word: &str| {
            let number: usize = word.parse().ok()?;
            of.iter().position(|known| *known == number)
        };
        let time = |word: &str| {
            word.parse().ok().filter(|us: &f64| (0.0..LONGEST_US).contains(us) && *us > 0.0)
        };
        let (lanes, rows, point) = match words[..] {
            [lanes, rows] => (lanes, rows, None),
            [lanes, rows, graph_us, persistent_us] => {
                let graph_us = time(graph_us)?;
                (lanes, rows, Some(Point { graph_us, persistent_us: time(persistent_us)? }))
            }
            _ => return None,
        };
        let (lanes, rows) = (place(&LANES, lanes)?, place(&ROWS, rows)?);
        record.fits[lanes][rows] = true;
        record.points[lanes][rows] = point;
    }
    record.points.iter().flatten().any(Option::is_some).then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let mut record = Record::default();
        record.fits[0] = [true; ROWS.len()];
        record.fits[3] = [true, true, false, false];
        record.points[0][0] = Some(Point { graph_us: 443.25, persistent_us: 385.5 });
        record.points[3][1] = Some(Point { graph_us: 1.0, persistent_us: 2_000_000.125 });
        record
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = record();
        assert_eq!(parse(&text(&record)), Some(record.clone()));
        let folder = std::env::temp_dir().join(format!("weft-times-{}", std::process::id()));
        let path = folder.join("a.times");
        write(&path, &record).unwrap();
        assert_eq!(read(&path), Some(record));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read(&path), None, "damaged");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_record_serves_devices_with_no_more_room() {
        let record = record();
        let mut fits = record.fits;
        assert!(record.serves(&fits));
        fits[0][3] = false;
        assert!(record.serves(&fits), "a shorter context");
        fits[3][2] = true;
        assert!(!record.serves(&fits), "a point that nobody considered");
    }

    #[test]
    fn what_nobody_writes_is_no_record() {
        for text in [
            "",
            "weft times 1\n",
            "weft times 1\n1 72\n",
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
