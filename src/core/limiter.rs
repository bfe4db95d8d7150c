//! The abstraction of a limiter: it decides whether work may start now.
//!
//! An implementor writes the small raw trait [`Limiter`]; the guards ([`Permit`], [`Reservation`]) and the verbs
//! ([`LimiterExt`], [`Policy`](crate::Policy)) are written once, in the core.
//!
//! # The laws
//!
//! Admission has two phases. Phase 1 reserves on each leg in turn; if all agree, phase 2 commits them all; if one
//! refuses, those before it are cancelled in reverse order.
//!
//! 1. `try_reserve` never blocks and never waits.
//! 2. Once it has returned, an `Err` has left no trace in any leg (statistics aside). While it runs, a concurrent
//!    attempt may see legs taken that are about to be given back.
//! 3. `cancel` cannot fail, restores at most what was taken, and never breaches a window. Counters and logs restore
//!    exactly. A token bucket restores exactly unless it could have been full in between; then it restores less, by
//!    the bound that [`TokenBucket`](crate::TokenBucket) states. A settlement to less obeys the same rule.
//! 4. `commit` cannot fail.
//! 5. After `commit` comes exactly one `finish` or `forget`.
//! 6. Whatever could turn a refusal into an admission (a release, a cancel, a settle, a raised limit, an instant) is
//!    followed by a wake-up of the waiters for it.
//! 7. Nothing is held while waiting, except a turn that has just been granted. Legs that bind one after the other are
//!    therefore waited for one after the other.
//! 8. `ready_at` is a true lower bound, rounded up, the latest of all legs, counting those ahead. For one leg under
//!    the manual clock: refused just before it, admitted exactly at it.
//!
//! # Several legs at once
//!
//! A composite gives back in steps, leg by leg: when it rolls back, is cancelled, settles or ends. Policies that wait for one of
//! the legs are notified on the same thread, after the last step: none is judged by half of the change. A policy that another
//! thread drives just then may see half of it, as law 2 says. It looks again when the rest has been given back. A waiter that
//! it has refused by then stays refused: one that would be too late for its deadline, or one with a leg that is not waited for.
//!
//! **Deadlock**: `cancel`, `settle`, `finish` and `forget` must not block until a waiter is served. The units that an
//! earlier leg gave back reach the policies that wait for them only after the last leg, on the thread that is blocked. Hand such work to another thread.
//!
//! The crate `tollgate-conformance` checks each law by its number on any limiter.

use crate::core::and::And;
use crate::core::ask::{Ask, Cost, Demand};
use crate::core::boxed::BoxLimiter;
use crate::core::conditional::{Conditional, Trigger};
use crate::core::decision::LegDecision;
use crate::core::delegate::delegate;
use crate::core::leg::{AtOnce, Named, Per, PerCall, WaitForRaise};
use crate::core::permit::{Permit, Reservation};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::shadow::Shadow;
use crate::core::status::Status;
use crate::core::ticket::{BoxTicket, Ticket};
use crate::sync::wait_queue::{QueueId, WaitQueue};
use crate::time::{Clock, ClockReading};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

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
#[derive(Clone, Copy)]
pub struct Settlement<'a> {
    cost: Cost,
    actual: u64,
    counted: bool,
    reading: &'a ClockReading,
}

impl<'a> Settlement<'a> {
    /// `cost` was `actual` units in all.
    pub fn new(cost: Cost, actual: u64, reading: &'a ClockReading) -> Self {
        Self {
            cost,
            actual,
            counted: false,
            reading,
        }
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

    /// The pass over all legs.
    pub fn reading(&self) -> &'a ClockReading {
        self.reading
    }

    /// This settlement as seen by a leg that counts `cost`.
    #[must_use]
    pub fn per(mut self, cost: Cost) -> Self {
        self.counted = self.cost == cost;
        self
    }

    /// This settlement as seen by a leg that counts calls: calls are not corrected.
    #[must_use]
    pub fn per_call(mut self) -> Self {
        self.counted = false;
        self
    }
}

