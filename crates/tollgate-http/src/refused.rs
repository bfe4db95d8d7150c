//! A request that was not admitted, and its status.

use http::StatusCode;
use tollgate::status::State;
use tollgate::{BreakerState, Limiter, Reason, Rejection};

/// A refusal of a request, with its limiter, if one was found.
#[derive(Debug)]
pub struct Refused<L> {
    /// Why.
    pub rejection: Rejection,
    /// The limiter that refused.
    pub limiter: Option<L>,
}

impl<L> Refused<L> {
    /// A refusal by `limiter`.
    pub fn by(limiter: L, rejection: Rejection) -> Self {
        Self {
            rejection,
            limiter: Some(limiter),
        }
    }

    /// A refusal before any limiter was found.
    pub fn early(rejection: Rejection) -> Self {
        Self {
            rejection,
            limiter: None,
        }
    }
}

impl<L: Limiter> Refused<L> {
    /// True if a rate was exceeded, also after a wait. Decided by the state of the leg that refused; if the policy's queue
    /// refused, by the legs that have nothing left.
    pub fn is_rate(&self) -> bool {
        let Rejection { reason, leg, .. } = &self.rejection;
        let limiter = match (reason, &self.limiter) {
            (Reason::RateExceeded, _) => return true,
            (Reason::TimedOut | Reason::QueueFull, Some(limiter)) => limiter,
            _ => return false,
        };
        let (mut named, mut by_queue, mut rates, mut others) = (false, false, 0, 0);
        limiter.visit_status(&mut |status| {
            let has_refused = status.leg == &**leg;
            // Another leg may have the same name: a rate of that name counts.
            named |= has_refused && is_rate(&status.state);
            by_queue |= has_refused && matches!(status.state, State::Queue { .. });
            match has_nothing_left(&status.state) {
                true if is_rate(&status.state) => rates += 1,
                true => others += 1,
                false => {}
            }
        });
        named || (by_queue && rates > 0 && others == 0)
    }

    /// The status of the response: 429 if a [rate was exceeded](Self::is_rate), else that of the reason ([`status_of`]).
    pub fn status(&self) -> StatusCode {
        match self.is_rate() {
            true => StatusCode::TOO_MANY_REQUESTS,
            false => status_of(self.rejection.reason),
        }
    }
}

fn is_rate(state: &State) -> bool {
    matches!(state, State::Rate { .. } | State::Opaque { .. })
}

fn has_nothing_left(state: &State) -> bool {
    match *state {
        State::Rate { available, .. } | State::Budget { available, .. } => available == 0,
        State::Opaque { next } => !next.is_zero(),
        State::Permits { limit, in_use, waiting } => in_use >= limit || waiting > 0,
        State::Breaker { state, .. } => matches!(state, BreakerState::Open | BreakerState::ForcedOpen),
        _ => false,
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
/// | 503 | any other, also a wait that has failed: the reason does not name the leg. [`Refused::status`] knows it. |
pub fn status_of(reason: Reason) -> StatusCode {
    match reason {
        Reason::RateExceeded => StatusCode::TOO_MANY_REQUESTS,
        Reason::Oversized => StatusCode::PAYLOAD_TOO_LARGE,
        Reason::Unkeyed => StatusCode::BAD_REQUEST,
        Reason::Unpriced | Reason::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}
