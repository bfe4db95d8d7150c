//! The guards of an admission, written once for every limiter.

use crate::core::ask::Cost;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::ticket::Ticket;
use crate::sync::unwind::quietly;
use crate::time::ClockReading;
use std::fmt;
use std::mem::{ManuallyDrop, needs_drop};
use std::thread::panicking;

/// An admission after phase 1, not started yet. Dropping it gives everything back.
///
/// ```
/// # use tollgate::{LimiterExt, Semaphore};
/// let semaphore = Semaphore::new(1);
/// let reserved = semaphore.reserve(1).unwrap();
/// assert!(semaphore.try_admit(1).is_err());
/// drop(reserved); // Nothing has started.
/// let permit = semaphore.reserve(1).unwrap().commit();
/// assert_eq!(semaphore.in_use(), 1);
/// # drop(permit);
/// ```
#[must_use = "dropping a reservation cancels it"]
pub struct Reservation<L: Limiter<Ticket = T>, T: Ticket = <L as Limiter>::Ticket> {
    limiter: L,
    ticket: Option<T>,
}

impl<L: Limiter> Reservation<L> {
    #[inline]
    pub(crate) fn new(limiter: L, ticket: L::Ticket) -> Self {
        Self {
            limiter,
            ticket: Some(ticket),
        }
    }
}

impl<L: Limiter + Clone> Reservation<L> {
    /// Starts the work.
    #[inline]
    pub fn commit(mut self) -> Permit<L> {
        let limiter = self.limiter.clone();
        // The ticket leaves before anything else runs: from here on the permit owns it, also if the commit panics.
        let mut permit = Permit::with(limiter, self.ticket.take());
        if let Some(ticket) = &mut permit.ticket {
            self.limiter.commit(ticket, &ClockReading::new());
        }
        permit
    }
}

impl<L: Limiter<Ticket = T>, T: Ticket> Drop for Reservation<L, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            if self.limiter.finish_may_panic() && panicking() {
                quietly(|| self.limiter.cancel(ticket, &ClockReading::new()));
            } else {
                self.limiter.cancel(ticket, &ClockReading::new());
            }
        }
    }
}

impl<L: Limiter> fmt::Debug for Reservation<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").finish_non_exhaustive()
    }
}

/// Work may run while this lives. Dropping it finishes the work as [`Outcome::Ignored`].
///
/// `L` is `&Limiter`, `Arc<Limiter>` or any other handle that is itself a limiter. The second parameter is always
/// `L::Ticket`; it stands apart so that the permit stays covariant in `L`.
///
/// ```
/// # use tollgate::{LimiterExt, Outcome, Quota, Semaphore, TokenBucket};
/// # use std::sync::Arc;
/// let (rate, in_flight) = (TokenBucket::new(Quota::per_second(100)), Arc::new(Semaphore::new(4)));
/// let service = rate.and(Arc::clone(&in_flight));
/// let permit = service.try_admit(1).unwrap();
/// assert_eq!(in_flight.in_use(), 1);
/// permit.finish(Outcome::Success);
/// assert_eq!(in_flight.in_use(), 0);
/// ```
#[must_use = "dropping a permit ends its work: capacity that it holds comes back, tokens of a rate do not"]
// A long ticket comes first: the wide parts in which a permit is moved are then those in which its ticket was emptied. A part
// that was written in two would make the move wait for both writes.
#[repr(C)]
pub struct Permit<L: Limiter<Ticket = T>, T: Ticket = <L as Limiter>::Ticket> {
    ticket: Option<T>,
    limiter: L,
}

impl<L: Limiter<Ticket = T>, T: Ticket> Permit<L, T> {
    #[inline(always)]
    pub(crate) fn new(limiter: L, ticket: T) -> Self {
        Self::with(limiter, Some(ticket))
    }

    #[inline(always)]
    pub(crate) fn with(limiter: L, ticket: Option<T>) -> Self {
        Self { limiter, ticket }
    }

    /// The permit to be, before anything has been taken.
    #[inline(always)]
    pub(crate) fn before(limiter: L) -> Self {
        Self::with(limiter, None)
    }

    /// The limiter that admitted.
    #[inline]
    pub fn limiter(&self) -> &L {
        &self.limiter
    }

    /// The source that the units were taken from, where a [`FirstOf`](crate::FirstOf) chose among several. Of several such legs that of
    /// the first.
    ///
    /// ```
    /// # use tollgate::{FirstOf, LimiterExt, Policy, Semaphore};
    /// let lanes = FirstOf::new("fast lane", Semaphore::new(1)).or("slow lane", Semaphore::new(1));
    /// let policy = Policy::new(lanes);
    /// let (first, second) = (policy.try_admit(1).unwrap(), policy.try_admit(1).unwrap());
    /// assert_eq!((first.source(), second.source()), (Some("fast lane"), Some("slow lane")));
    /// ```
    pub fn source(&self) -> Option<&str> {
        let mut source = None;
        self.limiter.visit_sources(self.ticket.as_ref()?, &mut |name| {
            source.get_or_insert(name);
        });
        source
    }