/// The calls at which a limiter does something besides the law. Fixed for its life.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Callbacks {
    /// [`Limiter::try_reserve`] may give units back, and notify waiters of them, before it refuses: a composite.
    pub roll_back: bool,
    /// [`Limiter::commit`] does something.
    pub commit: bool,
    /// [`Limiter::finish`] does something.
    pub finish: bool,
}

impl Callbacks {
    /// All calls.
    pub const ALL: Self = Self {
        roll_back: true,
        commit: true,
        finish: true,
    };
    /// None: its units come back by themselves, if ever, as those of a rate.
    pub const NONE: Self = Self {
        roll_back: false,
        commit: false,
        finish: false,
    };
    /// The end of the work: it counts from phase 1 to there.
    pub const FINISH: Self = Self {
        roll_back: false,
        commit: false,
        finish: true,
    };

    /// The calls of a composite of both.
    #[inline]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            roll_back: true,
            commit: self.commit || other.commit,
            finish: self.finish || other.finish,
        }
    }
}

/// Decides whether work may start now. See the [module](self) for the eight laws.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use tollgate::sync::{Notify, WaitQueue};
/// use tollgate::{ClockReading, Demand, Limiter, LimiterExt, Outcome, ReadyAt, Reason, Refusal, Wait};
///
/// /// Admits everything, except during maintenance.
/// #[derive(Default)]
/// struct Maintenance(AtomicBool, Notify);
///
/// impl Maintenance {
///     fn end(&self) {
///         self.0.store(false, Ordering::SeqCst);
///         self.1.notify_all();
///     }
/// }
///
/// impl Limiter for Maintenance {
///     type Ticket = ();
///
///     fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
///         match self.0.load(Ordering::SeqCst) {
///             true => Err(Refusal::new(Reason::Unavailable, "maintenance", demand.units(), Wait::Event)),
///             false => Ok(()),
///         }
///     }
///     fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
///         demand.listen(&self.1);
///         match self.0.load(Ordering::SeqCst) {
///             true => ReadyAt::on_event("maintenance"),
///             false => ReadyAt::NOW,
///         }
///     }
///     fn cancel(&self, (): (), _: &ClockReading) {}
///     fn finish(&self, (): (), _: Outcome, _: &ClockReading) {}
///     fn forget(&self, (): ()) {}
///     fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn WaitQueue)) {}
/// }
///
/// let gate = Maintenance(AtomicBool::new(true), Notify::default());
/// assert_eq!(gate.try_admit(1).unwrap_err().reason(), Reason::Unavailable);
/// gate.end();
/// assert!(gate.try_admit(1).is_ok());
/// ```
pub trait Limiter: Send + Sync {
    /// The memory of one admission, by which it is undone or finished.
    type Ticket: Ticket;

    /// Phase 1: takes the units of `demand`, or refuses without a trace.
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>>;

    /// Undoes phase 1. Cannot fail, and [must not block](self#several-legs-at-once).
    fn cancel(&self, ticket: Self::Ticket, now: &ClockReading);

    /// Phase 2: the work starts. Cannot fail.
    #[inline]
    fn commit(&self, ticket: &mut Self::Ticket, now: &ClockReading) {
        let _ = (ticket, now);
    }

    /// Corrects a cost that was charged by an estimate. Returns the number of legs that were corrected. [Must not
    /// block](self#several-legs-at-once).
    #[inline]
    fn settle(&self, ticket: &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
        let _ = (ticket, actual);
        0
    }

