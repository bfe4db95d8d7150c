//! Refusals as responses of HTTP.

use super::fields::{QuotaPolicy, RATELIMIT, RATELIMIT_POLICY, ServiceLimit, seconds};
use super::legacy::Legacy;
use crate::{Refused, Respond};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::json;
use std::time::Duration;
use tollgate::status::{Description, State};
use tollgate::{Limiter, Reason, Refusal};

/// Answers a refusal with its status ([`Refused::status`]), `Retry-After`, and problem details
/// (RFC 9457): for [`LimitLayer::respond`](crate::LimitLayer::respond).
///
/// `Retry-After` is in seconds, rounded up. If the limiter knows the instant, a request at that instant is admitted, unless
/// others were admitted meanwhile. If the instant is unknown (all permits are in use), it is the estimate
/// [`retry_unknown`](Self::retry_unknown), unless a [waiting room](crate::LimitLayer::waiting_room) gives the client an
/// appointment. A refusal that no instant ends ([`Refusal::is_retryable`] is false) has none.
///
/// By default 429 says that a rate was exceeded, and 503 that the service is busy (no permit is free, a circuit is open, a queue
/// is full); [`status_of`](crate::status_of) lists the others. Clients of APIs of language models often expect 429 for both:
/// [`status_for`](Self::status_for) sets it.
///
/// Layers may be nested. The response then has the fields of all, and the latest retry time.
///
/// A page of another origin sees none of these fields unless a CORS layer stands outside the limit.
///
/// ```
/// # use axum::Router;
/// # use axum::body::Body;
/// # use axum::routing::get;
/// # use http::Request;
/// # use std::sync::Arc;
/// # use tollgate::{ManualClock, Quota, TokenBucket};
/// # use tollgate_http::LimitLayer;
/// # use tollgate_http::axum::HttpRefusals;
/// # use tower::ServiceExt;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let calls = Arc::new(TokenBucket::new(Quota::per_minute(2).burst(1)).on(&ManualClock::new()));
/// let app = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(LimitLayer::new(calls).respond(HttpRefusals::new().rate_limit_fields()));
/// let request = || app.clone().oneshot(Request::new(Body::empty()));
/// request().await?;
/// let refused = request().await?;
/// assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"30".parse()?));
/// assert!(refused.headers().contains_key("ratelimit"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HttpRefusals {
    advertise: Option<fn(&Description<'_>) -> bool>,
    legacy: bool,
    unknown: Duration,
    status: Option<fn(Reason) -> Option<StatusCode>>,
}

impl Default for HttpRefusals {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpRefusals {
    /// Answers with `Retry-After` and problem details, and no other field.
    pub const fn new() -> Self {
        Self {
            advertise: None,
            legacy: false,
            unknown: Duration::from_secs(1),
            status: None,
        }
    }

    /// Sets `Retry-After` for refusals without a known instant; 1 s by default, and at least 1 s.
    #[must_use]
    pub const fn retry_unknown(mut self, time: Duration) -> Self {
        self.unknown = time;
        self
    }

