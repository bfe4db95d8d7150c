//! A leg that several limiters share.

use crate::core::ask::Demand;
use crate::core::delegate::delegate;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::status::Status;
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

    fn is_pristine(&self, _: &ClockReading) -> bool {
        true
    }

    delegate!(self => self.0; try_reserve cancel commit settle finish forget callbacks ready_at clock clocks queues visit_status visit_sources);
}
