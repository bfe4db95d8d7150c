//! A handle by which a handler corrects the costs of its request.

use http::Extensions;
use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::panicking;
use tollgate::{Ask, Cost, Limiter, Outcome, Permit};

/// Corrects the costs of a request while its response is made and sent. It is in the extensions of each request behind a layer that is
/// [`settling`](crate::LimitLayer::settling); its clones stand for the same request. Behind several such layers a correction goes to
/// each that counts the cost.
///
/// The permit is settled when the response, or the next frame of its body, has been made, and when the body has been dropped: at its end,
/// or because the client has left. So a guard inside the body can settle in its drop.
///
/// ```
/// # use std::convert::Infallible;
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use std::sync::Arc;
/// # use tollgate::{Ask, Cost, LimiterExt, ManualClock, Quota, TokenBucket};
/// # use tollgate_http::{Charge, LimitLayer, RequestParts};
/// # use tower::{Layer, ServiceExt, service_fn};
/// const TOKENS: Cost = Cost::new("tokens");
/// let clock = ManualClock::new();
/// let tokens = Arc::new(TokenBucket::new(Quota::per_minute(1_000)).on(&clock));
/// let layer = LimitLayer::new(Arc::new(Arc::clone(&tokens).per(TOKENS)))
///     .cost(|_: &RequestParts<'_>| Ask::one().cost(TOKENS, 600))
///     .settling();
/// # clock.run(async {
/// let service = layer.layer(service_fn(async |request: Request<()>| {
///     let charge = request.extensions().get::<Charge>().unwrap();
///     charge.settle(TOKENS, 150).unwrap();
///     assert_eq!(charge.units(TOKENS), Some(150));
///     Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
/// }));
/// let response = service.oneshot(Request::new(())).await.unwrap();
/// assert_eq!(tokens.available(), 850);
/// # drop(response);
/// # });
/// ```
#[derive(Clone)]
pub struct Charge {
    own: Arc<Mutex<State>>,
    /// That of an outer layer.
    outer: Option<Arc<Charge>>,
}

/// The costs of a request, and those that its permit has been settled to.
#[derive(Clone, Copy)]
struct State {
    actual: Ask,
    settled: Ask,
    /// The permit has ended, or there is none.
    ended: bool,
}

impl Charge {
    /// The charge of an admission of `ask`, or of a request that is not limited, put into `extensions`.
    pub(super) fn put(ask: Option<Ask>, extensions: &mut Extensions) -> Self {
        let costs = ask.unwrap_or(Ask::many(0));
        let state = State {
            actual: costs,
            settled: costs,
            ended: ask.is_none(),
        };
        let charge = Self {
            own: Arc::new(Mutex::new(state)),
            outer: extensions.remove::<Self>().map(Arc::new),
        };
        extensions.insert(charge.clone());
        charge
    }

    /// The units of `cost` that the request is charged with: those of its ask, or what they were corrected to. `None` if no layer was
    /// asked for `cost`.
    pub fn units(&self, cost: Cost) -> Option<u64> {
        let own = self.state().actual.of(cost);
        own.or_else(|| self.outer.as_ref()?.units(cost))
    }

    /// Corrects the charge for `cost` to `actual` units. What was charged above that is given back, as by
    /// [`Permit::settle`]; more is charged even if it is not there.
    ///
    /// # Errors
    /// - [`ChargeError::UnknownCost`]: no layer was asked for `cost`.
    /// - [`ChargeError::Ended`]: the permit has ended, or the request was not limited.
    pub fn settle(&self, cost: Cost, actual: u64) -> Result<(), ChargeError> {
        self.correct(cost, |_| actual)
    }

    /// Charges `units` of `cost` more, as a stream that goes on.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub fn add(&self, cost: Cost, units: u64) -> Result<(), ChargeError> {
        self.correct(cost, |charged| charged.saturating_add(units))
    }

    fn correct(&self, cost: Cost, actual: impl Fn(u64) -> u64 + Copy) -> Result<(), ChargeError> {
        let outer = self.outer.as_ref().map(|outer| outer.correct(cost, actual));
        let own = {
            let mut state = self.state();
            match state.actual.of(cost) {
                _ if state.ended => Err(ChargeError::Ended),
                None => Err(ChargeError::UnknownCost(cost)),
                Some(charged) => {
                    state.actual = state.actual.cost(cost, actual(charged));
                    Ok(())
                }
            }
        };
        match outer {
            Some(outer) => own.or(outer),
            None => own,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Plain numbers: a panic leaves nothing half done.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State { actual, ended, .. } = *self.state();
        f.debug_struct("Charge")
            .field("actual", &actual)
            .field("ended", &ended)
            .finish_non_exhaustive()
    }
}

/// Why a charge was not corrected.
///
/// ```
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use tollgate::{Cost, Semaphore};
/// # use tollgate_http::{Charge, ChargeError, LimitLayer};
/// # use tower::{Layer, ServiceExt, service_fn};
/// const TOKENS: Cost = Cost::new("tokens");
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = LimitLayer::new(Arc::new(Semaphore::new(1))).settling();
/// let service = layer.layer(service_fn(async |request: Request<()>| {
///     let charge = request.extensions().get::<Charge>().expect("the layer is settling");
///     assert_eq!(charge.settle(TOKENS, 5), Err(ChargeError::UnknownCost(TOKENS)));
///     Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
/// }));
/// service.oneshot(Request::new(())).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChargeError {
    /// No layer was asked for this cost.
    UnknownCost(Cost),
    /// The permit has ended, or the request was not limited.
    Ended,
}

impl fmt::Display for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCost(cost) => write!(f, "no layer was asked for the cost `{}`", cost.name()),
            Self::Ended => f.write_str("the permit has ended"),
        }
    }
}

impl Error for ChargeError {}

/// A permit, and the charge by which the handler corrects it. Dropping it ends the permit.
pub(super) struct Charged<L: Limiter> {
    permit: Option<Permit<L>>,
    charge: Option<Charge>,
}

impl<L: Limiter> Charged<L> {
    #[inline]
    pub(super) fn new(permit: Permit<L>, charge: Option<Charge>) -> Self {
        Self {
            permit: Some(permit),
            charge,
        }
    }

    #[inline]
    pub(super) fn limiter(&self) -> Option<&L> {
        self.permit.as_ref().map(Permit::limiter)
    }

    /// Settles what has been corrected since.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.charge.is_some() {
            self.settle_slow(false);
        }
    }

    #[cold]
    fn settle_slow(&mut self, ends: bool) {
        let (Some(charge), Some(permit)) = (&self.charge, &mut self.permit) else {
            return;
        };
        let State { actual, settled, .. } = {
            let mut state = charge.state();
            state.ended |= ends;
            let seen = *state;
            state.settled = state.actual;
            seen
        };
        for (cost, units) in actual.costs().filter(|&(cost, units)| settled.of(cost) != Some(units)) {
            // A cost that no leg counts has charged nothing.
            let _ = permit.settle(cost, units);
        }
    }

    /// Settles, and ends the permit by `outcome`.
    #[inline]
    pub(super) fn finish(mut self, outcome: Outcome) {
        if self.charge.is_some() {
            self.settle_slow(true);
        }
        if let Some(permit) = self.permit.take() {
            permit.finish(outcome);
        }
    }
}

impl<L: Limiter> Drop for Charged<L> {
    #[inline]
    fn drop(&mut self) {
        if self.charge.is_none() {
            return;
        }
        if panicking() {
            // A second panic would abort the process.
            let _ = catch_unwind(AssertUnwindSafe(|| self.settle_slow(true)));
        } else {
            self.settle_slow(true);
        }
    }
}
