//! The header fields `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11 (23 May 2026), as
//! structured fields.

use crate::core::status::{State, Status, scaled};
use http::{HeaderName, HeaderValue};
use sfv::{Integer, KeyRef, ListSerializer, StringRef};
use std::time::Duration;

/// The name of the field that states policies.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The name of the field that states what is left.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// What a quota counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum QuotaUnit {
    /// Requests. It is not written: a policy without a unit counts them.
    #[default]
    Requests,
    /// Bytes of content.
    ContentBytes,
    /// Requests at the same time.
    ConcurrentRequests,
}

impl QuotaUnit {
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Requests => None,
            Self::ContentBytes => Some("content-bytes"),
            Self::ConcurrentRequests => Some("concurrent-requests"),
        }
    }
}

/// One policy: so many units, in a window if it has one. A member of `RateLimit-Policy`.
///
/// ```
/// # use tollgate::axum::QuotaPolicy;
/// let per_minute = QuotaPolicy::new("permin", 50).window(60);
/// let per_hour = QuotaPolicy::new("perhr", 1_000).window(3_600);
/// let field = QuotaPolicy::field(&[per_minute, per_hour]).unwrap();
/// assert_eq!(field, r#""permin";q=50;w=60, "perhr";q=1000;w=3600"#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaPolicy {
    name: String,
    quota: u64,
    unit: QuotaUnit,
    window: Option<u64>,
    partition_key: Option<Vec<u8>>,
}

impl QuotaPolicy {
    /// The policy `name` of `quota` units.
    pub fn new(name: impl Into<String>, quota: u64) -> Self {
        Self {
            name: name.into(),
            quota,
            unit: QuotaUnit::Requests,
            window: None,
            partition_key: None,
        }
    }

    /// What is counted.
    #[must_use]
    pub fn unit(mut self, unit: QuotaUnit) -> Self {
        self.unit = unit;
        self
    }

    /// The window, in seconds; a zero counts as one.
    #[must_use]
    pub fn window(mut self, seconds: u64) -> Self {
        self.window = Some(seconds.max(1));
        self
    }

    /// The part of the quota that this response is about. Everybody on the way can read it: a hash, not a secret.
    #[must_use]
    pub fn partition_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.partition_key = Some(key.into());
        self
    }

    /// The policy of a leg, where it has one that the field can state. A window of less than a second is stated per second;
    /// a fraction of a second is rounded so that the field never promises more than the leg admits.
    pub fn of(status: &Status<'_>) -> Option<Self> {
        match status.state {
            State::Permits { limit, .. } => Some(Self::new(status.leg, limit).unit(QuotaUnit::ConcurrentRequests)),
            State::Rate { limit, window, .. } if window < Duration::from_secs(1) => {
                let window = window.as_nanos().max(1);
                let per_second = u128::from(limit) * 1_000_000_000 / window;
                Some(Self::new(status.leg, u64::try_from(per_second).unwrap_or(u64::MAX)).window(1))
            }
            State::Rate { limit, window, .. } => Some(Self::new(status.leg, limit).window(seconds(window))),
            _ => None,
        }
    }

    /// The value of the field for these policies; none when there are none.
    pub fn field(policies: &[Self]) -> Option<HeaderValue> {
        let mut list = ListSerializer::new();
        for policy in policies {
            let name = text(&policy.name);
            let mut item = list.bare_item(string(&name)).parameter(key("q"), integer(policy.quota));
            if let Some(unit) = policy.unit.name() {
                item = item.parameter(key("qu"), string(unit));
            }
            if let Some(window) = policy.window {
                item = item.parameter(key("w"), integer(window));
            }
            if let Some(partition) = &policy.partition_key {
                item = item.parameter(key("pk"), partition.as_slice());
            }
            let _ = item.finish();
        }
        value(list.finish()?)
    }
}

/// What is left of a policy, and for how long that has to do. A member of `RateLimit`.
///
/// ```
/// # use tollgate::axum::ServiceLimit;
/// let field = ServiceLimit::field(&[ServiceLimit::new("default", 50).window(30)]).unwrap();
/// assert_eq!(field, r#""default";r=50;t=30"#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceLimit {
    name: String,
    available: u64,
    window: Option<u64>,
    partition_key: Option<Vec<u8>>,
}

impl ServiceLimit {
    /// `available` units of the policy `name`.
    pub fn new(name: impl Into<String>, available: u64) -> Self {
        Self {
            name: name.into(),
            available,
            window: None,
            partition_key: None,
        }
    }

    /// The effective window, in seconds: so long no more than what is available can be used.
    #[must_use]
    pub fn window(mut self, seconds: u64) -> Self {
        self.window = Some(seconds);
        self
    }

    /// As [`QuotaPolicy::partition_key`].
    #[must_use]
    pub fn partition_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.partition_key = Some(key.into());
        self
    }

    /// What is left of a leg, where the field can state it.
    ///
    /// The window is such that whoever spends evenly what is left meets the rate: what is left by the rate, rounded up. When
    /// nothing is left it is the time until one is.
    pub fn of(status: &Status<'_>) -> Option<Self> {
        match status.state {
            State::Permits { limit, in_use, .. } => Some(Self::new(status.leg, limit.saturating_sub(in_use))),
            State::Rate {
                available: 0,
                next: Some(next),
                ..
            } => Some(Self::new(status.leg, 0).window(seconds(next))),
            State::Rate { available: 0, .. } => Some(Self::new(status.leg, 0)),
            State::Rate {
                limit,
                window,
                available,
                ..
            } => Some(Self::new(status.leg, available).window(seconds(scaled(window, available, limit)).max(1))),
            _ => None,
        }
    }

    /// Ends the window after so many seconds at the latest: a refusal must not name an earlier instant than this.
    pub(super) fn at_most(&mut self, seconds: u64) {
        self.window = self.window.map(|window| window.min(seconds));
    }

    pub(super) fn available(&self) -> u64 {
        self.available
    }

    pub(super) fn seconds(&self) -> Option<u64> {
        self.window
    }

    /// The value of the field for these limits; none when there are none.
    pub fn field(limits: &[Self]) -> Option<HeaderValue> {
        let mut list = ListSerializer::new();
        for limit in limits {
            let name = text(&limit.name);
            let mut item = list
                .bare_item(string(&name))
                .parameter(key("r"), integer(limit.available));
            if let Some(window) = limit.window {
                item = item.parameter(key("t"), integer(window));
            }
            if let Some(partition) = &limit.partition_key {
                item = item.parameter(key("pk"), partition.as_slice());
            }
            let _ = item.finish();
        }
        value(list.finish()?)
    }
}

/// Whole seconds, rounded up.
pub(super) fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// A name as a structured field can hold it: what is not printable ASCII becomes an underscore.
fn text(name: &str) -> String {
    let printable = |c: char| if matches!(c, ' '..='~') { c } else { '_' };
    name.chars().map(printable).collect()
}

fn string(text: &str) -> &StringRef {
    StringRef::from_str(text).expect("only printable ASCII")
}

fn key(name: &'static str) -> &'static KeyRef {
    KeyRef::constant(name)
}

/// A number as a structured field can hold it: fifteen digits.
fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}

fn value(text: String) -> Option<HeaderValue> {
    HeaderValue::try_from(text).ok()
}
