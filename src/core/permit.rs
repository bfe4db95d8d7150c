//! The guards of an admission, written once for every limiter.

use crate::core::ask::Cost;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::ticket::Ticket;
use crate::sync::unwind::quietly;
use std::fmt;
use std::mem::{ManuallyDrop, needs_drop};
use std::thread::panicking;

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
// The ticket comes first: a long one is written where it stays.
#[repr(C)]
pub struct Permit<L: Limiter<Ticket = T>, T: Ticket = <L as Limiter>::Ticket> {
    ticket: Option<T>,
    limiter: L,
}

impl<L: Limiter<Ticket = T>, T: Ticket> Permit<L, T> {
    pub(crate) fn new(limiter: L, ticket: T) -> Self {
        let ticket = Some(ticket);
        Self { ticket, limiter }
    }

    /// The limiter that admitted.
    pub fn limiter(&self) -> &L {
        &self.limiter
    }

    /// The ticket of the admission, for limiters that answer questions about one: see [`FirstOf::source`](crate::FirstOf::source).
    pub fn ticket(&self) -> Option<&T> {
        self.ticket.as_ref()
    }

    /// The ticket, for a limiter that merges and splits permits.
    pub(crate) fn ticket_mut(&mut self) -> &mut Option<T> {
        &mut self.ticket
    }

    /// The same permit with another handle of its limiter.
    pub(crate) fn owned_by<M: Limiter<Ticket = T>>(mut self, limiter: M) -> Permit<M, T> {
        let ticket = self.ticket.take();
        Permit { ticket, limiter }
    }

    /// This permit as one of `outer`, a limiter around the one that admitted: for a limiter of your own that records admissions which
    /// others made. `ticket` makes the ticket of `outer`, which holds the given one. The work then ends at `outer`.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// # use tollgate::{Demand, Description, Limiter, LimiterExt, Outcome, Permit, Refusal, Semaphore};
    /// /// Counts the admissions that have ended.
    /// struct Counts<'a>(&'a Semaphore, &'a AtomicU64);
    ///
    /// impl Limiter for Counts<'_> {
    ///     type Ticket = (u64, <Semaphore as Limiter>::Ticket);
    ///     fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
    ///         Ok((1, self.0.try_reserve(demand)?))
    ///     }
    ///     fn cancel(&self, (_, ticket): Self::Ticket) {
    ///         self.0.cancel(ticket);
    ///     }
    ///     fn finish(&self, (count, ticket): Self::Ticket, outcome: Outcome) {
    ///         self.1.fetch_add(count, Ordering::Relaxed);
    ///         self.0.finish(ticket, outcome);
    ///     }
    ///     fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
    ///         self.0.look(demand)
    ///     }
    ///     fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
    ///         self.0.describe(visit);
    ///     }
    /// }
    ///
    /// let (gate, ended) = (Semaphore::new(1), AtomicU64::new(0));
    /// let permit: Permit<&Semaphore> = gate.try_admit(1)?;
    /// drop(permit.wrapped_by(Counts(&gate, &ended), |ticket| (1, ticket)));
    /// assert_eq!((gate.in_use(), ended.into_inner()), (0, 1));
    /// # Ok::<(), tollgate::Refusal>(())
    /// ```
    pub fn wrapped_by<O: Limiter>(mut self, outer: O, ticket: impl FnOnce(T) -> O::Ticket) -> Permit<O> {
        // Should `ticket` panic, the work ends at the limiter that admitted.
        let wrapped = self.ticket.map(ticket);
        self.ticket = None;
        Permit {
            ticket: wrapped,
            limiter: outer,
        }
    }

    /// Ends the work and says how it ended.
    #[inline(always)] // row: built policy
    pub fn finish(mut self, outcome: Outcome) {
        if !needs_drop::<L>() {
            // Then nothing is left to drop: the usual end need not have the permit in memory for it.
            let ended = ManuallyDrop::new(self);
            if let Some(ticket) = ended.ticket {
                ended.limiter.finish(ticket, outcome);
            }
        } else if let Some(ticket) = self.ticket.take() {
            self.limiter.finish(ticket, outcome);
        }
    }

    /// Gives everything back, as if the work had never been admitted: it has not started.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock, Quota, TokenBucket};
    /// let bucket = TokenBucket::new(Quota::per_second(10)).on(&ManualClock::new());
    /// bucket.try_admit(6).unwrap().cancel();
    /// assert_eq!(bucket.available(), 10);
    /// ```
    pub fn cancel(mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.limiter.cancel(ticket);
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
        let settlement = Settlement::new(cost, actual);
        let legs = match &mut self.ticket {
            Some(ticket) => self.limiter.settle(ticket, &settlement),
            None => 0,
        };
        if legs == 0 { Err(UnknownCost { cost }) } else { Ok(legs) }
    }

    /// Never gives the permit back: the capacity that it holds is gone for good.
    pub fn forget(self) {
        self.finish(Outcome::Forgotten);
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
    pub fn into_owned(self) -> Permit<L> {
        let limiter = self.limiter.clone();
        self.owned_by(limiter)
    }
}

impl<L: Limiter<Ticket = T>, T: Ticket> Drop for Permit<L, T> {
    #[inline(always)] // row: built policy
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            if panicking() {
                let limiter = &self.limiter;
                quietly(move || limiter.finish(ticket, Outcome::Ignored));
            } else {
                self.limiter.finish(ticket, Outcome::Ignored);
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
/// assert_eq!(error.cost, BYTES);
/// assert_eq!(error.to_string(), "no leg counts the cost `bytes`");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownCost {
    /// The cost that no leg counts.
    pub cost: Cost,
}

impl fmt::Display for UnknownCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no leg counts the cost `{}`", self.cost.name())
    }
}

impl std::error::Error for UnknownCost {}
