//! Points in time as dialects write them (RFC 3339, UTC).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time that never comes: models stay loaded.
pub(crate) const NEVER: &str = "9999-12-31T00:00:00Z";

const DAY_S: u64 = 24 * 60 * 60;

pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    written(since.as_secs(), since.subsec_micros())
}

/// A time that is so long from now.
pub(crate) fn after(time: Duration) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + time;
    written(since.as_secs(), since.subsec_micros())
}

/// A time by its seconds since 1970.
pub(crate) fn at(seconds: u64) -> String {
    written(seconds, 0)
}

fn written(seconds: u64, micros: u32) -> String {
    let (year, month, day) = date(seconds / DAY_S);
    let second = seconds % DAY_S;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The date that is some days after 1970-01-01. Years begin in March, so that the leap day is their
/// last, and 400 of them always have the same number of days.
fn date(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    let days = days + 719_468;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1460 + day / 36_524 - day / (ERA - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_their_days() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_700_000_000, "2023-11-14T22:13:20.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(at(seconds), text);
        }
    }
}
