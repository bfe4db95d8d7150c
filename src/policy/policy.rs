//! The policy: any limiter with a clock and a bounded FIFO queue in front of it.

use super::QUEUE;
use super::builder::{Misfit, PolicyBuilder};
use super::dispatcher::PolicyCore;
use super::settings::{QueueOrder, Settings};
use super::waiter::{Admit, Waiter, block};
use crate::core::ask::{Ask, Demand};
use crate::core::delegate::delegate;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::permit::Permit;
use crate::core::refusal::{ReadyAt, Reason, Refusal, Rejection, Wait};
use crate::core::status::{State, Status};
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Admits all-or-nothing, and lets callers wait in one FIFO queue. A handle: clones share the queue.
///
/// # Fairness
/// First come, first served: a waiter is admitted before any newcomer, however small the request. A
/// [`try_admit`](crate::LimiterExt::try_admit) is refused while there are waiters. ([Other orders](PolicyBuilder::order)
/// are an option: newest first, by priority with ageing, in turn, by shares.) At a semaphore that others use directly, the head of the policy's queue is one more waiter. Nothing is held
/// while waiting: legs that bind one after the other are waited for one after the other.
///
/// A nested policy cannot pass on a queue position: the outer policy is notified when the inner queue has emptied. Share
/// limiters between policies instead.
///
/// # Memory ordering
/// Where a leg is a [`Semaphore`](crate::Semaphore), all that happens before a permit is given back is seen by the next holder.
/// Rates order nothing.
///
/// ```
/// # use tollgate::{Ask, Cost, ManualClock, Policy, Quota, Semaphore, TokenBucket, LimiterExt};
/// # use std::time::Duration;
/// const TOKENS: Cost = Cost::new("tokens");
/// let clock = ManualClock::new();
/// let policy = Policy::builder()
///     .limit(TokenBucket::new(Quota::per_minute(60)).on(&clock).named("requests"))
///     .limit(TokenBucket::new(Quota::per_minute(6_000)).on(&clock).per(TOKENS).named("tokens"))
///     .limit(Semaphore::new(4).named("in flight"))
///     .max_wait(Duration::from_secs(5))
///     .max_queue(100)
///     .build()
///     .unwrap();
/// clock.run(async {
///     let mut permit = policy.admit(Ask::one().cost(TOKENS, 6_000)).await.unwrap();
///     permit.settle(TOKENS, 5_800).unwrap();
///     // 200 tokens are left; 100 more come each second.
///     let second = policy.admit(Ask::one().cost(TOKENS, 400)).await.unwrap();
///     assert_eq!(clock.elapsed(), Duration::from_secs(2));
///     let refused = policy.admit(Ask::one().cost(TOKENS, 1_000)).await.unwrap_err();
///     assert_eq!(refused.leg(), "tokens");
///     assert_eq!(refused.retry_after(), Some(Duration::from_secs(10)));
///     # drop(second);
/// });
/// ```
pub struct Policy<L: Limiter + 'static>(Arc<PolicyCore<L>>);

impl Policy<super::BoxLimiter> {
    /// A builder for a policy of any number of legs, of any types.
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder::new()
    }
}

