//! The template function `strftime_now`, in UTC.
//!
//! Python uses the machine's time zone; here, prompts do not depend on it.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: &str =
    "January February March April May June July August September October November December";
/// The days of the week, starting with that of 1970-01-01.
const DAYS: &str = "Thursday Friday Saturday Sunday Monday Tuesday Wednesday";

/// Formats `time`. It supports the codes of C's `strftime` that mean the same in every locale, and
/// leaves others unchanged.
pub(super) fn strftime(time: SystemTime, format: &str) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day, day_of_year) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let name = |names: &'static str, index| names.split(' ').nth(index).unwrap_or_default();
    let (month_name, day_name) =
        (name(MONTHS, month as usize - 1), name(DAYS, (days % 7) as usize));
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            text.push(char);
            continue;
        }
        let rest = chars.as_str();
        // `%-d` writes the number without padding.
        let (width, code) = match rest.strip_prefix('-') {
            Some(rest) => (1, rest.chars().next()),
            None => (2, rest.chars().next()),
        };
        let written = match code {
            Some('Y') => write!(text, "{year}"),
            Some('y') => write!(text, "{:0width$}", year % 100),
            Some('m') => write!(text, "{month:0width$}"),
            Some('d') => write!(text, "{day:0width$}"),
            Some('e') => write!(text, "{day:width$}"),
            Some('j') => write!(text, "{day_of_year:0digits$}", digits = width * 2 - 1),
            Some('H') => write!(text, "{hour:0width$}"),
            Some('I') => write!(text, "{hour12:0width$}"),
            Some('M') => write!(text, "{minute:0width$}"),
            Some('S') => write!(text, "{second:0width$}"),
            Some('p') => write!(text, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('B') => write!(text, "{month_name}"),
            Some('b' | 'h') => write!(text, "{}", &month_name[..3]),
            Some('A') => write!(text, "{day_name}"),
            Some('a') => write!(text, "{}", &day_name[..3]),
            Some('F') => write!(text, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(text, "{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => write!(text, "UTC"),
            Some('%') => write!(text, "%"),
            _ => {
                text.push('%');
                continue;
            }
        };
        debug_assert!(written.is_ok(), "a String takes all that is written");
        chars.nth(2 - width);
    }
    text
}

/// Year, month, day and day of the year (all from 1), for a day counted from 1970-01-01.
fn civil(mut days: u64) -> (u64, u64, u64, u64) {
    let every = |year: u64, years| year.is_multiple_of(years);
    let is_leap = |year| every(year, 4) && (!every(year, 100) || every(year, 400));
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let (day_of_year, mut month) = (days + 1, 1);
    loop {
        let length = match month {
            2 => 28 + u64::from(is_leap(year)),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        if days < length {
            return (year, month, days + 1, day_of_year);
        }
        days -= length;
        month += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64, format: &str) -> String {
        strftime(UNIX_EPOCH + Duration::from_secs(seconds), format)
    }

    #[test]
    fn dates_are_those_of_python() {
        // datetime.fromtimestamp(t, timezone.utc).strftime(...)
        assert_eq!(at(0, "%A %d %B %Y %H:%M:%S %j"), "Thursday 01 January 1970 00:00:00 001");
        assert_eq!(at(1_709_210_096, "%a %-d %b %y, %I:%M %p"), "Thu 29 Feb 24, 12:34 PM");
        assert_eq!(at(4_107_542_399, "%F %T|%e|%j|%-m"), "2100-02-28 23:59:59|28|059|2");
        assert_eq!(at(951_782_400 + 306 * 86_400, "%F %j %Z %%"), "2000-12-31 366 UTC %");
        assert_eq!(at(0, "%Q % %-"), "%Q % %-");
    }
}
