//! A leg that several limiters share.

use crate::core::ask::Demand;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading};
use std::sync::Arc;

/// A handle on a limiter that outlives the limiters it is a leg of: the global budget behind all keys of a
/// [`Keyed`](crate::Keyed). Clones are the same limiter.
///
/// It differs from an [`Arc`] in one thing: an entry of the map may be evicted in any state of the shared limiter,
/// since that state is not the entry's.
///
/// # Fairness
/// If each key has a [`Policy`](crate::Policy) and they share a [`Semaphore`](crate::Semaphore) or a rate, keys take
/// turns. Each policy has one place in its queue, that of its head, and joins at the end again once it was served. With
/// any number of waiters at one key, another key's next request is served within one round. For a rate whose parts also
/// hold for requests that do not wait, see [`FairBudget`](super::FairBudget).
///
/// ```
/// # use tollgate::{Ask, Keyed, LimiterExt, ManualClock, Quota, Semaphore, TokenBucket};
/// # use tollgate::keyed::Shared;
/// let clock = ManualClock::new();
/// let all = Shared::new(Semaphore::new(3));
/// let (budget, for_all) = (all.clone(), clock.clone());
/// let tenants = Keyed::new(1_000, move |_: &u64| {
///     TokenBucket::new(Quota::per_second(2)).on(&for_all).and(budget.clone())
/// });
/// let a = tenants.get(&1).unwrap();
/// let permits = [a.try_admit(1).unwrap(), a.try_admit(1).unwrap()];
/// assert_eq!(a.try_admit(1).unwrap_err().leg(), "token_bucket");
/// assert!(tenants.get(&2).unwrap().try_admit(Ask::many(2)).is_err());
/// assert_eq!(all.available_permits(), 1);
/// # drop(permits);
/// ```
#[derive(Debug)]
pub struct Shared<L>(Arc<L>);

impl<L> Shared<L> {
    /// A handle on `limiter`.
    pub fn new(limiter: L) -> Self {
        Self(Arc::new(limiter))
    }
}

impl<L> Clone for Shared<L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<L> From<Arc<L>> for Shared<L> {
    fn from(limiter: Arc<L>) -> Self {
        Self(limiter)
    }
}

impl<L> std::ops::Deref for Shared<L> {
    type Target = L;
    fn deref(&self) -> &L {
        &self.0
    }
}

impl<L: Limiter> Limiter for Shared<L> {
    type Ticket = L::Ticket;
    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        self.0.try_reserve(demand)
    }
    #[inline]
    fn cancel(&self, ticket: Self::Ticket, now: &ClockReading) {
        self.0.cancel(ticket, now);
    }
    #[inline(always)]
    fn commit(&self, ticket: &mut Self::Ticket, now: &ClockReading) {
        self.0.commit(ticket, now);
    }
    #[inline]
    fn settle(&self, ticket: &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
        self.0.settle(ticket, actual)
    }
    #[inline(always)]
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome, now: &ClockReading) {
        self.0.finish(ticket, outcome, now);
    }
    #[inline]
    fn forget(&self, ticket: Self::Ticket) {
        self.0.forget(ticket);
    }
    #[inline]
    fn callbacks(&self) -> Callbacks {
        self.0.callbacks()
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.0.ready_at(demand)
    }
    fn clock(&self) -> Option<&Clock> {
        self.0.clock()
    }
    fn visit_status(&self, visit: &mut dyn FnMut(crate::core::status::Status<'_>)) {
        self.0.visit_status(visit);
    }
    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        self.0.queues(visit);
    }
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        self.0.clocks(visit);
    }
    fn is_pristine(&self, _: &ClockReading) -> bool {
        true
    }
}