    /// The work ended. [Must not block](self#several-legs-at-once).
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome, now: &ClockReading);

    /// The permit will never come back: capacity that it holds is gone for good. [Must not block](self#several-legs-at-once).
    fn forget(&self, ticket: Self::Ticket);

    /// The earliest instant at which `demand` could be admitted, or that it waits for an event.
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_>;

    /// The clock by which this limiter decides, if it decides by one. A composite names its first.
    fn clock(&self) -> Option<&Clock> {
        None
    }

    /// The calls that do something. A box and a policy of boxes leave out the others. A composite defers the notifications of a
    /// nested one's roll-back to the end of its own.
    #[doc(hidden)]
    #[inline]
    fn callbacks(&self) -> Callbacks {
        Callbacks::ALL
    }

    /// [`try_reserve`](Limiter::try_reserve) into the place where the ticket stays: a large ticket is not moved about.
    #[doc(hidden)]
    #[inline(always)]
    fn reserve_in(&self, demand: Demand<'_>, place: &mut Option<Self::Ticket>) -> Result<(), Refusal<'_>> {
        *place = Some(self.try_reserve(demand)?);
        Ok(())
    }

    /// [`try_reserve`](Limiter::try_reserve) as a leg of a chain, whose refusal includes the answers of all its legs.
    #[doc(hidden)]
    #[inline(always)]
    fn reserve_link(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        self.try_reserve(demand)
    }

    /// The refusal of `demand`, where one look shows it. It takes nothing, and `None` promises nothing. A chain looks at a leg
    /// before it takes from those before it: so a full semaphore costs no roll-back.
    #[doc(hidden)]
    #[inline(always)]
    fn refuses(&self, demand: Demand<'_>) -> Option<Refusal<'_>> {
        let _ = demand;
        None
    }

    /// True where one look shows that `demand` would be admitted. False promises nothing.
    #[doc(hidden)]
    fn admits(&self, demand: Demand<'_>) -> bool {
        let _ = demand;
        false
    }

    /// [`finish`](Limiter::finish) with the ticket where it is.
    #[doc(hidden)]
    #[inline(always)]
    fn finish_in(&self, ticket: &Self::Ticket, outcome: Outcome, now: &ClockReading) {
        self.finish(*ticket, outcome, now);
    }

    /// False when [`finish`](Limiter::finish) never panics on a thread that is panicking already: no permit has to look.
    #[doc(hidden)]
    #[inline(always)]
    fn finish_may_panic(&self) -> bool {
        true
    }

    /// True when it equals one just made: nothing is held or awaited, all units that were taken have come back, no setting has
    /// been changed, and there is no other handle of it. [`Keyed`](crate::Keyed) drops such a limiter when it
    /// needs the room, and makes a new one when the key comes back. False unless a limiter knows. It never blocks.
    fn is_pristine(&self, now: &ClockReading) -> bool {
        let _ = now;
        false
    }

    /// Shows `visit` every queue in this limiter in which a policy may have to wait: those of all limiters that it contains,
    /// whether they apply just now or not. A limiter without a queue shows nothing.
    ///
    /// It has no default: an adapter that hid a queue would hide that two legs share one queue, for which no policy can wait.
    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue));

    /// Shows `visit` every clock by which this limiter decides. A composite shows those of all its legs.
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        if let Some(clock) = self.clock() {
            visit(clock);
        }
    }

    /// The queue of identity `id` in this limiter, by which a waiting policy finds the leg again that it waits for.
    fn wait_queue(&self, id: QueueId) -> Option<&dyn WaitQueue> {
        let mut found = None;
        self.queues(&mut |queue| {
            if QueueId::of_queue(queue) == id {
                found = Some(queue);
            }
        });
        found
    }

    /// Shows `visit` the status of each leg, in the order in which they are asked. Nothing unless a limiter implements it.
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        let _ = visit;
    }

    /// The name that it was given, for explanations of a decision, whether it applies just now or not.
    #[doc(hidden)]
    fn name(&self) -> Option<&str> {
        None
    }

    /// Shows `visit` the names of the sources that `ticket` was taken from: see [`FirstOf`](crate::FirstOf).
    #[doc(hidden)]
    fn visit_sources<'a>(&'a self, ticket: &Self::Ticket, visit: &mut dyn FnMut(&'a str)) {
        let _ = (ticket, visit);
    }

    /// Shows `visit` the answer of each leg to `demand`. A composite shows those of its legs.
    #[doc(hidden)]
    fn explain_legs(&self, demand: Demand<'_>, visit: &mut dyn FnMut(LegDecision)) {
        visit(LegDecision::of(self, demand));
    }
}

