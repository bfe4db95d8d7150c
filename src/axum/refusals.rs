//! Refusals as responses of HTTP.

use super::fields::{QuotaPolicy, RATELIMIT, RATELIMIT_POLICY, ServiceLimit, seconds};
use super::legacy::Legacy;
use crate::core::limiter::Limiter;
use crate::core::refusal::{Reason, Rejection};
use crate::core::status::{State, Status};
use crate::tower::{Refused, Respond};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::json;
use std::time::Duration;

/// Answers a refusal with its status ([`Refused::status`]), `Retry-After`, and problem details
/// (RFC 9457): for [`LimitLayer::respond`](crate::tower::LimitLayer::respond).
///
/// `Retry-After` is in seconds, rounded up. Where the limiter knows the instant, a request that comes then is not refused,
/// unless others were admitted meanwhile. Where nobody knows (all permits are in use, and somebody has to come back first) it
/// is a guess, [`retry_unknown`](Self::retry_unknown), unless a
/// [waiting room](crate::tower::LimitLayer::waiting_room) keeps a place for who is refused. A refusal for good has none.
///
/// Layers may be nested. The fields of all are in the response then, and of what they say of when to come back the latest
/// holds.
///
/// A page of another origin sees none of this unless a CORS layer stands outside the limit.
#[derive(Clone, Copy, Debug)]
pub struct HttpRefusals {
    advertise: Option<fn(&Status<'_>) -> bool>,
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
        self.rate_limit_fields_of(|status| matches!(status.state, State::Rate { .. }))
    }

    /// The same for each leg of which `advertised` says so: rates, and semaphores as `concurrent-requests`.
    #[must_use]
    pub const fn rate_limit_fields_of(mut self, advertised: fn(&Status<'_>) -> bool) -> Self {
        self.advertise = Some(advertised);
        self
    }

    /// Adds `X-RateLimit-Limit`, `-Remaining` and `-Reset` (in seconds) of the advertised rate of which the least is left,
    /// for clients that know no other. Of several layers that do so, the response tells of the strictest.
    #[must_use]
    pub const fn legacy_fields(mut self) -> Self {
        self.legacy = true;
        self
    }

    /// After how many seconds to ask again; nothing where that is of no use.
    fn retry_after(&self, rejection: &Rejection) -> Option<u64> {
        let time = match (rejection.retry_after, rejection.reason) {
            // Not before the instant of another leg, and not before somebody has come back.
            (Some(known), Reason::Saturated) => known.max(self.unknown),
            (Some(known), _) => known,
            (None, _) => self.unknown,
        };
        (!rejection.reason.is_permanent()).then(|| seconds(time).max(1))
    }

    /// States how the advertised legs stand, and makes `Retry-After` agree with it, be it of this limiter or of one further
    /// in: not earlier than what counts requests, or is advertised, and has nothing left, has some again.
    fn advertise<L: Limiter>(&self, headers: &mut HeaderMap, limiter: &L) {
        let stated = stated(headers);
        if self.advertise.is_none() && stated.is_none() {
            return;
        }
        let (mut policies, mut limits) = (Vec::new(), Vec::<ServiceLimit>::new());
        let mut least: Option<Legacy> = None;
        let mut latest = stated.unwrap_or(0);
        limiter.visit_status(&mut |status| {
            let Some(left) = ServiceLimit::of(&status) else {
                return;
            };
            let shown = self.advertise.is_some_and(|advertised| advertised(&status));
            // What counts something else may not be asked by the next request.
            if left.available() == 0 && (shown || status.cost.is_none()) {
                latest = latest.max(left.seconds().unwrap_or(0));
            }
            if !shown {
                return;
            }
            policies.extend(QuotaPolicy::of(&status));
            if let State::Rate { limit, .. } = status.state {
                let other = Legacy::new(limit, &left);
                least = Some(least.map_or(other, |least| least.stricter(other)));
            }
            limits.push(left);
        });
        if let Some(stated) = stated {
            if latest > stated {
                headers.insert(RETRY_AFTER, latest.into());
            }
            // The draft has it no earlier than the end of any window.
            limits.iter_mut().for_each(|limit| limit.at_most(latest));
        }
        headers.extend(QuotaPolicy::field(&policies).map(|value| (RATELIMIT_POLICY, value)));
        headers.extend(ServiceLimit::field(&limits).map(|value| (RATELIMIT, value)));
        if let (true, Some(least)) = (self.legacy, least) {
            least.write(headers);
        }
    }
}

/// What `Retry-After` says, if it is there and in seconds.
fn stated(headers: &HeaderMap) -> Option<u64> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
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
        let status = refused.status();
        let body = problem(&refused.rejection, status).to_string();
        let mut response = Response::new(B::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        let retry = self.retry_after(&refused.rejection);
        headers.extend(retry.map(|seconds| (RETRY_AFTER, seconds.into())));
        if let Some(limiter) = &refused.limiter {
            self.advertise(headers, limiter);
        }
        Ok(response)
    }

    fn admitted<L: Limiter>(&self, response: &mut Response<B>, limiter: &L) {
        self.advertise(response.headers_mut(), limiter);
    }

    fn failed(&self, error: E) -> E {
        error
    }
}
