//! The abstraction of a limiter: it decides whether work may start now.
//!
//! An implementor writes the small raw trait [`Limiter`]; the guard ([`Permit`]) and the verbs ([`LimiterExt`],
//! [`Policy`](crate::Policy)) are written once, in the core.
//!
//! # The laws
//!
//! 1. **All or nothing.** An admission takes from all legs or from none, and a leg that panics leaks no other leg's permits. Nothing is
//!    held while waiting, except places in [queues of waiters](crate::sync::WaitQueue), by the rule that they state.
//! 2. **Bound.** A limiter never admits more than it states. In any span `t` a bucket admits at most `burst + rate * t` and one unit.
//!    Stale readings of the clock add nothing.
//! 3. **Refunds never mint.** After a `cancel` or a `settle` to less there is at most what there would be had the admission only taken
//!    what it keeps. Counters, windows and logs give back exactly; a bucket as much as [`TokenBucket`](crate::TokenBucket) states.
//! 4. **Changes.** A changed limit or quota holds at once. It may be below what is in use. Every waiter is judged anew.
//! 5. **Refusals** are plain values, computed at once: reason, name of the leg, and the latest wait of all legs. The wait is a true lower
//!    bound: the same request is refused just before it, and admitted at it if nothing else has been admitted meanwhile.
//! 6. **Waiting.** Whatever could turn a refusal into an admission (a release, a cancel, a settlement, a change, an instant) wakes the
//!    oldest waiter for it. A waiter sleeps once, and may leave at any time.
//! 7. **Shared legs.** Policies that share legs end each event in a bounded number of steps, and each is served after at most as many
//!    admissions of oldest heads as there were older waiters.
//! 8. **One code.** Blocking callers, tasks and virtual time run the same code. `try_reserve`, `look`, `cancel`, `finish` and `settle`
//!    never block until another caller acts.
//! 9. **Code of users.** A leg, a condition or a waker that panics ends its own call alone.
//!
//! The crate `tollgate-conformance` checks the laws by their numbers on any limiter.

use crate::core::ask::{Ask, Cost, Demand};
use crate::core::conditional::Condition;
use crate::core::leg::Leg;
use crate::core::legs::Legs;
use crate::core::permit::Permit;
use crate::core::refusal::{LegName, Refusal};
use crate::core::status::Description;
use crate::core::ticket::Ticket;
use crate::sync::wait_queue::{Place, Watch};
use crate::time::ClockReading;
use std::sync::{Arc, Weak};

/// How the admitted work ended.
///
/// ```
/// # use tollgate::{LimiterExt, Outcome, Semaphore};
/// let outcome_of = |status: u16| match status {
///     429 | 503 => Outcome::Overload,
///     500.. => Outcome::Failure,
///     400.. => Outcome::Ignored, // The request was wrong.
///     _ => Outcome::Success,
/// };
/// let in_flight = Semaphore::new(4);
/// let permit = in_flight.try_admit(1)?;
/// permit.finish(outcome_of(503)); // Breakers and adaptive limits learn of the overload.
/// assert_eq!(in_flight.in_use(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Outcome {
    /// It succeeded.
    Success,
    /// It failed in a way that says something about the protected resource.
    Failure,
    /// It was dropped for overload: a time-out, a rejection by the resource.
    Overload,
    /// It says nothing about the resource. A permit that is merely dropped ends so.
    #[default]
    Ignored,
    /// The permit never comes back: capacity that it holds is gone for good. Otherwise as [`Ignored`](Self::Ignored).
    Forgotten,
}

/// The actual cost of a request that was admitted by an estimate.
///
/// ```
/// # use tollgate::{Ask, Cost, LimiterExt, ManualClock, Quota, TokenBucket};
/// # use std::sync::Arc;
/// const TOKENS: Cost = Cost::new("tokens");
/// let bucket = Arc::new(TokenBucket::new(Quota::per_minute(6_000)).on(&ManualClock::new()));
/// let limiter = Arc::clone(&bucket).per(TOKENS);
/// let mut permit = limiter.try_admit(Ask::one().cost(TOKENS, 500)).unwrap();
/// // Hands a settlement to each leg.
/// permit.settle(TOKENS, 120).unwrap();
/// assert_eq!(bucket.available(), 6_000 - 120);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Settlement {
    cost: Cost,
    actual: u64,
    counted: bool,
}

impl Settlement {
    /// `cost` was `actual` units in all.
    pub fn new(cost: Cost, actual: u64) -> Self {
        let counted = false;
        Self { cost, actual, counted }
    }

    /// The cost that is corrected.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// The units that a leg which counts this cost must have charged in the end; `None` for a leg that counts
    /// something else.
    pub fn actual(&self) -> Option<u64> {
        self.counted.then_some(self.actual)
    }

    /// This settlement as seen by a leg that counts `cost`.
    #[must_use]
    pub fn per(mut self, cost: Cost) -> Self {
        self.counted = self.cost == cost;
        self
    }
}

