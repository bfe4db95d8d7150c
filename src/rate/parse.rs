//! The text form of a quota: `100/s`, `5000/min burst 200`, `10/100ms`.

use super::quota::{Quota, QuotaError};
use std::str::FromStr;
use std::time::Duration;

/// The units of time, from the shortest, by the name that is written.
pub(super) const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Other names by which units are read.
const ALIASES: [(&str, &str); 9] = [
    ("sec", "s"),
    ("second", "s"),
    ("m", "min"),
    ("minute", "min"),
    ("hr", "h"),
    ("hour", "h"),
    ("day", "d"),
    ("msec", "ms"),
    ("usec", "us"),
];

/// What is left of the text, and where in it we are.
struct Text<'a> {
    whole: &'a str,
    at: usize,
}

impl<'a> Text<'a> {
    fn rest(&self) -> &'a str {
        &self.whole[self.at..]
    }

    fn skip_spaces(&mut self) {
        self.at = self.whole.len() - self.rest().trim_start().len();
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !accept(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn error(&self, expected: &'static str) -> QuotaError {
        QuotaError::Text {
            given: self.whole.into(),
            column: self.whole[..self.at].chars().count() + 1,
            expected,
        }
    }

    fn number(&mut self, expected: &'static str) -> Result<u64, QuotaError> {
        let start = self.at;
        let digits: String = self
            .take_while(|c| c.is_ascii_digit() || c == '_')
            .chars()
            .filter(|&c| c != '_')
            .collect();
        digits.parse().map_err(|_| {
            self.at = start;
            self.error(expected)
        })
    }

    fn unit(&mut self) -> Result<u64, QuotaError> {
        const EXPECTED: &str = "a unit of time (ns, us, ms, s, min, h, d)";
        let start = self.at;
        let word = self.take_while(char::is_alphabetic);
        let name = ALIASES
            .iter()
            .find_map(|&(alias, name)| (alias == word).then_some(name))
            .unwrap_or(word);
        UNITS
            .iter()
            .find_map(|&(unit, nanos)| (unit == name).then_some(nanos))
            .ok_or_else(|| {
                self.at = start;
                self.error(EXPECTED)
            })
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(whole: &str) -> Result<Self, QuotaError> {
        let mut text = Text { whole, at: 0 };
        text.skip_spaces();
        let count = text.number("a count that fits into 64 bits")?;
        text.skip_spaces();
        if !text.rest().starts_with('/') {
            return Err(text.error("`/`"));
        }
        text.at += 1;
        text.skip_spaces();
        let period_at = text.at;
        let periods = match text.rest().starts_with(|c: char| c.is_ascii_digit()) {
            true => text.number("a number that fits into 64 bits")?,
            false => 1,
        };
        text.skip_spaces();
        let unit = text.unit()?;
        let Some(nanos) = periods.checked_mul(unit) else {
            text.at = period_at;
            return Err(text.error("a period of at most 365 days"));
        };
        let quota = Self::new(count, Duration::from_nanos(nanos))?;
        text.skip_spaces();
        if text.rest().is_empty() {
            return Ok(quota);
        }
        let word_at = text.at;
        if text.take_while(char::is_alphabetic) != "burst" {
            text.at = word_at;
            return Err(text.error("`burst` or the end"));
        }
        text.skip_spaces();
        let burst = text.number("a burst that fits into 64 bits")?;
        text.skip_spaces();
        if !text.rest().is_empty() {
            return Err(text.error("the end"));
        }
        quota.with_burst(burst)
    }
}
