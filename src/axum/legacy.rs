//! The three header fields that clients know from before there was a draft.

use super::fields::ServiceLimit;
use http::{HeaderMap, HeaderName};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// One rate, as they state it.
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

    /// Of which less is left; where that is equal, the one that takes longer.
    pub(super) fn stricter(self, other: Self) -> Self {
        let leniency = |it: Self| (it.remaining, std::cmp::Reverse(it.reset));
        if leniency(other) < leniency(self) { other } else { self }
    }

    /// What a layer further in has said, if it has.
    fn read(headers: &HeaderMap) -> Option<Self> {
        let number = |name| headers.get(name)?.to_str().ok()?.parse().ok();
        Some(Self {
            limit: number(LIMIT)?,
            remaining: number(REMAINING)?,
            reset: number(RESET)?,
        })
    }

    /// Says this, unless something stricter is said already.
    pub(super) fn write(self, headers: &mut HeaderMap) {
        let strictest = Self::read(headers).map_or(self, |there| there.stricter(self));
        headers.insert(LIMIT, strictest.limit.into());
        headers.insert(REMAINING, strictest.remaining.into());
        headers.insert(RESET, strictest.reset.into());
    }
}