/// Decides whether work may start now. See the [module](self) for the laws.
///
/// A limiter of your own implements the five methods without a default. If requests may wait for it, it has a
/// [`WaitQueue`](crate::sync::WaitQueue), which shows a whole example, and passes `look`, `leave` and `watch` on to it.
///
/// ```
/// use tollgate::{Demand, Description, Limiter, LimiterExt, Outcome, Reason, Refusal, Wait};
///
/// /// Admits requests for at most this number of units.
/// struct AtMost(u64);
///
/// impl Limiter for AtMost {
///     type Ticket = ();
///
///     fn try_reserve(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
///         match demand.units() > self.0 {
///             true => Err(Refusal::new(Reason::Oversized, "at most", Wait::Never)),
///             false => Ok(()),
///         }
///     }
///     fn cancel(&self, (): ()) {}
///     fn finish(&self, (): (), _: Outcome) {}
///     fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
///         self.try_reserve(demand)
///     }
///     fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
///         visit(Description::new("at most"));
///     }
/// }
///
/// assert!(AtMost(3).try_admit(3).is_ok());
/// assert_eq!(AtMost(3).named("body").try_admit(4).unwrap_err().leg(), "body");
/// ```
pub trait Limiter: Send + Sync {
    /// The memory of one admission, by which it is undone or finished.
    type Ticket: Ticket;

    /// Takes all units of `demand` now, or nothing.
    ///
    /// # Errors
    /// The refusal, with the time to wait.
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal>;

    /// Undoes an admission whose work has not started, as if it had never been; never gives back more. Cannot fail.
    fn cancel(&self, ticket: Self::Ticket);

    /// The work has ended. Called once for each ticket that was not cancelled.
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome);

    /// Corrects a cost that was charged by an estimate. Returns the number of legs that were corrected.
    fn settle(&self, ticket: &mut Self::Ticket, settlement: &Settlement) -> u32 {
        let _ = (ticket, settlement);
        0
    }

    /// Would `demand` be admitted, behind [`demand.ahead()`](Demand::ahead) units that others want? Takes nothing. A head that is
    /// [joining](crate::Role::Joining) joins the queue of waiters of the leg that refuses it.
    ///
    /// # Errors
    /// The refusal, with the time to wait.
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal>;

    /// Gives up the places of `place` in the queues of waiters here. A limiter without a queue does nothing.
    fn leave(&self, place: &Place) {
        let _ = place;
    }

    /// Tells `watcher` of each change of a limit, a quota or a condition from now on.
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        let _ = watcher;
    }

    /// Shows `visit` what each leg is and how it stands, in the order in which they are asked.
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>));
}

/// Writes the methods of a limiter that another limiter answers.
///
/// `delegate!(self => self.limiter; look leave watch describe)` passes calls on as they are.
macro_rules! delegate {
    ($this:ident => $to:expr; $($method:ident)*) => { $($crate::core::limiter::delegate!(@$method $this $to);)* };
    (@try_reserve $this:ident $to:expr) => {
        fn try_reserve(&$this, demand: &$crate::Demand<'_>) -> Result<Self::Ticket, $crate::Refusal> {
            $to.try_reserve(demand)
        }
    };
    (@cancel $this:ident $to:expr) => {
        fn cancel(&$this, ticket: Self::Ticket) {
            $to.cancel(ticket);
        }
    };
    (@finish $this:ident $to:expr) => {
        #[inline(always)] // row: built policy
        fn finish(&$this, ticket: Self::Ticket, outcome: $crate::Outcome) {
            $to.finish(ticket, outcome);
        }
    };
    (@settle $this:ident $to:expr) => {
        fn settle(&$this, ticket: &mut Self::Ticket, settlement: &$crate::Settlement) -> u32 {
            $to.settle(ticket, settlement)
        }
    };
    (@look $this:ident $to:expr) => {
        fn look(&$this, demand: &$crate::Demand<'_>) -> Result<(), $crate::Refusal> {
            $to.look(demand)
        }
    };
    (@leave $this:ident $to:expr) => {
        fn leave(&$this, place: &$crate::sync::Place) {
            $to.leave(place);
        }
    };
    (@watch $this:ident $to:expr) => {
        fn watch(&$this, watcher: &std::sync::Weak<dyn $crate::sync::Watch>) {
            $to.watch(watcher);
        }
    };
    (@describe $this:ident $to:expr) => {
        fn describe(&$this, visit: &mut dyn FnMut($crate::Description<'_>)) {
            $to.describe(visit);
        }
    };
}
pub(crate) use delegate;

impl<L: Limiter + ?Sized> Limiter for &L {
    type Ticket = L::Ticket;
    delegate!(self => (**self); try_reserve cancel finish settle look leave watch);
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        // The owner of the limiter may use it at any time.
        (**self).describe(&mut |leg| visit(leg.as_new(false)));
    }
}

