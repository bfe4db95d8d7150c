//! The field `grpc-timeout`: at most eight digits, and a unit.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;
use tollgate::{Clock, Instant};

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// When a request ends, if it says so.
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// That of a request that begins now.
    pub(super) fn of(headers: &HeaderMap, clock: &Clock) -> Self {
        let timeout = headers.get(GRPC_TIMEOUT).and_then(|value| read(value.to_str().ok()?));
        Self(timeout.map(|timeout| clock.after(clock.now(), timeout)))
    }

    pub(super) fn left(&self, clock: &Clock) -> Option<Duration> {
        self.0.map(|deadline| clock.between(clock.now(), deadline))
    }
}

/// Takes the time that has passed off the field.
pub(super) fn shorten(deadline: &Deadline, clock: &Clock, headers: &mut HeaderMap) {
    let Some(left) = deadline.left(clock) else { return };
    if let Ok(value) = HeaderValue::try_from(write(left)) {
        headers.insert(GRPC_TIMEOUT, value);
    }
}

fn read(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3_600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// In the finest unit in which it has eight digits, rounded down.
fn write(time: Duration) -> String {
    let units = [
        (1, 'n'),
        (1_000, 'u'),
        (1_000_000, 'm'),
        (1_000_000_000, 'S'),
        (60_000_000_000, 'M'),
    ];
    let fits = units.iter().find(|(nanos, _)| time.as_nanos() / nanos <= 99_999_999);
    match fits {
        Some((nanos, unit)) => format!("{}{unit}", time.as_nanos() / nanos),
        None => format!("{}H", (time.as_secs() / 3_600).min(99_999_999)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_read_and_written_in_eight_digits() {
        for (text, millis) in [
            ("1H", 3_600_000),
            ("2M", 120_000),
            ("3S", 3_000),
            ("40m", 40),
            ("5000u", 5),
        ] {
            let time = read(text).unwrap();
            assert_eq!(time, Duration::from_millis(millis));
            assert_eq!(read(&write(time)), Some(time), "{text}");
        }
        for text in ["", "S", "1", "-1S", "123456789S", "1x", "1 S", "1µ"] {
            assert!(read(text).is_none_or(|time| text == "S" && time.is_zero()), "{text:?}");
        }
        let long = Duration::from_secs(u64::MAX);
        assert_eq!(write(long), "99999999H");
        assert_eq!(write(Duration::from_nanos(123_456_789)), "123456u");
    }
}
