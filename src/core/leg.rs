//! Adapters of legs: what a leg counts, its name, and how it is waited for.

use crate::core::ask::{Cost, Demand};
use crate::core::decision::LegDecision;
use crate::core::delegate::delegate;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Reason, Refusal, Wait};
use crate::core::status::Status;
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading};

/// The methods that every adapter here passes on.
macro_rules! rest {
    ($this:ident) => {
        delegate!($this => $this.limiter; cancel commit finish forget callbacks finish_may_panic clock clocks queues visit_sources is_pristine);
    };
}

/// A leg that counts calls. Made by [`LimiterExt::per_call`](crate::LimiterExt::per_call).
///
/// ```
/// # use tollgate::{Ask, Cost, LimiterExt, Semaphore};
/// # use std::sync::Arc;
/// const BYTES: Cost = Cost::new("bytes");
/// let calls = Arc::new(Semaphore::new(2));
/// let limiter = Arc::clone(&calls).per_call();
/// let permit = limiter.try_admit(Ask::one().cost(BYTES, 5_000)).unwrap();
/// assert_eq!(calls.in_use(), 1);
/// # drop(permit);
/// ```
#[derive(Debug)]
pub struct PerCall<L> {
    limiter: L,
}

impl<L> PerCall<L> {
    pub(crate) fn new(limiter: L) -> Self {
        Self { limiter }
    }
}

impl<L: Limiter> Limiter for PerCall<L> {
    type Ticket = L::Ticket;
    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        self.limiter.try_reserve(demand.per_call())
    }
    #[inline(always)]
    fn refuses(&self, demand: Demand<'_>) -> Option<Refusal<'_>> {
        self.limiter.refuses(demand.per_call())
    }
    fn admits(&self, demand: Demand<'_>) -> bool {
        self.limiter.admits(demand.per_call())
    }
    fn settle(&self, ticket: &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
        self.limiter.settle(ticket, actual.per_call())
    }
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.limiter.ready_at(demand.per_call())
    }

    delegate!(self => self.limiter; name visit_status);
    rest!(self);
}

/// A leg that counts a named cost. Made by [`LimiterExt::per`](crate::LimiterExt::per).
///
/// ```
/// # use tollgate::{Ask, Cost, LimiterExt, Quota, Reason, TokenBucket};
/// const TOKENS: Cost = Cost::new("tokens");
/// let limiter = TokenBucket::new(Quota::per_minute(6_000)).per(TOKENS);
/// assert!(limiter.try_admit(Ask::one().cost(TOKENS, 500)).is_ok());
/// // A cost that the ask does not name is refused, and not counted as zero.
/// assert_eq!(limiter.try_admit(1).unwrap_err().reason(), Reason::Unpriced);
/// ```
#[derive(Debug)]
pub struct Per<L> {
    limiter: L,
    cost: Cost,
}

impl<L> Per<L> {
    pub(crate) fn new(limiter: L, cost: Cost) -> Self {
        Self { limiter, cost }
    }
}

impl<L: Limiter> Limiter for Per<L> {
    type Ticket = L::Ticket;
    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        match demand.per(self.cost) {
            Some(demand) => self.limiter.try_reserve(demand),
            None => Err(Refusal::new(Reason::Unpriced, self.cost.name(), 0, Wait::Never)),
        }
    }
    #[inline(always)]
    fn refuses(&self, demand: Demand<'_>) -> Option<Refusal<'_>> {
        self.limiter.refuses(demand.per(self.cost)?)
    }
    fn admits(&self, demand: Demand<'_>) -> bool {
        demand.per(self.cost).is_some_and(|demand| self.limiter.admits(demand))
    }
    fn settle(&self, ticket: &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
        self.limiter.settle(ticket, actual.per(self.cost))
    }
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        match demand.per(self.cost) {
            Some(demand) => self.limiter.ready_at(demand),
            None => ReadyAt::never_for(Reason::Unpriced, self.cost.name(), 0),
        }
    }
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        self.limiter.visit_status(&mut |status| visit(status.per(self.cost)));
    }

    delegate!(self => self.limiter; name);
    rest!(self);
}

