//! The header fields `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11 (23 May 2026), as
//! structured fields.

use http::{HeaderName, HeaderValue};
use sfv::{Integer, KeyRef, ListSerializer, StringRef};
use std::time::Duration;
use tollgate::status::{Description, State};

/// The name of the field for policies.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The name of the field for the remaining quota.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The unit of a quota.
///
/// ```
/// # use tollgate_http::axum::{QuotaPolicy, QuotaUnit};
/// let policy = QuotaPolicy::new("bytes", 1_000_000).window(60).unit(QuotaUnit::ContentBytes);
/// let field = QuotaPolicy::field(&[policy]).expect("a field");
/// assert_eq!(field, "\"bytes\";q=1000000;qu=\"content-bytes\";w=60");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum QuotaUnit {
    /// Requests. It is not written: it is the default of the field.
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

/// One policy: its quota, and its window if it has one. A member of `RateLimit-Policy`.
///
/// ```
/// # use tollgate_http::axum::QuotaPolicy;
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

    /// Sets the unit.
    #[must_use]
    pub fn unit(mut self, unit: QuotaUnit) -> Self {
        self.unit = unit;
        self
    }

    /// Sets the window, in seconds; 0 counts as 1.
    #[must_use]
    pub fn window(mut self, seconds: u64) -> Self {
        self.window = Some(seconds.max(1));
        self
    }

    /// Sets the partition of the quota that this response belongs to. Intermediaries can read it: use a hash, not a secret.
    #[must_use]
    pub fn partition_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.partition_key = Some(key.into());
        self
    }

    /// The policy of a leg, if the field can express it. A window of less than a second is written per second. Fractions of a
    /// second are rounded so that the field never promises more than the leg admits.
    pub fn of(leg: &Description<'_>) -> Option<Self> {
        match leg.state {
            State::Permits { limit, .. } => Some(Self::new(leg.leg, limit).unit(QuotaUnit::ConcurrentRequests)),
            State::Rate { limit, window, .. } if window < Duration::from_secs(1) => {
                let window = window.as_nanos().max(1);
                let per_second = u128::from(limit) * 1_000_000_000 / window;
                Some(Self::new(leg.leg, u64::try_from(per_second).unwrap_or(u64::MAX)).window(1))
            }
            State::Rate { limit, window, .. } => Some(Self::new(leg.leg, limit).window(seconds(window))),
            _ => None,
        }
    }

    /// The value of the field for these policies; `None` for an empty list.
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

/// The remaining quota of a policy, and its effective window. A member of `RateLimit`.
///
/// ```
/// # use tollgate_http::axum::ServiceLimit;
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

    /// Sets the effective window, in seconds: during it, at most the available units can be used.
    #[must_use]
    pub fn window(mut self, seconds: u64) -> Self {
        self.window = Some(seconds);
        self
    }

    /// Sets the partition: as [`QuotaPolicy::partition_key`].
    #[must_use]
    pub fn partition_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.partition_key = Some(key.into());
        self
    }

    /// The remaining quota of a leg, if the field can express it.
    ///
    /// The window of a bucket is the remaining quota divided by the rate, rounded up: a client that spends evenly meets the rate. That of
    /// a window ends when all of its units are back. If nothing is left, it is the time until one unit is.
    pub fn of(leg: &Description<'_>) -> Option<Self> {
        match leg.state {
            State::Permits { limit, in_use, .. } => Some(Self::new(leg.leg, limit.saturating_sub(in_use))),
            State::Rate {
                available: 0,
                next: Some(next),
                ..
            } => Some(Self::new(leg.leg, 0).window(seconds(next))),
            State::Rate { available: 0, .. } => Some(Self::new(leg.leg, 0)),
            State::Rate {
                available,
                reset: Some(reset),
                ..
            } => Some(Self::new(leg.leg, available).window(seconds(reset))),
            State::Rate {
                limit,
                window,
                available,
                ..
            } => Some(Self::new(leg.leg, available).window(seconds(scaled(window, available, limit)).max(1))),
            _ => None,
        }
    }

    /// Shortens the window to at most `seconds`: a refusal must not name an earlier instant than the window's end.
    pub(super) fn at_most(&mut self, seconds: u64) {
        self.window = self.window.map(|window| window.min(seconds));
    }

    pub(super) fn available(&self) -> u64 {
        self.available
    }

    pub(super) fn seconds(&self) -> Option<u64> {
        self.window
    }

    /// The value of the field for these limits; `None` for an empty list.
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

/// `time x by / of`, rounded up to a nanosecond.
fn scaled(time: Duration, by: u64, of: u64) -> Duration {
    let nanos = time.as_nanos().saturating_mul(by.into()).div_ceil(of.max(1).into());
    let (secs, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    u64::try_from(secs).map_or(Duration::MAX, |secs| Duration::new(secs, nanos as u32))
}

/// Whole seconds, rounded up.
pub(super) fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// A name for a structured field: an underscore replaces each character that is not printable ASCII.
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

/// A number for a structured field: at most fifteen digits.
fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}

fn value(text: String) -> Option<HeaderValue> {
    HeaderValue::try_from(text).ok()
}