impl<L: Limiter + 'static> Policy<L> {
    /// A policy over `limiter`, on its clock, with no bound on waiting. For bounds see [`builder`](Policy::builder).
    ///
    /// Where a builder reports [`PolicyError::OtherClock`](super::PolicyError::OtherClock) or
    /// [`PolicyError::SameQueue`](super::PolicyError::SameQueue), this admits a request that fits on the spot. A wait is
    /// refused at once, as [`Misconfigured`](Reason::Misconfigured): none could end at the right instant.
    pub fn new(limiter: L) -> Self {
        let clock = limiter.clock().cloned().unwrap_or_default();
        let lateness = clock.ticks_of(PolicyBuilder::LATENESS);
        let misfit = Misfit::of(&limiter, &clock).is_some();
        Self::with(
            limiter,
            clock,
            Settings {
                max_wait: None,
                max_queue: usize::MAX,
                reject_early_from: None,
                lateness,
                order: QueueOrder::FIFO,
                misfit,
            },
        )
    }

    pub(super) fn with(limiter: L, clock: Clock, settings: Settings) -> Self {
        Self(PolicyCore::new(limiter, clock, settings))
    }

    pub(super) fn core(&self) -> &Arc<PolicyCore<L>> {
        &self.0
    }

    /// A number that no other policy has while this one lives.
    #[cfg(feature = "fan-out")]
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The limiter behind the queue. Admitting by it directly overtakes the queue.
    pub fn limiter(&self) -> &L {
        &self.0.limiter
    }

    /// The clock that it waits by.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The number of waiters. A snapshot.
    pub fn waiting(&self) -> usize {
        self.0.waiting()
    }

    /// Admits when the turn comes.
    ///
    /// # Errors
    /// - `QueueFull`: the queue is full, or this waiter was evicted for [a newer one](PolicyBuilder::eviction).
    /// - `TimedOut`: the wait would end after the policy's `max_wait`; at once if that is known.
    /// - `Oversized`, `Unpriced`, `Closed`: no wait can help.
    /// - The refusal of a leg that is [not waited for](crate::LimiterExt::at_once), such as `CircuitOpen`, at once.
    ///
    /// The refusal names the leg that binds.
    ///
    /// # Panics
    /// If a leg panics when it is asked for this request, and again when it is asked once more.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue. No permit and no token is lost. A future that is never polled again
    /// keeps its ticket until it is dropped.
    #[inline]
    pub fn admit(&self, ask: impl Into<Ask>) -> impl Future<Output = Result<Permit<&Self>, Refusal<'_>>> {
        Admit::new(self, ask.into(), None)
    }

    /// The same, for at most `patience`.
    ///
    /// # Errors
    /// As [`admit`](Policy::admit), with `TimedOut` when the wait would end after `patience`.
    ///
    /// # Cancel safety
    /// As [`admit`](Policy::admit).
    #[inline]
    pub fn admit_timeout(
        &self,
        ask: impl Into<Ask>,
        patience: Duration,
    ) -> impl Future<Output = Result<Permit<&Self>, Refusal<'_>>> {
        Admit::new(self, ask.into(), Some(patience))
    }

    /// [`admit`](Policy::admit) with a permit that owns a handle of the policy and can be moved anywhere.
    ///
    /// # Errors
    /// As [`admit`](Policy::admit), owned.
    ///
    /// # Cancel safety
    /// As [`admit`](Policy::admit).
    ///
    /// ```
    /// # use tollgate::{ManualClock, Policy, Semaphore};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().limit(Semaphore::new(2)).on(&clock).build()?;
    /// clock.run(async {
    ///     let permit = policy.admit_owned(1).await.unwrap();
    ///     let _second = policy.admit(1).await.unwrap();
    ///     assert!(policy.admit_timeout(1, Duration::from_secs(1)).await.is_err());
    ///     drop(permit); // Borrows nothing: it may move into a task.
    /// });
    /// assert!(policy.admit_blocking(1).is_ok());
    /// assert!(policy.admit_blocking_timeout(2, Duration::from_secs(1)).is_ok());
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub async fn admit_owned(&self, ask: impl Into<Ask>) -> Result<Permit<Self>, Rejection> {
        Ok(self.admit(ask).await?.into_owned())
    }

    /// [`admit`](Policy::admit), parking this thread. It waits in the same queue as futures do.
    ///
    /// # Errors
    /// As [`admit`](Policy::admit).
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn admit_blocking(&self, ask: impl Into<Ask>) -> Result<Permit<&Self>, Refusal<'_>> {
        self.block(ask.into(), None)
    }

    /// [`admit_timeout`](Policy::admit_timeout), parking this thread.
    ///
    /// # Errors
    /// As [`admit_timeout`](Policy::admit_timeout).
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn admit_blocking_timeout(
        &self,
        ask: impl Into<Ask>,
        patience: Duration,
    ) -> Result<Permit<&Self>, Refusal<'_>> {
        self.block(ask.into(), Some(patience))
    }

    /// The refusal of a demand that does not wait, while there are waiters.
    #[cold]
    fn refuse_behind<'a>(&'a self, demand: Demand<'_>) -> Refusal<'a> {
        let never = self.0.limiter.ready_at(demand).never_admits(demand.units());
        never.unwrap_or_else(|| Refusal::new(Reason::Saturated, QUEUE, demand.units(), Wait::Event))
    }

    /// Reserves without waiting, while there are waiters or one has been late.
    #[cold]
    #[inline(never)]
    fn reserve_beside_waiters(&self, demand: Demand<'_>) -> Result<L::Ticket, Refusal<'_>> {
        if self.0.has_before() {
            return Err(self.refuse_behind(demand));
        }
        let mut ticket = None;
        self.0.reserve_past_waiters(demand, &mut ticket)?;
        match ticket {
            Some(ticket) => Ok(ticket),
            None => unreachable!("an attempt that succeeds leaves its ticket"),
        }
    }

    #[track_caller]
    fn block(&self, ask: Ask, patience: Option<Duration>) -> Result<Permit<&Self>, Refusal<'_>> {
        crate::blocking::check();
        let mut permit = Permit::before(self);
        block(Waiter::new(self, ask, patience), permit.ticket_mut())?;
        Ok(permit)
    }
}

impl<L: Limiter + 'static> Clone for Policy<L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<L: Limiter + 'static> fmt::Debug for Policy<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("waiting", &self.waiting())
            .field("clock", self.clock())
            .finish_non_exhaustive()
    }
}

impl<L: Limiter + 'static> Limiter for Policy<L> {
    type Ticket = L::Ticket;

    #[inline]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        if self.0.waiting() == 0 {
            return self.0.limiter.try_reserve(demand);
        }
        self.reserve_beside_waiters(demand)
    }
    #[inline(always)]
    fn reserve_in(&self, demand: Demand<'_>, place: &mut Option<Self::Ticket>) -> Result<(), Refusal<'_>> {
        if self.0.waiting() == 0 {
            return self.0.limiter.reserve_in(demand, place);
        }
        // Of a copy, and not into the place: so the usual admission need not have its ask and its permit in memory.
        let ask = *demand.ask();
        *place = Some(self.reserve_beside_waiters(demand.of(&ask))?);
        Ok(())
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.0.notify);
        let ready = self.0.limiter.ready_at(demand);
        if self.0.has_before() {
            ready.and(ReadyAt::on_event(QUEUE))
        } else {
            ready
        }
    }
    fn clock(&self) -> Option<&Clock> {
        Some(&self.0.clock)
    }
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        visit(&self.0.clock);
        self.0.limiter.clocks(visit);
    }
    /// The legs, and then the queue.
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        self.0.limiter.visit_status(visit);
        let waiting = self.waiting() as u64;
        visit(Status::new(QUEUE, QUEUE, State::Queue { waiting }));
    }
    /// True without waiters and other handles.
    fn is_pristine(&self, now: &ClockReading) -> bool {
        let alone = Arc::strong_count(&self.0) == 1;
        // Acquire: sees the last writes of the other handles. Pairs with the release by which an `Arc` is dropped.
        fence(Ordering::Acquire);
        alone && self.0.waiting() == 0 && self.0.limiter.is_pristine(now)
    }

    delegate!(self => self.0.limiter; cancel commit settle finish finish_in finish_may_panic forget callbacks queues visit_sources);
}