impl<L: Limiter + ?Sized> Limiter for Arc<L> {
    type Ticket = L::Ticket;
    delegate!(self => (**self); try_reserve cancel finish settle look leave watch);
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let alone = Arc::strong_count(self) == 1 && Arc::weak_count(self) == 0;
        // Acquire: sees the writes of the last other owner. Pairs with the release by which an `Arc` is dropped.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        (**self).describe(&mut |leg| {
            let as_new = leg.is_as_new && alone;
            visit(leg.as_new(as_new));
        });
    }
}

/// The verbs that every limiter has, and the ways to compose it.
///
/// ```
/// # use tollgate::{LimiterExt, Quota, Semaphore, TokenBucket};
/// let rate = TokenBucket::new(Quota::per_minute(2)).named("rate");
/// let both = Semaphore::new(9).and(rate);
/// let permits = [both.try_admit(1), both.try_admit(1)].map(Result::unwrap);
/// assert_eq!(both.try_admit(1).unwrap_err().leg(), "rate");
/// # drop(permits);
/// ```
pub trait LimiterExt: Limiter + Sized {
    /// Admits now, or refuses. Nothing waits. Dropping the permit finishes the work as [`Outcome::Ignored`];
    /// [`Permit::cancel`] gives everything back instead.
    ///
    /// # Errors
    /// A [`Refusal`] that names the leg and knows `retry_after`.
    ///
    /// ```
    /// # use tollgate::{Ask, LimiterExt, Semaphore};
    /// let gate = Semaphore::new(1);
    /// let permit = gate.try_admit(Ask::one()).unwrap();
    /// assert!(gate.try_admit(Ask::one()).is_err());
    /// drop(permit);
    /// assert!(gate.try_admit(Ask::one()).is_ok());
    /// ```
    #[inline(always)] // row: bare chain
    fn try_admit(&self, ask: impl Into<Ask>) -> Result<Permit<&Self>, Refusal> {
        let (ask, reading) = (ask.into(), ClockReading::default());
        match self.try_reserve(&Demand::new(&ask, &reading)) {
            Ok(ticket) => Ok(Permit::new(self, ticket)),
            Err(refusal) => Err(refusal),
        }
    }

    /// The same with a permit that owns its limiter and can be moved anywhere.
    ///
    /// # Errors
    /// As [`try_admit`](LimiterExt::try_admit).
    fn try_admit_owned(self: &Arc<Self>, ask: impl Into<Ask>) -> Result<Permit<Arc<Self>>, Refusal> {
        let permit = (**self).try_admit(ask)?;
        Ok(permit.owned_by(Arc::clone(self)))
    }

    /// This limiter as a leg that counts `cost`.
    fn per(self, cost: Cost) -> Leg<Self> {
        Leg::new(self).per(cost)
    }

    /// This limiter under a name, which its refusals carry.
    fn named(self, name: impl Into<LegName>) -> Leg<Self> {
        Leg::new(self).named(name)
    }

    /// This limiter in shadow mode: it counts the requests that it would refuse, and refuses none.
    fn shadow(self) -> Leg<Self> {
        Leg::new(self).shadow()
    }

    /// This limiter as a leg that is not waited for: a policy refuses at once as long as it refuses.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, TokenBucket};
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder()
    ///     .limit(TokenBucket::new(Quota::per_hour(10).burst(1)).on(&clock).named("hourly").at_once())
    ///     .limit(Semaphore::new(1))
    ///     .build()?;
    /// clock.run(async {
    ///     drop(policy.admit(1).await.unwrap());
    ///     let refused = policy.admit(1).await.unwrap_err();
    ///     assert_eq!((refused.reason(), refused.leg()), (Reason::RateExceeded, "hourly"));
    /// });
    /// assert!(clock.elapsed().is_zero());
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    fn at_once(self) -> Leg<Self> {
        Leg::new(self).at_once()
    }

    /// This limiter, applying only while `condition` holds: a function of the request, or a
    /// [`Trigger`](crate::policy::conditional::Trigger) on a load.
    ///
    /// ```
    /// # use tollgate::{Ask, LimiterExt, Semaphore};
    /// let bulk = Semaphore::new(0).when(|ask: &Ask| ask.class_number() > 0);
    /// assert!(bulk.try_admit(1).is_ok());
    /// assert!(bulk.try_admit(Ask::one().class(1)).is_err());
    /// ```
    fn when(self, condition: impl Into<Condition>) -> Leg<Self> {
        Leg::new(self).when(condition)
    }

    /// Both this and `other`, all-or-nothing, asked in this order. Tuples of up to eight limiters are limiters as well.
    fn and<B: Limiter>(self, other: B) -> (Self, B) {
        (self, other)
    }

    /// This limiter behind a box: one type for all.
    fn boxed(self) -> Legs
    where
        Self: 'static,
    {
        Legs::new().and(self)
    }
}

impl<L: Limiter> LimiterExt for L {}