macro_rules! forward {
    ($l:ident, $ty:ty, $fresh:expr) => {
        impl<$l: Limiter + ?Sized> Limiter for $ty {
            type Ticket = $l::Ticket;
            delegate!(self => (**self); try_reserve reserve_in refuses admits cancel commit settle finish finish_in finish_may_panic forget);
            delegate!(self => (**self); ready_at callbacks name clock clocks queues visit_status visit_sources explain_legs);
            fn is_pristine(&self, now: &ClockReading) -> bool {
                let fresh: fn(&Self, &ClockReading) -> bool = $fresh;
                fresh(self, now)
            }
        }
    };
}
// The owner of the reference's target may use it at any time.
forward!(L, &L, |_, _| false);
forward!(L, Arc<L>, |this, now| {
    let alone = Arc::strong_count(this) == 1 && Arc::weak_count(this) == 0;
    // Acquire: sees the writes of the last other owner. Pairs with the release by which an `Arc` is dropped.
    fence(Ordering::Acquire);
    alone && (**this).is_pristine(now)
});

/// The verbs that every limiter has, and the ways to compose it.
///
/// ```
/// # use tollgate::{Ask, LimiterExt, Quota, Semaphore, TokenBucket};
/// let rate = TokenBucket::new(Quota::per_minute(2)).named("rate");
/// let both = Semaphore::new(9).and(rate);
/// let permits = [both.try_admit(1), both.try_admit(1)].map(Result::unwrap);
/// assert_eq!(both.try_admit(1).unwrap_err().leg(), "rate");
/// # drop(permits);
/// ```
pub trait LimiterExt: Limiter {
    /// Admits now, or refuses. Nothing waits. Dropping the permit finishes the work as [`Outcome::Ignored`].
    ///
    /// # Errors
    /// A [`Refusal`] that names the leg and can compute `retry_after`.
    ///
    /// ```
    /// # use tollgate::{Ask, LimiterExt, Semaphore};
    /// let gate = Semaphore::new(1);
    /// let permit = gate.try_admit(Ask::one()).unwrap();
    /// assert!(gate.try_admit(Ask::one()).is_err());
    /// drop(permit);
    /// assert!(gate.try_admit(Ask::one()).is_ok());
    /// ```
    #[inline(always)]
    fn try_admit(&self, ask: impl Into<Ask>) -> Result<Permit<&Self>, Refusal<'_>> {
        admit_as(self, self, &ask.into())
    }

    /// The same with a permit that owns its limiter and can be moved anywhere.
    ///
    /// # Errors
    /// As [`try_admit`](LimiterExt::try_admit).
    #[inline]
    fn try_admit_owned(self: &Arc<Self>, ask: impl Into<Ask>) -> Result<Permit<Arc<Self>>, Refusal<'_>>
    where
        Self: Sized,
    {
        let permit = (**self).try_admit(ask)?;
        Ok(permit.owned_by(Arc::clone(self)))
    }

    /// Takes the units of `ask` without starting the work yet: drop the reservation to give it back,
    /// [`commit`](Reservation::commit) it to start.
    ///
    /// # Errors
    /// As [`try_admit`](LimiterExt::try_admit).
    ///
    /// ```
    /// # use tollgate::{Ask, Cost, LimiterExt, ManualClock, Quota, Semaphore, TokenBucket};
    /// # use std::sync::Arc;
    /// const BYTES: Cost = Cost::new("bytes");
    /// let bucket = TokenBucket::new(Quota::per_second(10)).on(&ManualClock::new());
    /// drop(bucket.reserve(6)?); // Cancelled: no token is gone.
    /// drop(bucket.reserve(6)?.commit());
    /// assert_eq!(bucket.available(), 4);
    ///
    /// let slots = Arc::new(Semaphore::new(8).per_call().and(bucket.per(BYTES)).boxed());
    /// assert!(slots.try_admit_owned(Ask::one().cost(BYTES, 3)).is_ok());
    /// let trial = Semaphore::new(0).shadow();
    /// assert!(trial.try_admit(1).is_ok() && trial.stats().refused == 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    fn reserve(&self, ask: impl Into<Ask>) -> Result<Reservation<&Self>, Refusal<'_>> {
        let reading = ClockReading::new();
        let ask = ask.into();
        let ticket = self.try_reserve(Demand::new(&ask, &reading))?;
        Ok(Reservation::new(self, ticket))
    }

    /// This limiter as a leg that counts calls.
    fn per_call(self) -> PerCall<Self>
    where
        Self: Sized,
    {
        PerCall::new(self)
    }

    /// This limiter as a leg that counts `cost`.
    fn per(self, cost: Cost) -> Per<Self>
    where
        Self: Sized,
    {
        Per::new(self, cost)
    }

    /// This limiter under a name, which its refusals carry.
    fn named(self, name: impl Into<Box<str>>) -> Named<Self>
    where
        Self: Sized,
    {
        Named::new(self, name.into())
    }

    /// This limiter in shadow mode: it counts the requests that it would refuse, and refuses none.
    fn shadow(self) -> Shadow<Self>
    where
        Self: Sized,
    {
        Shadow::new(self)
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
    fn at_once(self) -> AtOnce<Self>
    where
        Self: Sized,
    {
        AtOnce::new(self)
    }

    /// This limiter as a leg whose larger limits are waited for: a policy does not refuse a request that is
    /// [`Oversized`](crate::Reason::Oversized) for it, but queues it until the limits are raised. Such a waiter holds up no
    /// other: the policy passes it over.
    ///
    /// ```
    /// # use tollgate::{Clock, LimiterExt, Policy, Semaphore};
    /// # use std::sync::Arc;
    /// let slots = Arc::new(Semaphore::new(2));
    /// let policy = Policy::new(Arc::clone(&slots).wait_for_raise());
    /// Clock::real().run(async {
    ///     let large = policy.admit(5);
    ///     let others = async {
    ///         assert!(policy.admit(2).await.is_ok());
    ///         slots.set_limit(5);
    ///     };
    ///     assert!(futures::join!(large, others).0.is_ok());
    /// });
    /// ```
    fn wait_for_raise(self) -> WaitForRaise<Self>
    where
        Self: Sized,
    {
        WaitForRaise::new(self)
    }

    /// This limiter, applying only while a load exceeds `trigger`.
    fn when(self, trigger: Trigger) -> Conditional<Self>
    where
        Self: Sized,
    {
        Conditional::new(self, trigger)
    }

    /// Both this and `other`, all-or-nothing, asked in this order.
    fn and<B: Limiter>(self, other: B) -> And<Self, B>
    where
        Self: Sized,
    {
        And::new(self, other)
    }

    /// This limiter behind a box: one type for all.
    fn boxed(self) -> BoxLimiter
    where
        Self: Sized + 'static,
    {
        BoxLimiter::new(self)
    }
}

