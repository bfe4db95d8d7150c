//! A request that was not admitted, and the status that says so.

use crate::breaker::BreakerState;
use crate::core::limiter::Limiter;
use crate::core::refusal::{Reason, Rejection};
use crate::core::status::State;
use crate::policy::LINE;
use http::StatusCode;

/// A request was refused: why, and by which limiter, where there is one to be asked how it stands.
#[derive(Debug)]
pub struct Refused<L> {
    /// Why.
    pub rejection: Rejection,
    /// Who refused.
    pub limiter: Option<L>,
}

impl<L> Refused<L> {
    /// Refused by `limiter`.
    pub fn by(limiter: L, rejection: Rejection) -> Self {
        Self {
            rejection,
            limiter: Some(limiter),
        }
    }

    /// Refused before any limiter was found.
    pub fn early(rejection: Rejection) -> Self {
        Self {
            rejection,
            limiter: None,
        }
    }
}

impl<L: Limiter> Refused<L> {
    /// True when a rate was exceeded, be it that the request has waited for it: told by how the leg stands that refused, and
    /// where the line itself did, by what has nothing left.
    pub fn is_rate(&self) -> bool {
        let Rejection { reason, leg, .. } = &self.rejection;
        let limiter = match (reason, &self.limiter) {
            (Reason::RateExceeded, _) => return true,
            (Reason::TimedOut | Reason::QueueFull, Some(limiter)) => limiter,
            _ => return false,
        };
        let (mut named, mut rates, mut others) = (false, 0, 0);
        limiter.visit_status(&mut |status| {
            // Another leg may have the same name: what is a rate by its name is told as one.
            named |= status.leg == &**leg && is_rate(&status.state);
            match has_nothing_left(&status.state) {
                true if is_rate(&status.state) => rates += 1,
                true => others += 1,
                false => {}
            }
        });
        named || (**leg == *LINE && rates > 0 && others == 0)
    }

    /// The status that tells a client: 429 when a [rate was exceeded](Self::is_rate), else that of the reason
    /// ([`status_of`]).
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
        State::Shed { .. } | State::Queue { .. } => false,
    }
}

/// The status that tells a client of a refusal: 429 when a rate was exceeded, 413 for more than could ever be admitted, 400
/// when the request does not say who sends it, 500 when the service has not named what the request costs, or has not set up
/// what a limit needs, else 503.
///
/// So 503 for a wait that came to nothing: the reason does not say what was waited for. Where the limiter is at hand,
/// [`Refused::status`] knows.
pub fn status_of(reason: Reason) -> StatusCode {
    match reason {
        Reason::RateExceeded => StatusCode::TOO_MANY_REQUESTS,
        Reason::Oversized => StatusCode::PAYLOAD_TOO_LARGE,
        Reason::Unkeyed => StatusCode::BAD_REQUEST,
        Reason::Unpriced | Reason::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}
