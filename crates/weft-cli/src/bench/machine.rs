//! The context of a measurement: the machine, the commit, the command, the time.
//!
//! If the system does not report a fact, the fact is left out, never guessed.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weft_cpu::Isa;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The CPU's name.
    pub(crate) cpu: Option<String>,
    pub(crate) cores: usize,
    /// The best instruction set with kernels.
    pub(crate) isa: String,
    pub(crate) memory_bytes: Option<u64>,
    /// The system's setting for transparent huge pages.
    pub(crate) huge_pages: Option<String>,
    pub(crate) system: String,
}

impl Machine {
    /// This machine.
    pub(crate) fn this() -> Self {
        let huge_pages = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        Self {
            cpu: field("/proc/cpuinfo", "model name")
                .or_else(|| sysctl("machdep.cpu.brand_string")),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            isa: Isa::detect().to_string(),
            memory_bytes: memory(),
            huge_pages: huge_pages.ok().map(|text| text.trim().to_owned()),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

/// The value of the first line `name : value` of a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory() -> Option<u64> {
    let Some(line) = field("/proc/meminfo", "MemTotal") else {
        return sysctl("hw.memsize")?.parse().ok();
    };
    let kib: u64 = line.split(' ').next()?.parse().ok()?;
    Some(kib * 1024)
}

/// The same facts on macOS, which has no such files.
fn sysctl(name: &str) -> Option<String> {
    if !cfg!(target_os = "macos") {
        return None;
    }
    let output = Command::new("/usr/sbin/sysctl").args(["-n", name]).output().ok()?;
    let value = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !value.is_empty()).then_some(value)
}

/// The commit of the build, with `-dirty` if the tree had changes; `None` if it was built outside a
/// checkout.
pub(crate) fn commit() -> Option<String> {
    option_env!("WEFT_COMMIT").map(str::to_owned)
}

/// The command line that repeats the run.
pub(crate) fn command() -> Vec<String> {
    std::iter::once("weft".to_owned()).chain(std::env::args().skip(1)).collect()
}

/// The time as `2026-01-02T03:04:05Z`.
pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    timestamp(since.as_secs())
}

fn timestamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years start in March, so that the leap day comes last; counted from 0000-03-01, in eras of
    // 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(951_826_154), "2000-02-29T12:09:14Z");
        assert_eq!(timestamp(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(timestamp(1_772_323_200), "2026-03-01T00:00:00Z");
    }

    #[test]
    fn this_machine_has_cores() {
        assert!(Machine::this().cores > 0);
    }
}