    /// Sets the status of the response by the reason of the refusal. For a reason that gives `None` it stays
    /// [`Refused::status`]. A wait that has failed has the reason [`TimedOut`](Reason::TimedOut) or
    /// [`QueueFull`](Reason::QueueFull).
    ///
    /// The problem details have the same status. Their type still tells a quota that was exceeded from a lack of capacity, and
    /// `Retry-After` stays as well.
    ///
    /// ```
    /// # use axum::Router;
    /// # use axum::body::{Body, to_bytes};
    /// # use axum::routing::get;
    /// # use http::{Request, StatusCode};
    /// # use std::sync::Arc;
    /// # use tollgate::{Reason, Semaphore};
    /// # use tollgate_http::LimitLayer;
    /// # use tollgate_http::axum::HttpRefusals;
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let refusals = HttpRefusals::new().status_for(|reason| match reason {
    ///     Reason::Saturated | Reason::CircuitOpen => Some(StatusCode::TOO_MANY_REQUESTS),
    ///     _ => None,
    /// });
    /// let busy = LimitLayer::new(Arc::new(Semaphore::new(0))).respond(refusals);
    /// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(busy);
    /// let refused = app.oneshot(Request::new(Body::empty())).await?;
    /// assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    /// let problem: serde_json::Value = serde_json::from_slice(&to_bytes(refused.into_body(), 1_000).await?)?;
    /// assert_eq!(problem["status"], 429);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn status_for(mut self, status: fn(Reason) -> Option<StatusCode>) -> Self {
        self.status = Some(status);
        self
    }

    /// Adds `RateLimit-Policy` and `RateLimit` to all responses, for each leg that is a rate. To keep limits private that all
    /// clients share, use [`rate_limit_fields_of`](Self::rate_limit_fields_of).
    #[must_use]
    pub const fn rate_limit_fields(self) -> Self {
        self.rate_limit_fields_of(|leg| matches!(leg.state, State::Rate { .. }))
    }

    /// Adds the same fields for each leg that `advertised` selects: rates, and semaphores as `concurrent-requests`.
    #[must_use]
    pub const fn rate_limit_fields_of(mut self, advertised: fn(&Description<'_>) -> bool) -> Self {
        self.advertise = Some(advertised);
        self
    }

    /// Adds `X-RateLimit-Limit`, `-Remaining` and `-Reset` (in seconds) of the advertised rate with the least left, for clients
    /// that know no other fields. Of several layers with these fields, the tightest is written.
    #[must_use]
    pub const fn legacy_fields(mut self) -> Self {
        self.legacy = true;
        self
    }

    /// The seconds after which to ask again; `None` if that does not help.
    fn retry_after(&self, refusal: &Refusal) -> Option<u64> {
        let time = match (refusal.retry_after(), refusal.reason()) {
            // Not before the instant of another leg, and not before a permit is released.
            (Some(known), Reason::Saturated) => known.max(self.unknown),
            (Some(known), _) => known,
            (None, _) => self.unknown,
        };
        refusal.is_retryable().then(|| seconds(time).max(1))
    }

    /// Writes the state of the advertised legs, and makes `Retry-After` consistent with it, also a `Retry-After` of an inner
    /// layer: not before each exhausted leg that counts requests, or is advertised, has some units again.
    fn advertise<L: Limiter>(&self, headers: &mut HeaderMap, limiter: &L) {
        let stated = stated(headers);
        if self.advertise.is_none() && stated.is_none() {
            return;
        }
        let (mut policies, mut limits) = (Vec::new(), Vec::<ServiceLimit>::new());
        let mut least: Option<Legacy> = None;
        let mut latest = stated.unwrap_or(0);
        limiter.describe(&mut |leg| {
            let Some(left) = ServiceLimit::of(&leg) else {
                return;
            };
            let shown = self.advertise.is_some_and(|advertised| advertised(&leg));
            // The next request may not ask a leg that counts another cost.
            if left.available() == 0 && (shown || leg.cost.is_none()) {
                latest = latest.max(left.seconds().unwrap_or(0));
            }
            if !shown {
                return;
            }
            policies.extend(QuotaPolicy::of(&leg));
            if let State::Rate { limit, .. } = leg.state {
                let other = Legacy::new(limit, &left);
                least = Some(least.map_or(other, |least| least.tighter(other)));
            }
            limits.push(left);
        });
        if let Some(stated) = stated {
            if latest > stated {
                headers.insert(RETRY_AFTER, latest.into());
            }
            // In the draft, no window ends after `Retry-After`.
            limits.iter_mut().for_each(|limit| limit.at_most(latest));
        }
        headers.extend(QuotaPolicy::field(&policies).map(|value| (RATELIMIT_POLICY, value)));
        headers.extend(ServiceLimit::field(&limits).map(|value| (RATELIMIT, value)));
        if let (true, Some(least)) = (self.legacy, least) {
            least.write(headers);
        }
    }
}

/// The value of `Retry-After`, if it is present and in seconds.
fn stated(headers: &HeaderMap) -> Option<u64> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// The problem details, with a type of the RateLimit draft if one fits the `usual` status; `status` is the one of the response.
fn problem(refusal: &Refusal, usual: StatusCode, status: StatusCode) -> serde_json::Value {
    let (kind, title) = match (usual, refusal.reason()) {
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
        "detail": refusal.to_string(),
    });
    if kind != "about:blank" {
        problem["violated-policies"] = json!([refusal.leg()]);
    }
    problem
}

impl<B: From<String>, E> Respond<B, E> for HttpRefusals {
    type Error = E;

    fn refused<L: Limiter>(&self, refused: Refused<L>) -> Result<Response<B>, E> {
        let usual = refused.status();
        let chosen = self.status.and_then(|status| status(refused.refusal.reason()));
        let status = chosen.unwrap_or(usual);
        let body = problem(&refused.refusal, usual, status).to_string();
        let mut response = Response::new(B::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        let retry = self.retry_after(&refused.refusal);
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
