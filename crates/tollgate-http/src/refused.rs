//! A request that was not admitted, and its status.

use http::StatusCode;
use tollgate::status::State;
use tollgate::{Limiter, Reason, Refusal};

/// A refusal of a request, with its limiter, if one was found.
///
/// ```
/// # use http::StatusCode;
/// # use tollgate::{LimiterExt, ManualClock, Quota, Semaphore, TokenBucket};
/// # use tollgate_http::Refused;
/// let bucket = TokenBucket::new(Quota::per_second(1)).on(&ManualClock::new());
/// bucket.try_acquire(1)?;
/// let refusal = bucket.try_acquire(1).unwrap_err();
/// let refused = Refused::by(&bucket, refusal);
/// assert!(refused.is_rate() && refused.status() == StatusCode::TOO_MANY_REQUESTS);
/// let busy = Refused::<Semaphore>::early(Semaphore::new(0).try_admit(1).unwrap_err());
/// assert_eq!(busy.status(), StatusCode::SERVICE_UNAVAILABLE);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Refused<L> {
    /// Why.
    pub refusal: Refusal,
    /// The limiter that refused.
    pub limiter: Option<L>,
}

impl<L> Refused<L> {
    /// A refusal by `limiter`.
    pub fn by(limiter: L, refusal: Refusal) -> Self {
        Self {
            refusal,
            limiter: Some(limiter),
        }
    }

    /// A refusal before any limiter was found.
    pub fn early(refusal: Refusal) -> Self {
        Self { refusal, limiter: None }
    }
}

impl<L: Limiter> Refused<L> {
    /// True if a rate was exceeded, also after a wait. A wait whose cause is not known failed by a rate if one has just refused
    /// which cannot be looked at.
    pub fn is_rate(&self) -> bool {
        let (reason, cause) = (self.refusal.reason(), self.refusal.cause());
        let mut is_rate = cause.unwrap_or(reason) == Reason::RateExceeded;
        if let (Reason::TimedOut | Reason::QueueFull, None, Some(limiter)) = (reason, cause, &self.limiter) {
            limiter.describe(&mut |leg| {
                is_rate |= matches!(leg.state, State::Opaque { next } if !next.is_zero());
            });
        }
        is_rate
    }

    /// The status of the response: 429 if a [rate was exceeded](Self::is_rate), else that of the reason ([`status_of`]).
    pub fn status(&self) -> StatusCode {
        match self.is_rate() {
            true => StatusCode::TOO_MANY_REQUESTS,
            false => status_of(self.refusal.reason()),
        }
    }
}

/// The status of a response to a refusal.
///
/// | status | reason |
/// |---|---|
/// | 429 | a rate was exceeded |
/// | 413 | the request asks for more than can ever be admitted |
/// | 400 | the request has no key |
/// | 500 | the service has not set the cost of the request, or not set up what a limit needs |
/// | 503 | any other, also a wait that has failed: the reason is not its cause, which [`Refused::status`] looks at |
pub fn status_of(reason: Reason) -> StatusCode {
    match reason {
        Reason::RateExceeded => StatusCode::TOO_MANY_REQUESTS,
        Reason::Oversized => StatusCode::PAYLOAD_TOO_LARGE,
        Reason::Unkeyed => StatusCode::BAD_REQUEST,
        Reason::Unpriced | Reason::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}
