//! Refusals as responses of HTTP.

use super::fields::{QuotaPolicy, RATELIMIT, RATELIMIT_POLICY, ServiceLimit, seconds};
use crate::limiter::Limiter;
use crate::refusal::{Reason, Rejection};
use crate::standing::{Standing, State};
use crate::tower::{Refused, Respond, status_of};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde_json::json;
use std::time::Duration;

/// Answers a refusal with its status ([`status_of`]), `Retry-After`, and problem details
/// (RFC 9457): for [`LimitLayer::respond`](crate::tower::LimitLayer::respond).
///
/// `Retry-After` is in seconds, rounded up. Where the refusal knows the instant, a request that comes then is not refused for
/// the same reason, unless others were admitted meanwhile. Where nobody knows (all permits are in use, and somebody has to
/// come back first) it is a guess, [`retry_unknown`](Self::retry_unknown). A refusal for good has none.
///
/// A page of another origin sees none of this unless a CORS layer stands outside the limit.
#[derive(Clone, Copy, Debug)]
pub struct HttpRefusals {
    advertise: Option<fn(&Standing<'_>) -> bool>,
    legacy: bool,
    unknown: Duration,
}

impl Default for HttpRefusals {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpRefusals {
    /// With `Retry-After` and problem details, and without any other field.
    pub const fn new() -> Self {
        Self {
            advertise: None,
            legacy: false,
            unknown: Duration::from_secs(1),
        }
    }

    /// What `Retry-After` says where no instant is known; a second unless set, and rounded up to one.
    #[must_use]
    pub const fn retry_unknown(mut self, time: Duration) -> Self {
        self.unknown = time;
        self
    }

    /// Adds `RateLimit-Policy` and `RateLimit` to all responses, for each leg that is a rate. What is common to all clients is
    /// better kept to oneself: see [`rate_limit_fields_of`](Self::rate_limit_fields_of).
    #[must_use]
    pub const fn rate_limit_fields(self) -> Self {
        self.rate_limit_fields_of(|standing| matches!(standing.state, State::Rate { .. }))
    }

    /// The same for each leg of which `advertised` says so: rates, and semaphores as `concurrent-requests`.
    #[must_use]
    pub const fn rate_limit_fields_of(mut self, advertised: fn(&Standing<'_>) -> bool) -> Self {
        self.advertise = Some(advertised);
        self
    }

    /// Adds `X-RateLimit-Limit`, `-Remaining` and `-Reset` (in seconds) of the advertised rate of which the least is left,
    /// for clients that know no other.
    #[must_use]
    pub const fn legacy_fields(mut self) -> Self {
        self.legacy = true;
        self
    }

    /// The response that tells of `rejection`, without a body: status and `Retry-After`.
    fn head(&self, rejection: &Rejection) -> (StatusCode, Option<u64>) {
        let known = rejection.retry_after.map(|time| seconds(time).max(1));
        let retry = match rejection.reason.is_permanent() {
            true => None,
            false => Some(known.unwrap_or_else(|| seconds(self.unknown).max(1))),
        };
        (status_of(rejection.reason), retry)
    }

    fn advertise<L: Limiter>(&self, headers: &mut HeaderMap, limiter: &L, retry: Option<u64>) {
        let Some(advertised) = self.advertise else { return };
        let (mut policies, mut limits) = (Vec::new(), Vec::<ServiceLimit>::new());
        let mut least: Option<(u64, ServiceLimit)> = None;
        limiter.survey(&mut |standing| {
            if !advertised(&standing) {
                return;
            }
            policies.extend(QuotaPolicy::of(&standing));
            let Some(mut left) = ServiceLimit::of(&standing) else {
                return;
            };
            if let Some(retry) = retry {
                left.at_most(retry);
            }
            if let State::Rate { limit, .. } = standing.state
                && least
                    .as_ref()
                    .is_none_or(|(_, least)| left.available() < least.available())
            {
                least = Some((limit, left.clone()));
            }
            limits.push(left);
        });
        headers.extend(QuotaPolicy::field(&policies).map(|value| (RATELIMIT_POLICY, value)));
        headers.extend(ServiceLimit::field(&limits).map(|value| (RATELIMIT, value)));
        if let (true, Some((limit, left))) = (self.legacy, least) {
            let mut put = |name, number: u64| headers.insert(HeaderName::from_static(name), number.into());
            put("x-ratelimit-limit", limit);
            put("x-ratelimit-remaining", left.available());
            put("x-ratelimit-reset", left.seconds().unwrap_or(0));
        }
    }
}

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Problem details: the types of the RateLimit draft where there is one.
fn problem(rejection: &Rejection, status: StatusCode) -> serde_json::Value {
    let (kind, title) = match (status, rejection.reason) {
        (StatusCode::TOO_MANY_REQUESTS, _) => (
            QUOTA_EXCEEDED,
            "Request cannot be satisfied as assigned quota has been exceeded",
        ),
        (StatusCode::SERVICE_UNAVAILABLE, reason) if reason != Reason::Closed => (
            REDUCED_CAPACITY,
            "Request cannot be satisfied due to temporary server capacity constraints",
        ),
        _ => ("about:blank", status.canonical_reason().unwrap_or_default()),
    };
    let mut problem = json!({
        "type": kind,
        "title": title,
        "status": status.as_u16(),
        "detail": rejection.to_string(),
    });
    if kind != "about:blank" {
        problem["violated-policies"] = json!([rejection.leg]);
    }
    problem
}

impl<B: From<String>, E> Respond<B, E> for HttpRefusals {
    type Error = E;

    fn refused<L: Limiter>(&self, refused: Refused<L>) -> Result<Response<B>, E> {
        let (status, retry) = self.head(&refused.rejection);
        let body = problem(&refused.rejection, status).to_string();
        let mut response = Response::new(B::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.extend(retry.map(|seconds| (RETRY_AFTER, seconds.into())));
        if let Some(limiter) = &refused.limiter {
            self.advertise(headers, limiter, retry);
        }
        Ok(response)
    }

    fn admitted<L: Limiter>(&self, response: &mut Response<B>, limiter: &L) {
        self.advertise(response.headers_mut(), limiter, None);
    }

    fn failed(&self, error: E) -> E {
        error
    }
}