/// A leg under a name. Made by [`LimiterExt::named`](crate::LimiterExt::named).
///
/// ```
/// # use tollgate::{LimiterExt, Quota, Semaphore, TokenBucket};
/// let limiter = Semaphore::new(1).named("in flight").and(TokenBucket::new(Quota::per_second(1)).named("rate"));
/// let _permit = limiter.try_admit(1).unwrap();
/// assert_eq!(limiter.try_admit(1).unwrap_err().leg(), "in flight");
/// ```
#[derive(Debug)]
pub struct Named<L> {
    limiter: L,
    name: Box<str>,
}

impl<L> Named<L> {
    pub(crate) fn new(limiter: L, name: Box<str>) -> Self {
        Self { limiter, name }
    }
}

impl<L: Limiter> Limiter for Named<L> {
    type Ticket = L::Ticket;
    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        self.limiter
            .try_reserve(demand)
            .map_err(|refusal| refusal.named(&self.name).through(self))
    }
    #[inline(always)]
    fn refuses(&self, demand: Demand<'_>) -> Option<Refusal<'_>> {
        let refusal = self.limiter.refuses(demand)?;
        Some(refusal.named(&self.name).through(self))
    }
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.limiter.ready_at(demand).named(&self.name)
    }
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        self.limiter.visit_status(&mut |status| visit(status.named(&self.name)));
    }
    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }
    fn explain_legs(&self, demand: Demand<'_>, visit: &mut dyn FnMut(LegDecision)) {
        let (mut legs, mut of_first) = (0, None);
        self.limiter.explain_legs(demand, &mut |leg| {
            legs += 1;
            of_first = Some(leg).filter(|leg| legs == 1 && !leg.sources.is_empty());
        });
        visit(match of_first {
            Some(leg) => LegDecision {
                leg: self.name.clone(),
                ..leg
            },
            None => LegDecision::of(self, demand),
        });
    }

    delegate!(self => self.limiter; admits settle);
    rest!(self);
}

/// A leg that is not waited for. Made by [`LimiterExt::at_once`](crate::LimiterExt::at_once).
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, TokenBucket};
/// let clock = ManualClock::new();
/// let rate = TokenBucket::new(Quota::per_hour(1)).on(&clock).at_once();
/// let policy = Policy::builder().limit(rate).limit(Semaphore::new(4)).on(&clock).build().unwrap();
/// drop(policy.try_admit(1).unwrap());
/// // Waits for permits, and not for an hour.
/// assert_eq!(clock.run(policy.admit(1)).unwrap_err().reason(), Reason::RateExceeded);
/// ```
#[derive(Debug)]
pub struct AtOnce<L> {
    limiter: L,
}

impl<L> AtOnce<L> {
    pub(crate) fn new(limiter: L) -> Self {
        Self { limiter }
    }
}

impl<L: Limiter> Limiter for AtOnce<L> {
    type Ticket = L::Ticket;
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.limiter.ready_at(demand).at_once()
    }

    delegate!(self => self.limiter; try_reserve refuses admits settle name visit_status);
    rest!(self);
}

/// A leg whose larger limits are waited for. Made by
/// [`LimiterExt::wait_for_raise`](crate::LimiterExt::wait_for_raise).
///
/// ```
/// # use tollgate::{LimiterExt, Policy, Semaphore};
/// # use std::sync::Arc;
/// let permits = Arc::new(Semaphore::new(1));
/// let policy = Policy::new(Arc::clone(&permits).wait_for_raise());
/// std::thread::scope(|scope| {
///     // More than the limit, and not refused as oversized.
///     let waiter = scope.spawn(|| policy.admit_blocking(2).is_ok());
///     permits.set_limit(2);
///     assert!(waiter.join().unwrap());
/// });
/// ```
#[derive(Debug)]
pub struct WaitForRaise<L> {
    limiter: L,
}

impl<L> WaitForRaise<L> {
    pub(crate) fn new(limiter: L) -> Self {
        Self { limiter }
    }
}

impl<L: Limiter> Limiter for WaitForRaise<L> {
    type Ticket = L::Ticket;
    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        self.limiter.try_reserve(demand).map_err(|refusal| {
            let refusal = refusal.judged();
            match refusal.reason() {
                Reason::Oversized => refusal.with_wait(Wait::Event),
                _ => refusal.through(self),
            }
        })
    }
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        let ready = self.limiter.ready_at(demand);
        // A raise does not change a refusal for another reason.
        match ready.never_admits(demand.units()) {
            Some(never) if never.reason() == Reason::Oversized => ReadyAt::on_raise(ready.leg()),
            _ => ready,
        }
    }

    delegate!(self => self.limiter; settle name visit_status);
    rest!(self);
}
