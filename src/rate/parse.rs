//! The text form of a quota: `100/s`, `5000/min burst 200`, `10/100ms`, `3/20s by interval`, `zero burst 5`,
//! `unlimited`.

use super::quota::{Quota, QuotaError};
use std::str::FromStr;
use std::time::Duration;

/// The units of time, from the shortest: the name that is written, the others that are read, and the nanoseconds.
pub(super) const UNITS: [(&str, &[&str], u64); 7] = [
    ("ns", &[], 1),
    ("us", &["usec"], 1_000),
    ("ms", &["msec"], 1_000_000),
    ("s", &["sec", "second"], 1_000_000_000),
    ("min", &["m", "minute"], 60_000_000_000),
    ("h", &["hr", "hour"], 3_600_000_000_000),
    ("d", &["day"], 86_400_000_000_000),
];

/// The text, and the position of the parser in it.
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
        UNITS
            .iter()
            .find_map(|&(name, others, nanos)| (name == word || others.contains(&word)).then_some(nanos))
            .ok_or_else(|| {
                self.at = start;
                self.error(EXPECTED)
            })
    }

    /// Takes `word` if it comes next, as a whole word.
    fn takes(&mut self, word: &str) -> bool {
        self.skip_spaces();
        let start = self.at;
        let found = self.take_while(char::is_alphabetic) == word;
        if !found {
            self.at = start;
        }
        found
    }

    fn rate(&mut self) -> Result<Quota, QuotaError> {
        if self.takes("unlimited") {
            return Ok(Quota::unlimited());
        }
        if self.takes("zero") {
            return Ok(Quota::zero());
        }
        let count = self.number("`zero`, `unlimited`, or a count that fits into 64 bits")?;
        self.skip_spaces();
        if !self.rest().starts_with('/') {
            return Err(self.error("`/`"));
        }
        self.at += 1;
        self.skip_spaces();
        let period_at = self.at;
        let periods = match self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            true => self.number("a number that fits into 64 bits")?,
            false => 1,
        };
        self.skip_spaces();
        let unit = self.unit()?;
        let Some(nanos) = periods.checked_mul(unit) else {
            self.at = period_at;
            return Err(self.error("a period of at most 365 days"));
        };
        Quota::new(count, Duration::from_nanos(nanos))
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(whole: &str) -> Result<Self, QuotaError> {
        let mut text = Text { whole, at: 0 };
        let mut quota = text.rate()?;
        let mut expected = "`burst`, `by interval` or the end";
        if quota.is_unlimited() {
            expected = "the end";
        } else if text.takes("burst") {
            text.skip_spaces();
            quota = quota.with_burst(text.number("a burst that fits into 64 bits")?)?;
            expected = "`by interval` or the end";
        }
        if expected != "the end" && text.takes("by") {
            if !text.takes("interval") {
                return Err(text.error("`interval`"));
            }
            quota = quota.by_interval();
            expected = "the end";
        }
        text.skip_spaces();
        if text.rest().is_empty() {
            Ok(quota)
        } else {
            Err(text.error(expected))
        }
    }
}
