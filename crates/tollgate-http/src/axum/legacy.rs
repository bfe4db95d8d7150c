//! The three header fields that clients knew before the draft.

use super::fields::ServiceLimit;
use http::{HeaderMap, HeaderName};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// One rate, in these fields.
#[derive(Clone, Copy)]
pub(super) struct Legacy {
    limit: u64,
    remaining: u64,
    reset: u64,
}

impl Legacy {
    pub(super) fn new(limit: u64, left: &ServiceLimit) -> Self {
        Self {
            limit,
            remaining: left.available(),
            reset: left.seconds().unwrap_or(0),
        }
    }

    /// The rate with less left; if equal, the one with the later reset.
    pub(super) fn tighter(self, other: Self) -> Self {
        let leniency = |it: Self| (it.remaining, std::cmp::Reverse(it.reset));
        if leniency(other) < leniency(self) { other } else { self }
    }

    /// The values that an inner layer has written.
    fn read(headers: &HeaderMap) -> Option<Self> {
        let number = |name| headers.get(name)?.to_str().ok()?.parse().ok();
        Some(Self {
            limit: number(LIMIT)?,
            remaining: number(REMAINING)?,
            reset: number(RESET)?,
        })
    }

    /// Writes these values, unless stricter ones are there already.
    pub(super) fn write(self, headers: &mut HeaderMap) {
        let strictest = Self::read(headers).map_or(self, |there| there.tighter(self));
        headers.insert(LIMIT, strictest.limit.into());
        headers.insert(REMAINING, strictest.remaining.into());
        headers.insert(RESET, strictest.reset.into());
    }
}
