//! A leg that several limiters share.

use crate::core::limiter::{Limiter, delegate};
use crate::core::status::Description;
use std::sync::Arc;

/// Lets the limiters of several keys of a [`Keyed`](crate::Keyed) have one leg in common: a global budget behind all keys.
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
///
/// Clones are handles of the same limiter. A `Shared` differs from an [`Arc`] in one thing: it always says that it is
/// [as new](crate::status::Description::is_as_new). So the map may evict an entry in any state of the shared limiter, since that state is
/// not the entry's.
///
/// # Fairness
/// If each key has a [`Policy`](crate::Policy) and they share a [`Semaphore`](crate::Semaphore) or a rate, keys take
/// turns. Each policy has one place in the queue of the shared limiter, that of its head, and joins at the end again once it was served.
/// With any number of waiters at one key, another key's next request is served within one round. For a rate whose parts also
/// hold for requests that do not wait, see [`FairBudget`](super::FairBudget).
#[derive(Debug)]
pub struct Shared<L>(Arc<L>);

impl<L> Shared<L> {
    /// A handle of `limiter`.
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

    delegate!(self => self.0; try_reserve cancel finish settle look leave watch);

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.0.describe(&mut |leg| visit(leg.as_new(true)));
    }
}
