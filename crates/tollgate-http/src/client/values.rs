//! The texts of header fields: numbers, durations, dates and epochs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An instant, or a length of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum When {
    /// Time from the moment of the response. More than [`Duration`] holds is its maximum.
    After(Duration),
    /// An instant of the server's clock.
    At(SystemTime),
}

/// A number without a sign or an exponent: `12`, `12.5`.
fn decimal(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    (is_plain && !text.is_empty()).then(|| text.parse().ok()).flatten()
}

/// A whole number of units. The part after a point is cut off, and so is what follows the first number of a list.
pub(super) fn count(text: &str) -> Option<u64> {
    let first = text.split([',', ';']).next()?.trim();
    // Saturating: digits alone that do not fit are a very large number.
    first
        .parse()
        .ok()
        .or_else(|| decimal(first).map(|number| number as u64))
}

/// Seconds as a duration, saturating.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Durations as Go writes them, as texts of units: `6m0s`, `1.5s`, `120ms`, `1d2h`.
fn spelled(text: &str) -> Option<Duration> {
    let (mut rest, mut sum) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = match unit.trim() {
            "d" => 86_400.0,
            "h" => 3_600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        sum += decimal(number)? * unit;
        rest = after;
    }
    (!text.is_empty()).then(|| seconds(sum))
}

/// The numbers from which on a plain number is an epoch, in units of this fraction of a second. The first is the year 2001 as seconds:
/// no server asks for a wait of 31 years.
const EPOCHS: [(f64, f64); 4] = [(1e18, 1e9), (1e15, 1e6), (1e12, 1e3), (1e9, 1.0)];

/// Seconds or an epoch, a duration in units, RFC 3339, or a date of HTTP in any of its three forms.
pub(super) fn when(text: &str) -> Option<When> {
    let text = text.trim();
    if let Some(number) = decimal(text) {
        let epoch = EPOCHS.iter().find(|(from, _)| number >= *from);
        return Some(match epoch {
            Some((_, per_second)) => match UNIX_EPOCH.checked_add(seconds(number / per_second)) {
                Some(instant) => When::At(instant),
                None => When::After(Duration::MAX),
            },
            None => When::After(seconds(number)),
        });
    }
    if let Some(duration) = spelled(text) {
        return Some(When::After(duration));
    }
    if let Ok(timestamp) = text.parse::<jiff::Timestamp>() {
        let since_1970 = Duration::try_from(timestamp.as_duration()).ok();
        return Some(match since_1970.and_then(|since| UNIX_EPOCH.checked_add(since)) {
            Some(instant) => When::At(instant),
            // Before 1970.
            None => When::After(Duration::ZERO),
        });
    }
    httpdate::parse_http_date(text).ok().map(When::At)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_a_time_is_told_apart() {
        let at = |seconds: u64| Some(When::At(UNIX_EPOCH + Duration::from_secs(seconds)));
        let after = |millis: u64| Some(When::After(Duration::from_millis(millis)));
        for (text, expected) in [
            ("120", after(120_000)),
            (" 2.0 ", after(2_000)),
            ("0", after(0)),
            ("999999999", after(999_999_999_000)),
            ("1372700873", at(1_372_700_873)),
            ("1372700873000", at(1_372_700_873)),
            ("6m0s", after(360_000)),
            ("1s", after(1_000)),
            ("12ms", after(12)),
            ("1h2m3.5s", after(3_723_500)),
            ("1d", after(86_400_000)),
            ("2024-01-01T00:00:00Z", at(1_704_067_200)),
            ("2024-01-01T01:00:00+01:00", at(1_704_067_200)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", at(784_111_777)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", at(784_111_777)),
            ("Sun Nov  6 08:49:37 1994", at(784_111_777)),
            (
                "99999999999999999999999999999999999999999",
                Some(When::After(Duration::MAX)),
            ),
            ("", None),
            ("-1", None),
            ("+5", None),
            ("1e9", None),
            ("inf", None),
            ("NaN", None),
            (".", None),
            ("1.2.3", None),
            ("5 minutes", None),
            ("s", None),
            ("soon", None),
        ] {
            assert_eq!(when(text), expected, "{text:?}");
        }
    }

    #[test]
    fn counts_are_cut_to_whole_units() {
        for (text, expected) in [
            ("60", Some(60)),
            ("598.9", Some(598)),
            ("100, 100;w=60", Some(100)),
            ("18446744073709551616", Some(u64::MAX)),
            ("", None),
            ("-3", None),
            ("many", None),
        ] {
            assert_eq!(count(text), expected, "{text:?}");
        }
    }
}