impl<L: Limiter + ?Sized> LimiterExt for L {}

/// Admits `ask` by `limiter`, with a permit of `owner`, whose tickets are those of `limiter`.
// A model's stack is small: there its frame is not that of the caller.
#[cfg_attr(not(tollgate_loom), inline(always))]
pub(crate) fn admit_as<'a, L, O>(limiter: &'a L, owner: O, ask: &Ask) -> Result<Permit<O>, Refusal<'a>>
where
    L: Limiter + ?Sized,
    O: Limiter<Ticket = L::Ticket>,
{
    let reading = ClockReading::new();
    // The permit owns its ticket before the legs commit it, which may panic. A short ticket joins it once it is taken, so that
    // it stays in registers. A long one is in memory anyway: it is written where it stays.
    let mut permit = if L::Ticket::WORDS >= BoxTicket::WORDS_INLINE {
        let mut permit = Permit::before(owner);
        limiter.reserve_in(Demand::new(ask, &reading), permit.ticket_mut())?;
        permit
    } else {
        let mut ticket = None;
        limiter.reserve_in(Demand::new(ask, &reading), &mut ticket)?;
        Permit::with(owner, ticket)
    };
    if limiter.callbacks().commit {
        if let Some(ticket) = permit.ticket_mut() {
            limiter.commit(ticket, &reading);
        }
    }
    Ok(permit)
}

/// Both phases at once.
#[inline(always)]
pub(crate) fn admit_in<'a, L: Limiter + ?Sized>(
    limiter: &'a L,
    ask: &Ask,
    place: &mut Option<L::Ticket>,
) -> Result<(), Refusal<'a>> {
    let reading = ClockReading::new();
    limiter.reserve_in(Demand::new(ask, &reading), place)?;
    if let Some(ticket) = place {
        limiter.commit(ticket, &reading);
    }
    Ok(())
}
