//! Parses and formats numbers with units: `32k`, `1.2 GB`, `7d`.

use std::time::Duration;

pub(crate) use weft::memory::in_bytes as bytes;

/// Parses a count: `8192`, `32k` (· 1024), `1m` (· 1024²).
pub(crate) fn parse_count(text: &str) -> Result<usize, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.strip_suffix('k') {
        Some(digits) => (digits, 1 << 10),
        None => match lower.strip_suffix('m') {
            Some(digits) => (digits, 1 << 20),
            None => (lower.as_str(), 1),
        },
    };
    let number: usize =
        digits.parse().map_err(|_| format!("`{text}` is not a number like 8192, 32k or 1m"))?;
    match number.checked_mul(unit) {
        Some(0) => Err("0 is too small; give at least 1".to_owned()),
        Some(count) => Ok(count),
        None => Err(format!("`{text}` is too large; give a smaller number")),
    }
}

/// A limit that nothing reaches.
pub(crate) const NO_LIMIT: usize = usize::MAX;

/// Parses a count, or -1 for no limit.
pub(crate) fn parse_limit(text: &str) -> Result<usize, String> {
    if text == "-1" { Ok(NO_LIMIT) } else { parse_count(text) }
}

/// A seed of the sampler; `None` is a new one for each answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) Option<u64>);

/// Parses a seed, or -1 for a new one, as llama.cpp and Ollama read it.
pub(crate) fn parse_seed(text: &str) -> Result<Seed, String> {
    if text == "-1" {
        return Ok(Seed(None));
    }
    let wrong = || format!("`{text}` is not a seed; give 0 to {}, or -1 for a new one", u64::MAX);
    text.parse().map(|seed| Seed(Some(seed))).map_err(|_| wrong())
}

/// Parses how many of the likeliest tokens are sampled from.
pub(crate) fn parse_top_k(text: &str) -> Result<usize, String> {
    let wrong = || format!("`{text}` is not a number of tokens; give 1 or more, or 0 for all");
    text.parse().map_err(|_| wrong())
}

/// Parses a number of bytes: `64k`, `512m`, `4g`, `1t` (powers of 1024), optionally followed by `b`
/// or `ib`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [char; 4] = ['k', 'm', 'g', 't'];
    let wrong = || format!("`{text}` is not a size like 512m, 4g or 0");
    let lower = text.trim().to_ascii_lowercase();
    let bare = lower.strip_suffix("ib").or(lower.strip_suffix('b')).unwrap_or(&lower);
    let unit = UNITS.iter().position(|unit| bare.ends_with(*unit));
    let digits = if unit.is_some() { &bare[..bare.len() - 1] } else { bare };
    let number: u64 = digits.trim_end().parse().map_err(|_| wrong())?;
    let shift = unit.map_or(0, |power| 10 * (power as u32 + 1));
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// Parses an age: `90s`, `30m`, `12h`, `7d`, `2w`.
pub(crate) fn parse_age(text: &str) -> Result<Duration, String> {
    const UNITS: [(char, u64); 5] =
        [('s', 1), ('m', 60), ('h', 3600), ('d', 24 * 3600), ('w', 7 * 24 * 3600)];
    let age = UNITS.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        number.checked_mul(*seconds).map(Duration::from_secs)
    });
    age.ok_or_else(|| format!("`{text}` is not an age like 90s, 30m, 12h, 7d or 2w"))
}

/// Threads that any machine may be asked for.
const FEW_THREADS: usize = 16;

/// Parses a number of threads. Many more than there are cores make everything slower.
pub(crate) fn parse_threads(text: &str) -> Result<usize, String> {
    let cores = weft_cpu::n_cores();
    let most = FEW_THREADS.max(2 * cores);
    match parse_count(text)? {
        threads if threads > most => Err(format!(
            "{threads} threads are too many for {}; give 1 to {most}",
            plural(cores, "core")
        )),
        threads => Ok(threads),
    }
}

/// A number of things: `1 chunk`, `2 chunks`.
pub(crate) fn plural(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

/// A duration: `3.6 ms`, `41 ms`, `1.2 s`, `120 s`.
pub(crate) fn time(time: Duration) -> String {
    time_ms(time.as_secs_f64() * 1e3)
}

/// The same for a number of milliseconds.
pub(crate) fn time_ms(ms: f64) -> String {
    match ms {
        ..9.95 => format!("{ms:.1} ms"),
        ..999.5 => format!("{ms:.0} ms"),
        ..99_950.0 => format!("{:.1} s", ms / 1e3),
        _ => format!("{:.0} s", ms / 1e3),
    }
}

/// A count with a decimal unit: `596 M`, `8.19 B`.
pub(crate) fn count(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.1} k", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_take_binary_suffixes() {
        assert_eq!(parse_count("8192"), Ok(8192));
        assert_eq!(parse_count("32k"), Ok(32_768));
        assert_eq!(parse_count("1M"), Ok(1_048_576));
        for bad in ["", "k", "0", "-1", "1.5k", "99999999999999999m"] {
            assert!(parse_count(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_take_binary_suffixes_and_may_be_nothing() {
        for (text, bytes) in [("0", 0), ("4g", 4 << 30), ("512M", 512 << 20), ("64 kB", 64 << 10)] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
        for bad in ["", "g", "-1", "1.5g", "4 gigs", "99999999999t"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ages_have_a_unit() {
        assert_eq!(parse_age("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(parse_age("0s"), Ok(Duration::ZERO));
        for bad in ["", "7", "d", "-1d", "1y", "99999999999999999999w"] {
            assert!(parse_age(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_above_a_second_are_in_seconds() {
        let times = [0.4, 41.2, 999.4, 999.6, 45_000.0, 120_000.0].map(time_ms);
        assert_eq!(times, ["0.4 ms", "41 ms", "999 ms", "1.0 s", "45.0 s", "120 s"]);
    }

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!([0, 1, 2].map(|n| plural(n, "file")), ["0 files", "1 file", "2 files"]);
    }

    #[test]
    fn far_more_threads_than_cores_are_refused() {
        assert_eq!(parse_threads("2"), Ok(2));
        let error = parse_threads("100000").unwrap_err();
        assert!(error.contains("100000") && error.contains("core"), "{error}");
    }
}