    /// The same permit with another handle of its limiter.
    #[inline]
    pub(crate) fn owned_by<M: Limiter<Ticket = T>>(mut self, limiter: M) -> Permit<M, T> {
        Permit::with(limiter, self.ticket.take())
    }

    #[inline]
    pub(crate) fn ticket(&self) -> &Option<T> {
        &self.ticket
    }

    #[inline]
    pub(crate) fn ticket_mut(&mut self) -> &mut Option<T> {
        &mut self.ticket
    }

    /// Ends the work and says how it ended.
    #[inline(always)]
    pub fn finish(mut self, outcome: Outcome) {
        if !needs_drop::<L>() {
            // Then nothing is left to drop: the usual end need not have the permit in memory for it.
            let ended = ManuallyDrop::new(self);
            if let Some(ticket) = ended.ticket {
                ended.limiter.finish(ticket, outcome, &ClockReading::new());
            }
        } else if let Some(ticket) = self.ticket {
            // Gone before anything else runs: should that panic, the permit has ended all the same. Not taken out by
            // moving it, which would be through memory.
            self.ticket = None;
            self.limiter.finish(ticket, outcome, &ClockReading::new());
        }
    }

    /// Corrects the charge for `cost` to `actual` units, on every leg that counts it. Returns the number of those legs.
    ///
    /// # Errors
    /// [`UnknownCost`] when no leg counts `cost`.
    ///
    /// ```
    /// # use tollgate::{Ask, Cost, LimiterExt, ManualClock, Quota, Semaphore, TokenBucket};
    /// const TOKENS: Cost = Cost::new("tokens");
    /// let tokens = TokenBucket::new(Quota::per_minute(1_000)).on(&ManualClock::new()).per(TOKENS);
    /// let mut permit = tokens.try_admit(Ask::one().cost(TOKENS, 800))?;
    /// assert_eq!(permit.settle(TOKENS, 250)?, 1, "one leg counts it");
    /// drop(permit);
    /// assert!(tokens.try_admit(Ask::one().cost(TOKENS, 750)).is_ok());
    ///
    /// let slots = Semaphore::new(3);
    /// let mut two = slots.try_acquire_many(2)?;
    /// let one = two.split(1).expect("it has two");
    /// two.merge(one);
    /// two.forget(); // They do not come back.
    /// assert_eq!(slots.limit(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle(&mut self, cost: Cost, actual: u64) -> Result<u32, UnknownCost> {
        let reading = ClockReading::new();
        let legs = match &mut self.ticket {
            Some(ticket) => self.limiter.settle(ticket, Settlement::new(cost, actual, &reading)),
            None => 0,
        };
        if legs == 0 { Err(UnknownCost { cost }) } else { Ok(legs) }
    }

    /// Never gives the permit back: the capacity that it holds is gone for good.
    #[inline]
    pub fn forget(mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.limiter.forget(ticket);
        }
    }
}

impl<L: Limiter + Clone> Permit<&L> {
    /// Converts the permit into one that owns its handle of the limiter. `L` is a handle such as `Arc<Limiter>` or
    /// [`Policy`](crate::Policy): its clones must share their state.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, Permit, Policy, Semaphore};
    /// fn start(policy: &Policy<Semaphore>) -> Option<Permit<Policy<Semaphore>>> {
    ///     let permit = policy.try_admit(1).ok()?;
    ///     Some(permit.into_owned())
    /// }
    /// let policy = Policy::new(Semaphore::new(1));
    /// let permit = start(&policy).unwrap();
    /// assert!(start(&policy).is_none());
    /// drop(permit);
    /// assert!(start(&policy).is_some());
    /// ```
    #[inline]
    pub fn into_owned(self) -> Permit<L> {
        let limiter = self.limiter.clone();
        self.owned_by(limiter)
    }
}

impl<L: Limiter<Ticket = T>, T: Ticket> Drop for Permit<L, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(ticket) = &self.ticket {
            if self.limiter.finish_may_panic() && panicking() {
                quietly(|| self.limiter.finish_in(ticket, Outcome::Ignored, &ClockReading::new()));
            } else {
                self.limiter.finish_in(ticket, Outcome::Ignored, &ClockReading::new());
            }
        }
    }
}

impl<L: Limiter<Ticket = T>, T: Ticket> fmt::Debug for Permit<L, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}

/// No leg counts the cost that was to be settled.
///
/// ```
/// # use tollgate::{Ask, Cost, LimiterExt, Quota, TokenBucket};
/// const TOKENS: Cost = Cost::new("tokens");
/// const BYTES: Cost = Cost::new("bytes");
/// let limiter = TokenBucket::new(Quota::per_minute(6_000)).per(TOKENS);
/// let mut permit = limiter.try_admit(Ask::one().cost(TOKENS, 500)).unwrap();
/// let error = permit.settle(BYTES, 80).unwrap_err();
/// assert_eq!(error.cost(), BYTES);
/// assert_eq!(error.to_string(), "no leg counts the cost `bytes`");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownCost {
    cost: Cost,
}

impl UnknownCost {
    /// The cost that no leg counts.
    pub fn cost(&self) -> Cost {
        self.cost
    }
}

impl fmt::Display for UnknownCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no leg counts the cost `{}`", self.cost.name())
    }
}

impl std::error::Error for UnknownCost {}
